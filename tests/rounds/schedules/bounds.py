"""What the settings promise, step by step: schedules state their bounds with these."""

from schedules.schedule import Bound
from swarm_diloco.rounds.coordinator import PROBE_SECONDS
from swarm_diloco.rounds.session import DIAL_SECONDS, RETRY_SECONDS
from swarm_diloco.rounds.settings import RoundSettings

LONGEST_PAUSE_SECONDS = 10.0  # between two candidates that nobody reaches (session)


def ballot(rounds: RoundSettings, *, opening: bool = True) -> Bound:
    """A ballot whose coordinator lives: patience for who is missing, then the plan's deadline."""
    seconds = rounds.opening_seconds * opening + rounds.deadline_seconds
    return Bound(seconds=seconds, why=f"{'patience + ' * opening}deadline")


def notice(rounds: RoundSettings, *, times: int = 1) -> Bound:
    """A dead or frozen coordinator is noticed by its silence, or by a dial that finds nobody."""
    seconds = max(rounds.silence_seconds, DIAL_SECONDS) + RETRY_SECONDS
    prefix = "" if times == 1 else f"{times} × "
    return Bound(seconds=times * seconds, why=f"{prefix}(silence or dial + retry)")


def next_ballot(rounds: RoundSettings, *, times: int = 1) -> Bound:
    """So many coordinators are lost one after the other; the next one's ballot decides."""
    return notice(rounds, times=times) + ballot(rounds)


def failed_ballot(rounds: RoundSettings) -> Bound:
    """A ballot that lives and comes to nothing runs to its deadline; then the next one."""
    return Bound(seconds=ballot(rounds).seconds, why="a ballot") + next_ballot(rounds)


def turn(*, times: int) -> Bound:
    """Each dead candidate of the last commits has its turn once more: a dial in vain and the longest pause."""
    return Bound(seconds=times * (DIAL_SECONDS + LONGEST_PAUSE_SECONDS), why=f"{times} × (dial + longest pause)")


def degraded(rounds: RoundSettings, *, dead: int) -> Bound:
    """Without a majority: overdue for so long, those who are left gather, and one of them decides with them."""
    gathering = 2 * rounds.silence_seconds + PROBE_SECONDS
    wait = Bound(seconds=rounds.degraded_seconds + gathering, why="degraded_seconds + gathering")
    return wait + turn(times=dead) + ballot(rounds)


def alone(rounds: RoundSettings, *, dead: int) -> Bound:
    wait = rounds.alone_seconds + 2 * rounds.silence_seconds + PROBE_SECONDS
    return Bound(seconds=wait, why="alone_seconds + looking for anybody") + turn(times=dead) + ballot(rounds)
