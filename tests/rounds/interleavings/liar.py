"""A peer that keeps its promises and never votes, but says what is not true wherever it may speak.

More than that no protocol of crash faults bears: one that hides a vote it has given can split a council of three.
"""

from collections.abc import Generator
from dataclasses import replace

from interleavings.candidate import Candidate, Key
from interleavings.peer import Peer
from interleavings.surroundings import Waiting
from swarm_diloco.diloco.ledger import Commit, Header, Vote, digest_of, vote_message
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.network.messages import CastVote, Propose, VoteCast
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.decision.ballot import Ballot
from swarm_diloco.rounds.decision.proposals import void_commit
from swarm_diloco.rounds.decision.voter import View


class Liar(Peer):
    def _boot(self) -> None:
        super()._boot()
        self.heard: dict[int, Commit] = {}  # round -> a proposal's
        self.candidate = LyingCandidate(self)

    def reported_vote(self, view: View, ballot: int) -> VoteCast | None:
        """A vote for something that no honest peer can have voted for, at the highest ballot possible."""
        if self.world.is_quiet:
            return super().reported_vote(view, ballot)
        self.world.counts["false reports"] += 1
        void = void_commit(view, list(self.own_knocks.values()), wall_ms=0)
        match self.world.chance.randrange(5):
            case 4 if view.round in self.heard and self.heard[view.round].prev == view.prev:
                heard = self.heard[view.round]
                parts = tuple(replace(part, result_hash=self.world.chance.randbytes(32)) for part in heard.parts)
                return VoteCast(ballot, replace(heard, parts=parts).encode())  # as right as can be, and nobody has it
            case 0:
                return VoteCast(ballot, b"no commit at all")
            case 1:
                return VoteCast(ballot, replace(void, prev=hash_of(b"another chain")).encode())
            case 2:
                return VoteCast(ballot, replace(void, members=()).encode())  # no majority of the council
            case _:
                return VoteCast(ballot + 1, replace(void, members=self.log.commit(0).members).encode())

    def vote_for(self, view: View, ballot: int, proposal: Propose) -> Generator[bool, None, CastVote | None]:
        return (yield from super().vote_for(view, ballot, proposal)) if self.world.is_quiet else None

    def hear(self, signed: Signed) -> None:
        is_proposal = isinstance(signed.message, Propose) and signed.round == self.next_round
        if is_proposal and not self.world.is_quiet and self.world.chance.random() < 0.5:
            assert isinstance(signed.message, Propose)
            commit = Commit.decode(signed.message.commit_bytes)
            if commit.parts:
                self.heard[signed.round] = commit
            self._claim_decided((signed.round, signed.ballot), signed.message.commit_bytes)
        super().hear(signed)

    def _claim_decided(self, key: Key, commit_bytes: bytes) -> None:
        """With its own vote alone, or with votes of all that are none of theirs."""
        council = self.log.view_of(key[0]).council
        if council.is_majority((self.name,)):
            return
        mine = self.identity.sign(vote_message(self.world.rules.run_id, *key, digest_of(commit_bytes)))
        voters = council.members if self.world.chance.random() < 0.5 else (self.name,)
        self.candidate.announce(key, Header(commit_bytes, key[1], tuple(Vote(peer, mine) for peer in voters)))


class LyingCandidate(Candidate):
    def propose(self, ballot: Ballot, key: Key, proposal: Propose) -> Waiting:
        """Pass over what is to be adopted, with the true promises."""
        if self.world.is_quiet:
            yield from super().propose(ballot, key, proposal)
            return
        void = void_commit(ballot.view, list(ballot.knocks.values()), wall_ms=1)
        lie = Propose(void.encode(), proposal.promises)
        for member in ballot.voters:
            self.peer.send(member, *key, lie)
