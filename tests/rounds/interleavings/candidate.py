"""One peer's ballots: as candidacy and coordinator do, without their clocks and streams."""

from typing import TYPE_CHECKING

from interleavings.surroundings import READY, Waiting
from swarm_diloco.diloco.ledger import Header
from swarm_diloco.network.messages import Decided, Promised, Propose, Sealed, VoteCast
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.decision.ballot import Ballot, Decide, FetchPart, Pacing, SendPlan, SendProposal
from swarm_diloco.rounds.decision.degraded import DegradedBallot, is_degraded
from swarm_diloco.rounds.decision.voter import View

if TYPE_CHECKING:
    from interleavings.peer import Peer

Key = tuple[int, int]  # round, ballot
DEADLINE_SECONDS = 20.0


class Candidate:
    def __init__(self, peer: "Peer") -> None:
        self.peer = peer
        self.world = peer.world
        self.ballots: dict[Key, Ballot] = {}
        self.shown: set[Key] = set()  # whose proposal has left

    def ballot_of(self, view: View, ballot: int) -> Ballot:
        """Its coordinator's side; who coordinates a ballot knocks at it too."""
        key = (view.round, ballot)
        if key not in self.ballots:
            self.ballots[key] = self._degraded(view, ballot) if is_degraded(ballot) else self._normal(view, ballot)
            if not self.world.conduct.takes_this_ballots_knocks_alone:
                for knock in [knock for other in self.ballots.values() for knock in other.knocks.values()]:
                    self.ballots[key].knocked(knock, self.peer.now)
            self.world.start(self.peer, view.round, self.peer.knock(view.round, ballot))
            called = [member.peer for member in view.recent] if is_degraded(ballot) else view.council.members
            for name in called:
                if ballot > 0 and self.world.chance.random() < 0.5:  # nobody else may be here: it calls
                    self.peer.send(name, *key, Promised(ballot))
        return self.ballots[key]

    def _normal(self, view: View, ballot: int) -> Ballot:
        log = self.peer.log
        return Ballot(
            view=view,
            ballot=ballot,
            me=self.peer.name,
            expected={member.peer for member in log.commit(log.head.round).members},
            pacing=self._pacing(),
            own_vote=self._own_vote(self.peer.voter.vote_cast(view)),
        )

    def _degraded(self, view: View, ballot: int) -> Ballot:
        return DegradedBallot(
            view=view,
            ballot=ballot,
            me=self.peer.name,
            expected={member.peer for member in view.recent},
            pacing=self._pacing(),
            own_vote=self._own_vote(self.peer.voter.degraded_vote_cast(view)),
            may_be_alone=self.world.is_alone(self.peer),
            may_pass_over=self.world.may_pass_over(),
        )

    def _pacing(self) -> Pacing:
        return Pacing(patience=self.world.chance.choice((0.0, 8.0)), deadline=DEADLINE_SECONDS)

    def _own_vote(self, cast: VoteCast | None) -> VoteCast | None:
        return cast if self.world.conduct.resumes_its_proposal else None

    def advance(self, key: Key) -> None:
        """Do what the ballot says."""
        ballot = self.ballots.get(key)
        if ballot is None:
            return
        for action in ballot.advance(self.peer.now, 0):
            match action:
                case SendPlan(plan):
                    for member, _ in plan.members:
                        self.peer.send(member, *key, plan)
                case SendProposal(proposal):
                    self.world.start(self.peer, key[0], self.propose(ballot, key, proposal))
                case FetchPart(_, part_hash):
                    self.world.start(self.peer, key[0], self.fetch(ballot, key, part_hash))
                case Decide(header):
                    self.world.witness.accepted(ballot.view, header)
                    self.announce(key, header)
                case _:
                    raise AssertionError(f"no peer has another state here: {action}")

    def announce(self, key: Key, header: Header) -> None:
        for name in self.world.everybody():
            self.peer.send(name, *key, Decided(header.encode()))

    def propose(self, ballot: Ballot, key: Key, proposal: Propose) -> Waiting:
        """Vote first: after a crash between the two this peer would else propose another commit at the same ballot."""
        if not self.world.conduct.votes_before_it_proposes:
            self.show(ballot, proposal)
        cast = yield from self.peer.vote_for(ballot.view, ballot.ballot, proposal)
        if cast is None:
            ballot.give_up()
            return
        ballot.voted(self.peer.name, cast.commit_digest, cast.signature)
        self.show(ballot, proposal)
        self.advance(key)

    def show(self, ballot: Ballot, proposal: Propose) -> None:
        self.world.witness.proposal_left(self.peer.name, ballot, proposal.commit_bytes)
        key = (ballot.view.round, ballot.ballot)
        self.shown.add(key)
        for member in ballot.voters:
            if member != self.peer.name:
                self.peer.send(member, *key, proposal)

    def fetch(self, ballot: Ballot, key: Key, part_hash: bytes) -> Waiting:
        yield READY
        if self.world.give_part(self.peer, part_hash):
            ballot.held(part_hash)
        else:
            ballot.unavailable(part_hash)
        self.advance(key)

    # --- what it hears

    def hear_knock(self, signed: Signed) -> None:
        view = self.peer.log.view_of(signed.round)
        promised = self.peer.voter.promised(view)
        if self.peer.candidate_of(view, signed.ballot) != self.peer.name:
            return
        is_strict = self.world.conduct.takes_this_ballots_knocks_alone
        if promised > signed.ballot and is_strict:
            self.peer.send(signed.sender, signed.round, signed.ballot, Promised(promised))
            return
        ballots = [self.ballot_of(view, signed.ballot)]
        if not is_strict:
            ballots += [other for key, other in self.ballots.items() if key[0] == signed.round]
        for ballot in ballots:
            refused = ballot.knocked(signed, self.peer.now)
            self.world.counts["knocks refused"] += refused is not None
            self._repeat(ballot, signed.sender)
            self.advance((signed.round, ballot.ballot))

    def _repeat(self, ballot: Ballot, to: str) -> None:
        """Who comes late or again hears what the others have heard."""
        key = (ballot.view.round, ballot.ballot)
        if ballot.plan is not None:
            self.peer.send(to, *key, ballot.plan)
        if ballot.proposal is not None and key in self.shown:
            self.peer.send(to, *key, ballot.proposal)
        if ballot.decided is not None:
            self.peer.send(to, *key, Decided(ballot.decided.encode()))

    def hear_seal(self, sender: str, key: Key, sealed: Sealed) -> None:
        if key in self.ballots:
            if self.world.give_part(self.peer, sealed.result_hash):
                self.ballots[key].held(sealed.result_hash)
            self.ballots[key].sealed(sender, sealed)
            self.advance(key)

    def hear_vote(self, sender: str, key: Key, digest: bytes, signature: bytes) -> None:
        keys = [key]
        if not self.world.conduct.takes_this_ballots_votes_alone:
            keys = [other for other in self.ballots if other[0] == key[0]]
        for each in keys:
            if each in self.ballots:
                self.ballots[each].voted(sender, digest, signature)
                self.advance(each)

    def lost(self, name: str) -> None:
        """A peer's streams have ended."""
        for ballot in self.ballots.values():
            ballot.left(name)

    def conclude(self, round_: int) -> None:
        for key in [key for key in self.ballots if key[0] <= round_]:
            del self.ballots[key]
