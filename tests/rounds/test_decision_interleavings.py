"""The real Voter, Ballot and checks under every disorder that a network and crashes can make.

A thousand runs with real signatures; `python benchmarks/interleavings.py` does a hundred thousand, and replays a seed.
"""

from collections.abc import Iterator

import pytest

from interleavings.mutants import MUTANTS
from interleavings.runs import first_caught, run_all
from interleavings.signing import cheap_signatures
from interleavings.witness import SPLIT
from small_swarm import identity
from swarm_diloco.network import wire

BLOCK = 100
NUM_RUNS = 1000


@pytest.fixture
def quick() -> Iterator[None]:
    with cheap_signatures():
        yield


@pytest.mark.parametrize("first", range(0, NUM_RUNS, BLOCK))
def test_a_round_has_one_decision_whatever_happens(first: int) -> None:
    total = run_all(range(first, first + BLOCK))
    print(dict(total.counts))
    assert total.caught == []
    # The disorder still lets rounds come to an end, and everything that may happen has happened.
    assert total.counts["rounds decided"] > 1.5 * BLOCK
    assert total.counts["quiet ends with a decision"] > 0.7 * BLOCK
    for what in ("... past ballot 0", "... degraded", "... adopting a vote", "... void", "crashes", "false reports"):
        assert total.counts[what] > 0, what


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_caught(name: str) -> None:
    caught = first_caught(MUTANTS[name], range(NUM_RUNS))
    assert caught is not None
    print(f"run {caught.seed + 1}: {caught.text}")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["no promise", "no adopting", "votes forgotten", "promised and voting"])
def test_a_broken_rule_ends_in_two_decisions(name: str) -> None:
    """Not only in a vote or a knock that should not have been."""
    assert first_caught(MUTANTS[name], range(NUM_RUNS), (SPLIT,)) is not None


@pytest.mark.usefixtures("quick")
def test_a_seed_gives_the_same_run_again() -> None:
    first, second = run_all(range(20)), run_all(range(20))
    assert first.counts == second.counts
    assert first.counts != run_all(range(20, 40)).counts


@pytest.mark.usefixtures("quick")
def test_a_cheap_signature_is_one_peers_over_one_message() -> None:
    ann, ben = identity("ann"), identity("ben")
    signature = ann.sign(b"a vote")
    assert wire.is_signed_by(ann.peer, b"a vote", signature)
    assert not wire.is_signed_by(ben.peer, b"a vote", signature)
    assert not wire.is_signed_by(ann.peer, b"another vote", signature)
