"""Who sends which parts and who averages them: shares follow the lines, and no part is without a sender."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.rounds.decision.sharing import MOST_OF_USUAL, share, share_out

ENOUGH_BYTES = 10**9  # so much that no line has it up at once
rates = st.dictionaries(st.integers(0, 63), st.integers(0, 10**6), min_size=1, max_size=12)


def equal_parts(num_parts: int, part_bytes: int = 1000) -> tuple[list[int], list[int]]:
    return [part_bytes] * num_parts, [2 * part_bytes] * num_parts


@given(st.integers(1, 300), rates, st.integers(0, 1000))
def test_every_part_has_a_reducer_and_shares_follow_the_rates(
    num_parts: int, kilobits: dict[int, int], turn: int
) -> None:
    shares = share_out(num_parts, kilobits, num_bytes=ENOUGH_BYTES, turn=turn)
    assert len(shares) == num_parts
    known = sorted(rate for rate in kilobits.values() if rate)
    usual = known[(len(known) - 1) // 2] if known else 1
    weights = {member: min(rate or usual, MOST_OF_USUAL * usual) for member, rate in kilobits.items()}
    counts = Counter(shares)
    for member, weight in weights.items():
        assert abs(counts[member] - num_parts * weight / sum(weights.values())) < 1


@given(st.integers(1, 300), rates, st.integers(0, 1000))
def test_every_part_has_a_sender_and_every_sender_a_part(num_parts: int, kilobits: dict[int, int], turn: int) -> None:
    sent, results = equal_parts(num_parts)
    sharing = share(sent, results, senders=kilobits, reducers=kilobits, num_members=len(kilobits), turn=turn)
    assert all(sharing.senders)
    assert {member for senders in sharing.senders for member in senders} == kilobits.keys()
    assert all(list(senders) == sorted(set(senders)) for senders in sharing.senders)


def test_equal_lines_take_turns_and_so_do_leftovers() -> None:
    assert Counter(share_out(12, {0: 5, 1: 5, 2: 0}, num_bytes=ENOUGH_BYTES, turn=0)) == {0: 4, 1: 4, 2: 4}
    alone = [share_out(1, {0: 5, 1: 5, 2: 5}, num_bytes=ENOUGH_BYTES, turn=turn) for turn in range(4)]
    assert alone == [[0], [1], [2], [0]]
    with pytest.raises(ValueError, match="nobody can reduce"):
        share_out(3, {}, num_bytes=1, turn=0)


def test_a_members_parts_lie_spread_out() -> None:
    shares = share_out(12, {0: 100, 1: 100, 2: 200}, num_bytes=ENOUGH_BYTES, turn=0)
    where = [part for part, member in enumerate(shares) if member == 2]
    assert len(where) == 6
    assert all(later - earlier <= 3 for earlier, later in pairwise(where))


def test_who_claims_a_boundless_line_gets_four_usual_shares() -> None:
    counts = Counter(share_out(80, {0: 1000, 1: 1000, 2: 1000, 3: 1000, 4: 10**15}, num_bytes=ENOUGH_BYTES, turn=0))
    assert counts[4] == 40


def test_lines_on_which_all_is_up_at_once_are_all_the_same() -> None:
    counts = Counter(share_out(12, {0: 10**4, 1: 10**5, 2: 10**6}, num_bytes=1000, turn=0))
    assert counts == {0: 4, 1: 4, 2: 4}


def test_a_slow_sender_gets_what_is_up_in_twice_the_median_time_and_averages_nothing() -> None:
    sent, results = equal_parts(100)  # 100 kB: 40 s at 20 kbit/s, 800 s at 1
    kilobits = dict.fromkeys(range(7), 20) | {7: 1}
    sharing = share(sent, results, senders=kilobits, reducers=kilobits, num_members=8, turn=3)
    assert Counter(member for senders in sharing.senders for member in senders)[7] == 10
    assert 7 not in sharing.reducers
    assert set(sharing.reducers) == set(range(7))
    assert sharing.seconds is not None
    assert 80 < sharing.seconds < 80 + 100


@pytest.mark.parametrize(("num_parts", "slow_kilobits"), [(7, 1), (100, 1), (100, 3), (10, 4), (1, 1)])
def test_a_slow_senders_parts_move_on_so_that_each_has_its_turn(num_parts: int, slow_kilobits: int) -> None:
    sent, results = equal_parts(num_parts)
    kilobits = {0: 20, 1: 20, 2: slow_kilobits}
    turns = []
    for turn in range(num_parts):
        sharing = share(sent, results, senders=kilobits, reducers=kilobits, num_members=3, turn=turn)
        turns.append([part for part, senders in enumerate(sharing.senders) if 2 in senders])
    width = len(turns[0])
    assert all(len(parts) == width for parts in turns)
    enough = -(-num_parts // width)  # turns
    assert {part for parts in turns[:enough] for part in parts} == set(range(num_parts))


def test_senders_of_half_the_usual_speed_or_of_unknown_speed_send_all() -> None:
    sent, results = equal_parts(100)
    kilobits = {0: 20, 1: 20, 2: 10, 3: 0}
    sharing = share(sent, results, senders=kilobits, reducers=kilobits, num_members=4, turn=0)
    assert all(senders == (0, 1, 2, 3) for senders in sharing.senders)


def test_a_newcomer_among_known_lines_averages_nothing_and_an_archive_does() -> None:
    """An archive has no contribution to measure its line by."""
    sent, results = equal_parts(100)
    senders = {0: 20, 1: 20, 2: 0}
    sharing = share(sent, results, senders=senders, reducers=senders | {3: 0}, num_members=4, turn=0)
    assert set(sharing.reducers) == {0, 1, 3}
    assert all(2 in parts for parts in sharing.senders)


def test_if_only_a_slow_sender_can_be_dialled_it_averages_all() -> None:
    sent, results = equal_parts(10)
    sharing = share(sent, results, senders={0: 20, 1: 20, 2: 1}, reducers={2: 1}, num_members=3, turn=0)
    assert set(sharing.reducers) == {2}


def test_nothing_is_expected_of_lines_that_nobody_has_measured() -> None:
    sent, results = equal_parts(10)
    assert share(sent, results, senders={0: 0, 1: 0}, reducers={0: 0}, num_members=2, turn=0).seconds is None


def test_rates_that_are_about_the_same_give_equal_shares() -> None:
    """As measured over four equal lines; a share of 0.30 instead of 0.25 makes the round 11 % longer."""
    rates = {0: 47_830, 1: 26_891, 2: 29_895, 3: 42_541}
    sharing = share([10**6] * 40, [2 * 10**6] * 40, senders=rates, reducers=rates, num_members=4, turn=3)
    assert [sharing.reducers.count(member) for member in rates] == [10] * 4
    assert all(senders == (0, 1, 2, 3) for senders in sharing.senders)
