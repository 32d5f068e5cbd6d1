"""What one slow or silent peer costs the others, in virtual seconds (PROTOCOL, Schedules, *Waiting*)."""

from pathlib import Path
from statistics import mean

from swarm_diloco.diloco.ledger import listed_values
from waiting_swarm import SLOW, TimedSwarm, timed_rules

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
