"""Who decides a round: the same for all who hold the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_swarm import identity
from swarm_diloco.diloco.ledger import Member
from swarm_diloco.diloco.records import HASH_BYTES, hash_of
from swarm_diloco.rounds.council import MAX_COUNCIL, Council, council_of

RUN = hash_of(b"a run")
PEERS = [identity(f"member {number}").peer for number in range(14)]


def members(peers: list[str], reachable: set[str]) -> list[Member]:
    return [Member(peer, 1, 0, 0, peer in reachable, (), bytes(HASH_BYTES)) for peer in peers]


@given(
    st.lists(st.sampled_from(PEERS), unique=True, min_size=1),
    st.sets(st.sampled_from(PEERS)),
    st.integers(1, 1000),
    st.randoms(),
)
def test_the_council_does_not_depend_on_the_order_of_the_members(
    peers: list[str], reachable: set[str], round_: int, chance: object
) -> None:
    council = council_of(RUN, round_, members(peers, reachable))
    shuffled = list(peers)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert council_of(RUN, round_, members(shuffled, reachable)) == council
    assert len(council.members) == min(len(peers), MAX_COUNCIL)
    able = [peer for peer in council.members if peer in reachable]
    assert list(council.candidates) == (able or list(council.members))
    assert [peer in reachable for peer in council.members] == sorted(
        (peer in reachable for peer in council.members), reverse=True
    )


def test_another_round_has_another_order() -> None:
    firsts = {council_of(RUN, round_, members(PEERS, set(PEERS))).candidates[0] for round_ in range(1, 200)}
    assert firsts == set(PEERS)


def test_ballots_go_round_the_candidates() -> None:
    council = Council(("a", "b", "c"), ("a", "b"))
    assert [council.candidate(ballot) for ballot in range(5)] == ["a", "b", "a", "b", "a"]


@pytest.mark.parametrize(
    ("size", "present", "expected"),
    [
        (1, "a", True),
        (2, "a", True),  # the tie-breaker
        (2, "b", False),
        (3, "ab", True),
        (3, "a", False),
        (4, "ab", True),
        (4, "bc", False),
        (4, "bcd", True),
        (9, "abcd", False),
        (9, "efghi", True),
        (3, "xyz", False),  # strangers
    ],
)
def test_a_majority_is_more_than_half_or_half_with_the_tie_breaker(size: int, present: str, expected: bool) -> None:
    names = tuple("abcdefghi"[:size])
    assert Council(names, names).is_majority(set(present)) is expected


@given(st.integers(1, 9), st.data())
def test_two_majorities_share_a_peer(size: int, data: st.DataObject) -> None:
    names = tuple("abcdefghi"[:size])
    council = Council(names, names)
    one, other = (data.draw(st.sets(st.sampled_from(names))) for _ in range(2))
    if council.is_majority(one) and council.is_majority(other):
        assert one & other
