"""One ballot of a council of three, with its clock and all that it has said: for the tests of rounds/decision."""

from dataclasses import dataclass, field, replace

from small_swarm import QUICK, identity, rules_for
from swarm_diloco.diloco.ledger import Commit, Head, Member, digest_of, vote_message
from swarm_diloco.diloco.records import HASH_BYTES, hash_of
from swarm_diloco.network.messages import Knock, Propose, Sealed, VoteCast
from swarm_diloco.network.wire import Signed, sign
from swarm_diloco.rounds.council import council_of
from swarm_diloco.rounds.decision.ballot import (
    Ballot,
    Pacing,
    SendProposal,
)
from swarm_diloco.rounds.decision.voter import View

RULES = rules_for(replace(QUICK, group_limit=6))
NUM_PARTS = len(RULES.part_sizes(0))
PREV = hash_of(b"the commit before")
NAMES = ["ann", "ben", "cleo", "dan"]
IDS = {identity(name).peer: identity(name) for name in [*NAMES, "eve", "fay", "gus"]}
COUNCIL = council_of(
    RULES.run_id, 1, [Member(identity(name).peer, 1, 0, 0, True, (), bytes(HASH_BYTES)) for name in NAMES[:3]]
)
C0, C1, C2 = COUNCIL.candidates
OUTSIDER, EVE = identity("dan").peer, identity("eve").peer
VIEW = View(
    rules=RULES,
    round=1,
    fragment=0,
    prev=PREV,
    anchor=PREV,
    base=hash_of(b"the state"),
    council=COUNCIL,
    tokens_credited={},
)


def knock(peer: str, ballot: int = 0, *, weight: int = 100, prev: bytes = PREV, **fields: object) -> Signed:
    message = Knock(
        **{"fragment": 0, "base": VIEW.base, "weight": weight, "tokens_to": weight, "reachable": True, **fields}
    )  # type: ignore[arg-type]
    return sign(IDS[peer], run=RULES.run_id, round_=1, ballot=ballot, head=Head(0, prev), message=message)


def ballot_of(ballot: int = 0, *, expected: set[str] | None = None, own_vote: VoteCast | None = None) -> Ballot:
    return Ballot(
        view=VIEW,
        ballot=ballot,
        me=COUNCIL.candidate(ballot),
        expected=expected if expected is not None else set(),
        pacing=Pacing(patience=5.0, deadline=10.0),
        own_vote=own_vote,
    )


@dataclass
class Round:
    """A ballot with its clock and what it has said."""

    ballot: Ballot
    now: float = 0.0
    actions: list[object] = field(default_factory=list)

    def knock(self, *knocks: Signed) -> None:
        for signed in knocks:
            assert self.ballot.knocked(signed, self.now) is None
        self.advance()

    def advance(self, to: float | None = None) -> None:
        self.now = self.now if to is None else to
        self.actions += self.ballot.advance(self.now, 0)

    def said(self, kind: type) -> list[object]:
        return [action for action in self.actions if isinstance(action, kind)]

    def seal(self, parts: range | None = None, *, held: bool = True, tag: bytes = b"") -> list[bytes]:
        assert self.ballot.plan is not None
        hashes = []
        for index in parts if parts is not None else range(NUM_PARTS):
            part = self.ballot.plan.parts[index]
            reducer = self.ballot.plan.members[part.reducer][0]
            hashes.append(hash_of(b"part %d %d" % (index, part.attempt) + tag))
            self.ballot.sealed(reducer, Sealed(index, part.attempt, hashes[-1], part.senders))
            if held:
                self.ballot.held(hashes[-1])
        self.advance()
        return hashes

    def vote(self, *peers: str) -> None:
        assert self.ballot.proposal is not None
        digest = digest_of(self.ballot.proposal.commit_bytes)
        message = vote_message(RULES.run_id, 1, self.ballot.ballot, digest)
        for peer in peers:
            self.ballot.voted(peer, digest, IDS[peer].sign(message))
        self.advance()

    @property
    def proposed(self) -> Commit:
        (proposal,) = self.said(SendProposal)
        assert isinstance(proposal, SendProposal)
        return Commit.decode(proposal.proposal.commit_bytes)


def proposal_of(commit: Commit, *promises: Signed) -> Propose:
    return Propose(commit.encode(), tuple(signed.frame for signed in promises))


def finished_commit() -> Commit:
    """A right commit of this round, as another ballot's coordinator proposed it."""
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1), knock(C2))
    round_.seal()
    return round_.proposed
