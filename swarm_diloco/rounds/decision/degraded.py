"""A round decided without the council's majority, by those who are left (protocol rule 10).

When a round is long overdue, the members of the last commits that still reach each other, and newcomers that knock,
decide it among themselves. A knock at a degraded ballot (`FIRST_DEGRADED` and up) is a promise like any other, so that
its sender votes at no lower ballot of the round any more: who has come here has left the council's vote. The plan is
everybody whose knock is in; more than half of it decides. Two halves that cannot reach each other may both decide: a
fork, which the log's digests show as soon as they meet.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swarm_diloco.diloco.ledger import Commit, degraded_message
from swarm_diloco.errors import RecordError
from swarm_diloco.network.messages import FIRST_DEGRADED, Propose
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.decision.ballot import Ballot
from swarm_diloco.rounds.decision.checks import adopted, check_commit, is_as_knocked, is_degraded_plan, is_promise
from swarm_diloco.rounds.decision.voter import View


def is_degraded(ballot: int) -> bool:
    return ballot >= FIRST_DEGRADED


def plan_of(promises: Sequence[Signed]) -> tuple[str, ...]:
    """Whom a degraded certificate names: everybody whose knock came with the proposal."""
    return tuple(sorted({signed.sender for signed in promises}))


@dataclass(slots=True, kw_only=True)
class DegradedBallot(Ballot):
    """`expected` are the recent commits' members: those whom the caller does not reach have `left`."""

    may_be_alone: bool = False  # nobody known answers, for long enough
    may_pass_over: bool = False  # for so long nobody has brought the parts of a vote that is to be adopted

    @property
    def voters(self) -> Collection[str]:
        return plan_of(self._promises)

    def can_decide(self, present: Collection[str], now: float) -> bool:
        if self.me not in present or self._opened_at is None or self._waits(self._opened_at, now):
            return False
        return len(present) > 1 or self.may_be_alone

    def _promisers(self, present: Collection[str]) -> list[str]:
        return sorted(present)

    def _adoptable(self) -> bytes | None:
        without: set[bytes] = set()
        while self.may_pass_over and (commit_bytes := adopted(self.view, self.ballot, self._promises, without)):
            if not self._is_nowhere(Commit.decode(commit_bytes)):
                break
            without.add(commit_bytes)
            if self._adopting and self._adopting.encode() == commit_bytes:
                self._adopting = None
        return adopted(self.view, self.ballot, self._promises, without)

    def _others(self, _commit_bytes: bytes) -> list[str]:
        return []  # its plan is everybody who is here, until `may_pass_over`

    def _is_decisive(self, votes: Collection[str]) -> bool:
        return 2 * len(votes) > len(self._promises)

    def _vote_message(self, digest: bytes) -> bytes:
        plan = self._degraded_plan()
        return degraded_message(self.view.rules.run_id, self.view.round, self.ballot, digest, plan)

    def _degraded_plan(self) -> tuple[str, ...]:
        return plan_of(self._promises)


@dataclass(frozen=True, slots=True)
class DegradedProposal:
    """A proposal at a degraded ballot that may be voted for."""

    commit: Commit
    plan: tuple[str, ...]
    is_adopted: bool


def check_degraded_proposal(
    view: View, ballot: int, proposal: Propose, promises: Sequence[Signed], own: Signed, *, may_pass_over: bool
) -> DegradedProposal:
    """What a peer of the plan checks before it votes, but for the parts, which it must hold as well.

    `promises` are the proposal's knocks, signatures verified; `own` is this peer's knock at this ballot.
    `may_pass_over`: this peer, too, has waited long enough for the parts of an adopted vote. Raises RecordError.
    """
    plan = plan_of(promises)
    if own.sender not in plan or not all(is_promise(view, ballot, signed) for signed in promises):
        raise RecordError("degraded proposal: its plan lacks me, or a knock at its ballot")
    if not is_degraded_plan(view, plan):
        raise RecordError("degraded proposal: nobody of the last commits is in its plan, or too many are")
    must = adopted(view, ballot, promises)
    if must not in (None, proposal.commit_bytes) and not may_pass_over:
        raise RecordError("degraded proposal: a vote that must be adopted is passed over")
    commit = Commit.decode(proposal.commit_bytes)
    check_commit(view, commit, is_degraded=True)
    is_adopted = must == proposal.commit_bytes
    if not is_adopted and not is_as_knocked(commit.member(own.sender), own):
        raise RecordError("degraded proposal: my entry is not as I knocked")
    return DegradedProposal(commit, plan, is_adopted)
