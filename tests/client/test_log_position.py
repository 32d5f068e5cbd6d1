from collections.abc import Sequence

import pytest

from swarm_diloco.diloco.ledger import Commit, Kind, Member, PartRecord
from swarm_diloco.manifest import EvaluationSettings
from swarm_diloco.training.data.assignment import owners
from swarm_diloco_client.log_position import evaluates, text_workers, tokens_per_own_token

NO_HASH = bytes(32)


def commit(round_: int, tokens: dict[str, int], *, kind: Kind = Kind.NORMAL) -> Commit:
    members = tuple(Member(peer, num, 0, num, True, (), NO_HASH) for peer, num in tokens.items())
    parts = (PartRecord(0, NO_HASH, b"\x01", 1),) if kind is Kind.NORMAL else ()
    return Commit(
        run=NO_HASH,
        round=round_,
        fragment=0,
        prev=NO_HASH,
        kind=kind,
        base=NO_HASH,
        members=members,
        parts=parts,
        next_due_ms=0,
        wall_ms=0,
    )


GENESIS = commit(0, {"archive": 0}, kind=Kind.GENESIS)


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ([GENESIS], 1.0),
        ([commit(1, {"me": 100, "archive": 0})], 1.0),
        ([commit(1, {"me": 100, "b": 300}), commit(2, {"me": 100, "b": 100})], 3.0),
        ([commit(1, {"b": 300, "c": 300})], 3.0),  # a newcomer: one of three
        ([commit(1, {"me": 100, "b": 100}), commit(2, {"b": 9}, kind=Kind.VOID)], 2.0),
    ],
)
def test_the_swarms_speed_in_units_of_this_worker(commits: Sequence[Commit], expected: float):
    assert tokens_per_own_token(commits, "me") == expected


def test_the_newest_commit_says_who_shares_the_text():
    commits = [commit(1, {"a": 1, "b": 1, "archive": 0}), commit(2, {"a": 1, "c": 1, "archive": 0})]
    assert text_workers(commits, "me", 16) == ("a", "c")
    assert text_workers([*commits, commit(3, {}, kind=Kind.VOID)], "me", 16) == ("a", "c")


def test_workers_that_start_together_mostly_train_different_text():
    """Ten workers, 64 shards: each trains the shard it would own in a full swarm, not all of them the first one."""
    names = [f"worker {number}" for number in range(10)]
    shards = [owners(64, text_workers([GENESIS], name, 64), seed=1).index(name) for name in names]
    assert len(set(shards)) >= 8


@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_with_few_shards_a_first_worker_still_owns_one(num_shards: int):
    assert "me" in owners(num_shards, text_workers([GENESIS], "me", num_shards), seed=1)


def test_each_worker_measures_in_its_turn():
    settings = EvaluationSettings(every_rounds=4)
    turns = [
        [name for name in ("a", "b", "c") if evaluates(commit(round_, {"a": 1, "b": 1, "c": 1}), name, settings)]
        for round_ in range(1, 17)
    ]
    assert turns == [[], [], [], ["b"], [], [], [], ["c"], [], [], [], ["a"], [], [], [], ["b"]]


def test_the_first_parameters_are_measured_by_all_and_nothing_without_a_set():
    assert evaluates(GENESIS, "me", EvaluationSettings(every_rounds=4))
    assert not evaluates(GENESIS, "me", EvaluationSettings(sets=(), every_rounds=4))
