"""Whom a round waits for, and how long. Choices of a coordinator: no vote depends on them."""

from collections import deque
from collections.abc import Sequence
from statistics import median, quantiles

from swarm_diloco.diloco.ledger import Commit, Kind, is_in_bitmap
from swarm_diloco.network.messages import Plan
from swarm_diloco.rounds.probation import Probation, absences
from swarm_diloco.rounds.settings import RunRules

MAX_LATE = 64  # peers
MAX_LATE_MISSES = 3  # of one who is waited for because it came too late; then it has to be in time once
ROUNDS_REMEMBERED = 20
ROUNDS_NEEDED = 5  # of knock lateness before patience follows it


class Attendance:
    """Whom this peer has waited for in vain, and how late knocks come: what patience is made of."""

    def __init__(self) -> None:
        self.senders = Probation()  # whom this peer waited for as a reducer, and who sent nobody anything
        self.reducers = Probation()  # and as a coordinator, for averaged parts
        self._in_vain = Probation()  # what this peer saw as a coordinator
        self._shown = Probation()  # what the log shows
        self._looked_at = -1  # the newest commit that was looked at
        self._left: set[str] = set()
        self._late: dict[str, None] = {}  # in order of coming
        self._lateness: deque[float] = deque(maxlen=ROUNDS_REMEMBERED)  # seconds: a round's 90th percentile
        self._durations: deque[float] = deque(maxlen=ROUNDS_REMEMBERED)  # seconds from plan to decided

    def expected(self, commits: Sequence[Commit]) -> set[str]:
        """The newest commit's members and who came too late for it, less those who left or are on probation.

        `commits` are the chain's newest, oldest first.
        """
        self._look(commits)
        newest = commits[-1]
        members = {
            member.peer
            for member in newest.members
            if not self._shown.is_on(member.peer, newest.round) and not self._in_vain.is_on(member.peer, newest.round)
        }
        late = {peer for peer in self._late if self._in_vain.num_misses(peer, newest.round) < MAX_LATE_MISSES}
        return (members | late) - self._left

    def _look(self, commits: Sequence[Commit]) -> None:
        if commits[-1].round <= self._looked_at:
            return
        self._shown = absences(commits)
        for commit in commits:
            if commit.round > self._looked_at:
                self._in_vain.happened(commit.round, {member.peer for member in commit.members})
        self._looked_at = commits[-1].round

    def waited_in_vain_for(self, peer: str, round_: int) -> bool:
        """Whether this very peer has, as a coordinator."""
        return self._in_vain.num_misses(peer, round_) > 0

    def has_missed(self, peer: str, commits: Sequence[Commit]) -> bool:
        """Whether the peer was waited for in vain of late."""
        self._look(commits)
        round_ = commits[-1].round
        return self._in_vain.num_misses(peer, round_) + self._shown.num_misses(peer, round_) > 0

    def missed(self, peer: str, round_: int) -> None:
        """A plan was made without the peer, after waiting for it."""
        self._in_vain.missed(peer, round_)
        self._late.pop(peer, None)

    def came_late(self, peer: str) -> None:
        """Its knock was for a round that is decided: where rounds are short, it would else come too late for ever."""
        self._late[peer] = None
        if len(self._late) > MAX_LATE:
            del self._late[next(iter(self._late))]

    def left(self, peer: str) -> None:
        self._left.add(peer)
        self._late.pop(peer, None)

    def has_left(self, peer: str) -> bool:
        """Whether the peer has said bye and not come again."""
        return peer in self._left

    def knocked(self, peer: str) -> None:
        self._left.discard(peer)
        self._late.pop(peer, None)

    def planned(self, plan: Plan, commits: Sequence[Commit], lateness_seconds: float) -> None:
        """Another's plan came so long after the round was due: so late was the last, if all expected are in it."""
        if self.expected(commits) <= {peer for peer, _ in plan.members}:
            self.opened([lateness_seconds])

    def averaged(self, plan: Plan, commit: Commit) -> None:
        """A round's plan and what became of it: who is in none of its parts has sent nothing."""
        for index, (peer, weight) in enumerate(plan.members):
            if commit.kind is Kind.NORMAL and weight and any(is_in_bitmap(part.senders, index) for part in plan.parts):
                listed = next((i for i, member in enumerate(commit.members) if member.peer == peer), None)
                if listed is not None and any(part.lists(listed) for part in commit.parts):
                    self.senders.came(peer, commit.round)
                else:
                    self.senders.missed(peer, commit.round)

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

    @property
    def usual_seconds(self) -> float | None:
        """The median time from plan to decision; None while nothing is known."""
        return median(self._durations) if self._durations else None

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
        usual = self.usual_seconds
        if usual is None:
            return rounds.deadline_seconds
        return min(max(rounds.deadline_floor_seconds, 3 * usual), rounds.deadline_ceiling_seconds)
