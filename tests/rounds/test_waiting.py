"""What one slow or silent peer costs the others, in virtual seconds (PROTOCOL, Schedules, *Waiting*)."""

from pathlib import Path
from statistics import mean, median

import pytest

from small_swarm import rules_for
from swarm_diloco.diloco.ledger import listed_values
from waiting_swarm import DEFAULTS, SLOW, TimedSwarm, timed_rules

WORKERS = [f"worker {number}" for number in range(7)]


def test_a_line_of_a_twentieth_costs_the_others_5_percent_of_a_round_and_is_in_some_parts(tmp_path: Path) -> None:
    """As 1 Mbit/s among seven of 20: it is planned for what is up in time, and gets the result when that is decided."""
    rules = timed_rules()
    without = TimedSwarm.make(tmp_path / "without", WORKERS, rules)
    without.play(11)
    with_slow = TimedSwarm.make(tmp_path / "with", [*WORKERS, "slow"], rules)
    with_slow.play(11, links={"slow": SLOW}, newcomers=["slow"])
    usual, now = mean(without.round_seconds(6, 11)), mean(with_slow.round_seconds(6, 11))
    assert now <= 1.05 * usual, f"{now:.2f} s instead of {usual:.2f} s"
    log, slow = with_slow.log, with_slow.peers[-1].peer
    for round_ in range(6, 12):
        commit = log.commit(round_)
        listed = listed_values(commit, slow, rules.part_sizes(0))
        entry = commit.member(slow)
        assert entry is not None
        assert 0 < listed < rules.layout.num_values / 2
        assert not entry.reachable  # it neither coordinates nor averages for others
    for outcome in with_slow.peers[-1].outcomes[-3:]:
        num_taken = sum(end - first for first, end in outcome.taken)
        assert 0 < num_taken == round(outcome.listed * rules.layout.num_values)
    others = [outcome.listed for peer in with_slow.peers[1:-1] for outcome in peer.outcomes]
    assert set(others) == {1.0}


# --- seconds lost in 100 rounds: under 1 % of one period


@pytest.mark.parametrize(
    ("rogue", "period_seconds", "num_rounds"), [("stuck", 300, 40), ("flicker", 300, 40), ("trickle", 1000, 64)]
)
def test_who_does_not_come_or_does_not_send_costs_under_1_percent_of_a_period_in_100_rounds(
    tmp_path: Path, rogue: str, period_seconds: float, num_rounds: int
) -> None:
    """Stuck: is there and never knocks again. Flicker: knocks every second round. Trickle: sends a byte a second.

    Counted are so many rounds' seconds past what a round usually takes, from when it is known how late knocks come.
    """
    rules = rules_for(DEFAULTS, pace="time")
    swarm = TimedSwarm.make(tmp_path, ["ann", "ben", "cleo", rogue], rules, period_seconds=period_seconds)
    if rogue == "stuck":
        swarm.peers[-1].max_rounds = 8
    first = 3 if rogue == "trickle" else 8
    last = first + num_rounds - 1
    swarm.play(last, quick=True, newcomers=[rogue], trickling=[rogue] if rogue == "trickle" else [])
    seconds = swarm.round_seconds(first, last)
    lost_seconds = sum(seconds) - median(seconds) * num_rounds
    assert 0 < lost_seconds < 0.01 * period_seconds * num_rounds / 100
    others = [sum(outcome.listed for outcome in peer.outcomes) for peer in swarm.peers[1:4]]
    assert min(others) >= last - 2, "no contribution of theirs was left out"
