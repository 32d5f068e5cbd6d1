"""Whom a coordinator waits for, how long, and how a reduce is shared out."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_swarm import QUICK, rules_for
from swarm_diloco.diloco.ledger import Commit, Kind, Member
from swarm_diloco.diloco.records import HASH_BYTES
from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.rounds.membership import MAX_PENALTY, MISSES_REMEMBERED_ROUNDS, Attendance, share_out

NO_HASH = bytes(HASH_BYTES)
TIMED = replace(
    rules_for(replace(QUICK, deadline_floor_seconds=2.0)), schedule=ScheduleSettings(inner_steps=10, pace="time")
)


def commit(round_: int, *peers: str) -> Commit:
    return Commit(
        run=NO_HASH,
        round=round_,
        fragment=0,
        prev=NO_HASH,
        kind=Kind.NORMAL,
        base=NO_HASH,
        members=tuple(Member(peer, 1, 0, 0, True, (), NO_HASH) for peer in peers),
        parts=(),
        next_due_ms=0,
        wall_ms=0,
    )


def test_the_newest_commits_members_are_expected_and_who_left_is_not() -> None:
    attendance = Attendance()
    attendance.left("ben")
    chain = [commit(1, "ann", "ben", "cleo"), commit(2, "ann", "ben")]
    assert attendance.expected(chain) == {"ann"}
    attendance.knocked("ben")
    assert attendance.expected(chain) == {"ann", "ben"}


@pytest.mark.parametrize("misses", [1, 2, 3, 5, 9])
def test_a_peer_waited_for_in_vain_is_not_waited_for_until_it_has_come_so_often(misses: int) -> None:
    attendance = Attendance()
    for round_ in range(1, misses + 1):
        attendance.missed("ben", round_)
        attendance.missed("ben", round_)  # told twice, counts once
    needed = 2 ** min(misses, MAX_PENALTY)
    chain = [commit(round_, "ann", "ben") for round_ in range(misses + 1, misses + needed)]
    assert attendance.expected(chain) == {"ann"}
    chain.append(commit(misses + needed, "ann", "ben"))
    assert attendance.expected(chain) == {"ann", "ben"}


def test_a_gap_starts_the_count_anew_and_old_misses_are_forgotten() -> None:
    attendance = Attendance()
    attendance.missed("ben", 1)
    assert attendance.expected([commit(2, "ben"), commit(3, "ann"), commit(4, "ben")]) == set()
    assert attendance.has_missed("ben", 4)
    later = 1 + MISSES_REMEMBERED_ROUNDS
    assert attendance.expected([commit(later, "ben")]) == {"ben"}
    assert not attendance.has_missed("ben", later)


def test_patience_follows_the_usual_lateness_within_its_bounds() -> None:
    attendance = Attendance()
    for _ in range(4):
        attendance.opened([0.0, 1.0])
    assert attendance.patience_seconds(TIMED, 1000) == QUICK.opening_seconds  # not yet known
    attendance.opened([0.0, 1.0])
    assert attendance.patience_seconds(TIMED, 1000) == pytest.approx(3 * 0.9)
    assert attendance.patience_seconds(TIMED, 20) == 1.0  # 5 % of the period
    assert attendance.patience_seconds(TIMED, 0) == QUICK.patience_floor_seconds
    steps = replace(TIMED, schedule=ScheduleSettings(inner_steps=10, pace="steps"))
    assert attendance.patience_seconds(steps, 1000) == QUICK.opening_seconds


def test_one_worker_alone_makes_no_patience() -> None:
    attendance = Attendance()
    for _ in range(5):
        attendance.opened([0.0])
        attendance.opened([])
    assert attendance.patience_seconds(TIMED, 1000) == QUICK.patience_floor_seconds


def test_a_deadline_is_three_usual_rounds_within_the_manifests_bounds() -> None:
    attendance = Attendance()
    assert attendance.deadline_seconds(TIMED) == QUICK.deadline_seconds
    attendance.decided(0.1)
    assert attendance.deadline_seconds(TIMED) == TIMED.rounds.deadline_floor_seconds
    for _ in range(20):
        attendance.decided(4.0)
    assert attendance.deadline_seconds(TIMED) == 12.0
    for _ in range(20):
        attendance.decided(1000.0)
    assert attendance.deadline_seconds(TIMED) == QUICK.deadline_ceiling_seconds


@given(st.integers(1, 300), st.dictionaries(st.integers(0, 63), st.integers(0, 10_000), min_size=1, max_size=12))
def test_every_part_has_a_reducer_and_shares_follow_the_rates(num_parts: int, rates: dict[int, int]) -> None:
    shares = share_out(num_parts, rates)
    assert len(shares) == num_parts
    assert set(shares) <= rates.keys()
    known = sorted(rate for rate in rates.values() if rate)
    usual = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2 if known else 1
    total = sum(rate or usual for rate in rates.values())
    for member, count in Counter(shares).items():
        assert count <= num_parts * (rates[member] or usual) / total + len(rates)


def test_equal_rates_take_turns() -> None:
    assert Counter(share_out(12, {0: 5, 1: 5, 2: 0})) == {0: 4, 1: 4, 2: 4}
    with pytest.raises(ValueError, match="nobody can reduce"):
        share_out(3, {})
