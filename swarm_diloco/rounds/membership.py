"""Whom a round waits for and how its work is shared out. Choices of a coordinator: no vote depends on them."""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median, quantiles

from swarm_diloco.diloco.ledger import Commit
from swarm_diloco.rounds.settings import RunRules

MISSES_REMEMBERED_ROUNDS = 64
MAX_PENALTY = 5  # a peer often waited for in vain must be in 2^5 commits in a row to be waited for again
ROUNDS_REMEMBERED = 20
ROUNDS_NEEDED = 5  # of knock lateness before patience follows it


class Attendance:
    """Whom this peer has waited for in vain, and how late knocks come: what patience is made of."""

    def __init__(self) -> None:
        self._misses: dict[str, deque[int]] = {}  # rounds
        self._left: set[str] = set()
        self._lateness: deque[float] = deque(maxlen=ROUNDS_REMEMBERED)  # seconds: a round's 90th percentile
        self._durations: deque[float] = deque(maxlen=ROUNDS_REMEMBERED)  # seconds from plan to decided

    def expected(self, commits: Sequence[Commit]) -> set[str]:
        """The newest commit's members, late ones included, less those who left or are on probation.

        `commits` are the chain's newest, oldest first.
        """
        return {
            member.peer
            for member in commits[-1].members
            if member.peer not in self._left and not self._is_on_probation(member.peer, commits)
        }

    def _is_on_probation(self, peer: str, commits: Sequence[Commit]) -> bool:
        newest = commits[-1].round
        misses = [round_ for round_ in self._misses.get(peer, ()) if round_ > newest - MISSES_REMEMBERED_ROUNDS]
        if not misses:
            return False
        needed: int = 2 ** min(len(misses), MAX_PENALTY)
        present = 0
        for commit in reversed(commits):
            if commit.round <= misses[-1] or commit.member(peer) is None:
                break
            present += 1
        return present < needed

    def has_missed(self, peer: str, round_: int) -> bool:
        """Whether the peer was waited for in vain of late."""
        return any(missed > round_ - MISSES_REMEMBERED_ROUNDS for missed in self._misses.get(peer, ()))

    def missed(self, peer: str, round_: int) -> None:
        """A plan was made without the peer, after waiting for it."""
        rounds = self._misses.setdefault(peer, deque(maxlen=MISSES_REMEMBERED_ROUNDS))
        if not rounds or rounds[-1] != round_:
            rounds.append(round_)

    def left(self, peer: str) -> None:
        self._left.add(peer)

    def knocked(self, peer: str) -> None:
        self._left.discard(peer)

    def opened(self, lateness_seconds: Sequence[float]) -> None:
        """One round's knocks, in seconds after its opening."""
        values = [max(0.0, seconds) for seconds in lateness_seconds]
        if len(values) > 1:
            self._lateness.append(quantiles(values, n=10, method="inclusive")[-1])
        elif values:
            self._lateness.append(values[0])

    def decided(self, seconds: float) -> None:
        """From this round's plan to its decision."""
        self._durations.append(seconds)

    def patience_seconds(self, rules: RunRules, period_seconds: float) -> float:
        """3 × the usual lateness, within the manifest's floor and 5 % of the period."""
        rounds = rules.rounds
        if len(self._lateness) < ROUNDS_NEEDED or rules.schedule.pace == "steps":
            return rounds.opening_seconds
        usual = 3 * quantiles(self._lateness, n=10, method="inclusive")[-1]
        ceiling = max(rounds.patience_floor_seconds, 0.05 * period_seconds)
        return min(max(usual, rounds.patience_floor_seconds), ceiling)

    def deadline_seconds(self, rules: RunRules) -> float:
        """3 × the median time from plan to decision; the manifest's first deadline while nothing is known."""
        rounds = rules.rounds
        if not self._durations:
            return rounds.deadline_seconds
        usual = 3 * median(self._durations)
        return min(max(rounds.deadline_floor_seconds, usual), rounds.deadline_ceiling_seconds)


def share_out(num_parts: int, upload_kilobits: Mapping[int, int]) -> list[int]:
    """A reducer for each part, so that each one's number follows its upload rate and its parts lie spread out.

    `upload_kilobits` maps the members that may reduce to their rates; an unknown rate (0) counts as the median of the
    known ones. At each part the reducer furthest behind its share takes it.
    """
    if not upload_kilobits:
        raise ValueError("nobody can reduce")
    known = [rate for rate in upload_kilobits.values() if rate]
    usual = median(known) if known else 1
    rates = {member: rate or usual for member, rate in upload_kilobits.items()}
    total = sum(rates.values())
    taken = dict.fromkeys(rates, 0)
    shares: list[int] = []
    for part in range(1, num_parts + 1):
        member = max(sorted(rates), key=lambda member: rates[member] / total * part - taken[member])
        taken[member] += 1
        shares.append(member)
    return shares
