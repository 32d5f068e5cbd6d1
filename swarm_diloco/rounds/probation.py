"""Who was waited for in vain, and how long nobody waits for it again (protocol rule 4).

After k misses in the last 64 rounds, at most 5, a peer has to come 2^k times in a row before it is waited for. So an
absence costs once, and who is there and never comes costs nearly nothing.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from swarm_diloco.diloco.ledger import Commit

MISSES_REMEMBERED_ROUNDS = 64
MAX_PENALTY = 5
MAX_PEERS = 4096  # remembered; of more the one with the oldest miss is forgotten


@dataclass(slots=True)
class _Misses:
    rounds: deque[int] = field(default_factory=lambda: deque(maxlen=MISSES_REMEMBERED_ROUNDS))
    times_come: int = 0  # in a row since the last one
    came_at: int = -1  # round


class Probation:
    """Of any kind of wait. Rounds never go backwards."""

    def __init__(self) -> None:
        self._misses: dict[str, _Misses] = {}

    def missed(self, peer: str, round_: int) -> None:
        """It was waited for in vain; told twice, it counts once a round."""
        misses = self._misses.pop(peer, None) or _Misses()
        self._misses[peer] = misses  # the newest last
        misses.times_come = 0
        if not misses.rounds or misses.rounds[-1] != round_:
            misses.rounds.append(round_)
        if len(self._misses) > MAX_PEERS:
            del self._misses[next(iter(self._misses))]

    def came(self, peer: str, round_: int) -> None:
        misses = self._misses.get(peer)
        if misses and round_ > max(misses.rounds[-1], misses.came_at):
            misses.times_come += 1
            misses.came_at = round_

    def happened(self, round_: int, present: Collection[str]) -> None:
        """A round in which it could be in time: who did not come, waited for or not, begins to count anew."""
        for peer, misses in self._misses.items():
            if peer in present:
                self.came(peer, round_)
            else:
                misses.times_come = 0

    def num_misses(self, peer: str, round_: int) -> int:
        """In the rounds that are remembered, as of `round_`."""
        misses = self._misses.get(peer)
        oldest = round_ - MISSES_REMEMBERED_ROUNDS
        return sum(missed > oldest for missed in misses.rounds) if misses else 0

    def is_on(self, peer: str, round_: int) -> bool:
        """Whether nobody is to wait for it."""
        num_misses = self.num_misses(peer, round_)
        return num_misses > 0 and self._misses[peer].times_come < 2 ** min(num_misses, MAX_PENALTY)

    def on(self, round_: int) -> frozenset[str]:
        return frozenset(peer for peer in self._misses if self.is_on(peer, round_))


def absences(commits: Sequence[Commit]) -> Probation:
    """What the log alone shows, so that one coordinator's wait in vain is not repeated by all the others.

    `commits` are the chain's newest, oldest first. Missed has who was a member and is not, and who trains and came too
    late for the plan.
    """
    probation = Probation()
    before: set[str] = set()
    for commit in commits:
        present = {member.peer for member in commit.members}
        late = {member.peer for member in commit.members if member.weight == 0 < member.tokens_to}
        expected = {peer for peer in before if not probation.is_on(peer, commit.round)}
        probation.happened(commit.round, present)
        for peer in expected & (late | (before - present)):
            probation.missed(peer, commit.round)
        before = present
    return probation
