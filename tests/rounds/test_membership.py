"""Whom a coordinator waits for, and how long."""

from dataclasses import replace

import pytest

from small_swarm import QUICK, rules_for
from swarm_diloco.diloco.ledger import Commit, Kind, Member, PartRecord, member_bitmap
from swarm_diloco.diloco.records import HASH_BYTES
from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.network.messages import Plan, PlannedPart
from swarm_diloco.rounds.membership import ROUNDS_NEEDED, Attendance
from swarm_diloco.rounds.probation import MAX_PEERS, MAX_PENALTY, MISSES_REMEMBERED_ROUNDS, Probation

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
    assert attendance.has_missed("ben", [commit(4, "ben")])
    later = 1 + MISSES_REMEMBERED_ROUNDS
    assert attendance.expected([commit(later, "ben")]) == {"ben"}
    assert not attendance.has_missed("ben", [commit(later, "ben")])


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


# --- what the log alone shows


def test_an_absence_that_the_log_shows_is_not_waited_for_again_by_another_coordinator() -> None:
    chain = [commit(1, "ann", "ben"), commit(2, "ann"), commit(3, "ann", "ben")]
    assert Attendance().expected(chain) == {"ann"}
    assert Attendance().expected([*chain, commit(4, "ann", "ben")]) == {"ann", "ben"}


def test_a_worker_listed_without_weight_came_too_late_and_an_archive_did_not() -> None:
    late = Member("ben", 0, 100, 100, True, (), NO_HASH)
    archive = Member("boot", 0, 0, 0, True, (), NO_HASH)
    chain = [
        commit(1, "ann", "ben", "boot"),
        replace(commit(2, "ann"), members=(*commit(2, "ann").members, late, archive)),
    ]
    assert Attendance().expected(chain) == {"ann", "boot"}


def test_who_joins_every_second_round_is_waited_for_in_few_rounds_of_a_hundred() -> None:
    chain = [commit(0, "ann", "ben")]
    num_waits = 0
    for round_ in range(1, 101):
        is_there = round_ % 2 == 0
        num_waits += "ben" in Attendance().expected(chain[-64:]) and not is_there
        chain.append(commit(round_, "ann", "ben") if is_there else commit(round_, "ann"))
    assert num_waits <= 2


def test_a_peer_whose_knock_came_too_late_is_waited_for_unless_it_does_so_again_and_again() -> None:
    attendance = Attendance()
    attendance.came_late("ben")
    assert attendance.expected([commit(1, "ann")]) == {"ann", "ben"}
    attendance.knocked("ben")
    assert attendance.expected([commit(2, "ann")]) == {"ann"}
    for round_ in range(3, 6):
        attendance.came_late("ben")
        assert attendance.expected([commit(round_ - 1, "ann")]) == {"ann", "ben"}
        attendance.missed("ben", round_)
    attendance.came_late("ben")
    assert attendance.expected([commit(5, "ann")]) == {"ann"}
    attendance.came_late("cleo")
    attendance.left("cleo")
    assert attendance.expected([commit(5, "ann")]) == {"ann"}


def test_only_so_many_peers_are_remembered() -> None:
    attendance = Attendance()
    for number in range(1000):
        attendance.came_late(f"peer {number}")
    assert len(attendance.expected([commit(1, "ann")])) == 65
    probation = Probation()
    for number in range(MAX_PEERS + 1):
        probation.missed(f"peer {number}", 1)
    assert not probation.is_on("peer 0", 1)
    assert probation.is_on("peer 1", 1)


# --- what a plan and its commit show


def plan_for(senders: dict[str, int]) -> Plan:
    """`senders`: the bits of the parts that each is planned to send, of two parts."""
    bitmaps = [member_bitmap([i for i, bits in enumerate(senders.values()) if bits >> part & 1]) for part in range(2)]
    return Plan(
        tuple((peer, 100) for peer in senders), tuple(PlannedPart(0, 0, bitmap) for bitmap in bitmaps), 1000, 2000
    )


def test_who_is_in_none_of_the_parts_it_was_to_send_is_not_waited_for_by_any_reducer() -> None:
    attendance = Attendance()
    plan = plan_for({"ann": 3, "ben": 3, "slow": 1, "idle": 0})
    decided = replace(
        commit(7, "slow", "ben", "ann", "idle"),
        parts=(PartRecord(0, NO_HASH, member_bitmap([0, 2]), 200), PartRecord(0, NO_HASH, member_bitmap([2]), 100)),
    )
    attendance.averaged(plan, decided)
    assert attendance.senders.on(8) == {"ben"}
    void = replace(commit(8, "ann"), kind=Kind.VOID)
    attendance.averaged(plan, void)
    assert attendance.senders.on(9) == {"ben"}
    for round_ in (9, 10):
        ben_too = tuple(replace(part, senders=member_bitmap([0, 1, 2])) for part in decided.parts)
        attendance.averaged(plan, replace(decided, round=round_, parts=ben_too))
        attendance.senders.came("ben", round_)  # the reducer saw it too: once a round
    assert attendance.senders.on(11) == set()


def test_members_learn_from_the_plan_how_late_knocks_come_unless_it_waited_in_vain() -> None:
    attendance, chain = Attendance(), [commit(1, "ann", "ben")]
    for _ in range(ROUNDS_NEEDED):
        attendance.planned(plan_for({"ann": 3}), chain, 100.0)  # it waited for ben
    assert attendance.patience_seconds(TIMED, 1000) == QUICK.opening_seconds
    for _ in range(ROUNDS_NEEDED):
        attendance.planned(plan_for({"ann": 3, "ben": 3}), chain, 2.0)
    assert attendance.patience_seconds(TIMED, 1000) == pytest.approx(6.0)
