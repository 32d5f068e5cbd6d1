"""The real Voter, Ballot and check_proposal under every disorder that a network and crashes can make.

Messages are lost, doubled and delivered in any order, several coordinators work at once, peers crash at any point and
come back with their vote file. Whatever happens, a round has one decided commit. Rules left out on purpose are found.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pytest

from small_swarm import QUICK, identity, rules_for
from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.diloco.ledger import Commit, Head, Header, Member, digest_of
from swarm_diloco.diloco.records import HASH_BYTES, hash_of
from swarm_diloco.errors import RecordError
from swarm_diloco.network.messages import Knock, Propose, Sealed
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.council import council_of
from swarm_diloco.rounds.decision import ballot as ballot_module
from swarm_diloco.rounds.decision import checks
from swarm_diloco.rounds.decision.ballot import Ballot, Decide, FetchPart, Pacing, SendPlan, SendProposal
from swarm_diloco.rounds.decision.checks import check_proposal
from swarm_diloco.rounds.decision.voter import View, Voter

PEERS = [identity(f"council {number}").peer for number in range(5)]
RULES = replace(rules_for(QUICK), layout=ParameterLayout.of([("weight", (8,))]))
GENESIS_DIGEST = hash_of(b"genesis")
ROUNDS = 2
SIGNATURE = bytes(64)  # signatures are checked in test_wire; here they would take most of the time


class Split(Exception):
    """Two commits were decided for one round."""


@lru_cache(maxsize=4096)
def view_of(round_: int, prev: bytes, members: tuple[str, ...]) -> View:
    entries = [Member(peer, 1, 0, 0, True, (), bytes(HASH_BYTES)) for peer in members]
    return View(
        rules=RULES,
        round=round_,
        fragment=0,
        prev=prev,
        anchor=prev,
        base=hash_of(prev),
        council=council_of(RULES.run_id, round_, entries),
        tokens_credited={},
    )


@dataclass
class Peer:
    name: str
    members: tuple[str, ...]
    voter: Voter = field(default_factory=Voter)
    vote_file: bytes = field(default_factory=lambda: Voter().encode())
    chain: list[bytes] = field(default_factory=list)  # decided commits
    ballots: dict[tuple[int, int], Ballot] = field(default_factory=dict)

    @property
    def view(self) -> View:
        if not self.chain:
            return view_of(1, GENESIS_DIGEST, self.members)
        last = Commit.decode(self.chain[-1])
        return view_of(len(self.chain) + 1, digest_of(self.chain[-1]), tuple(m.peer for m in last.members))

    def save(self) -> None:
        self.vote_file = self.voter.encode()

    def crash(self, voter: type[Voter]) -> None:
        self.ballots = {}
        self.voter = voter.decode(self.vote_file)


class Chaos:
    """One seed's run. `steps` are taken at random; `decided` holds each round's commit."""

    def __init__(self, seed: int, size: int, voter: type[Voter] = Voter) -> None:
        self.chance = random.Random(seed)
        self.voter = voter
        names = tuple(PEERS[:size])
        self.peers = {name: Peer(name, names, voter()) for name in names}
        self.frames: dict[bytes, Signed] = {}
        self.decided: dict[int, bytes] = {}
        self.messages: list[Callable[[], None]] = []
        self.now = 0.0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += 1
            choice = self.chance.random()
            peer = self.peers[self.chance.choice(list(self.peers))]
            if choice < 0.03:
                peer.crash(self.voter)
            elif choice < 0.2 or not self.messages:
                self.knock(peer)
            else:
                self.deliver()

    def deliver(self) -> None:
        index = self.chance.randrange(len(self.messages))
        message = self.messages[index]
        if self.chance.random() > 0.1:  # else it stays, to come again
            self.messages[index] = self.messages[-1]
            self.messages.pop()
        if self.chance.random() > 0.1:  # else it is lost
            message()

    def post(self, message: Callable[[], None]) -> None:
        self.messages.append(message)

    def knock(self, peer: Peer) -> None:
        view = peer.view
        if view.round > ROUNDS:
            return
        ballot = peer.voter.promised(view) + self.chance.choice((0, 0, 0, 1, 1, 2))
        signed = self.signed_knock(peer, ballot)
        if signed is not None:
            candidate = self.peers.get(view.council.candidate(ballot))
            if candidate is not None:
                self.post(lambda: self.on_knock(candidate, signed))

    def signed_knock(self, peer: Peer, ballot: int) -> Signed | None:
        """The promise is durable before the knock leaves."""
        view = peer.view
        if not peer.voter.promise(view, ballot):
            return None
        peer.save()
        knock = Knock(fragment=0, base=view.base, weight=1, reachable=True, vote=peer.voter.vote_cast(view))
        frame = f"{peer.name} {view.round} {ballot} {len(self.frames)}".encode()
        self.frames[frame] = Signed(peer.name, view.round, ballot, Head(view.round - 1, view.prev), knock, frame)
        return self.frames[frame]

    def on_knock(self, candidate: Peer, signed: Signed) -> None:
        view = candidate.view
        if signed.round != view.round or signed.head.digest != view.prev:
            return
        if candidate.voter.promised(view) > signed.ballot:
            return
        key = (signed.round, signed.ballot)
        if key not in candidate.ballots:
            vote = candidate.voter.vote_cast(view)
            candidate.ballots[key] = Ballot(
                view=view,
                ballot=signed.ballot,
                me=candidate.name,
                expected=set(),
                pacing=Pacing(patience=self.chance.choice((0.0, 8.0)), deadline=1000.0),
                own_vote=vote,
            )
            own = self.signed_knock(candidate, signed.ballot)
            if own is not None:
                candidate.ballots[key].knocked(own, self.now)
        candidate.ballots[key].knocked(signed, self.now)
        self.advance(candidate, key)

    def advance(self, coordinator: Peer, key: tuple[int, int]) -> None:
        ballot = coordinator.ballots.get(key)
        while ballot is not None and (actions := ballot.advance(self.now, 0)):
            for action in actions:
                if coordinator.ballots.get(key) is not ballot:
                    return  # it crashed
                match action:
                    case SendPlan(plan):
                        self.post(lambda: self.on_sealed(coordinator, key))
                        assert len(plan.parts) == 1
                    case FetchPart(_, part_hash):
                        if self.chance.random() < 0.9:
                            ballot.held(part_hash)
                        else:
                            ballot.unavailable(part_hash)
                    case SendProposal(proposal):
                        self.propose(coordinator, key, proposal)
                    case Decide(header):
                        self.decide(header)

    def on_sealed(self, coordinator: Peer, key: tuple[int, int]) -> None:
        ballot = coordinator.ballots.get(key)
        if ballot is None or ballot.plan is None:
            return
        part = ballot.plan.parts[0]
        result_hash = hash_of(self.chance.randbytes(8))  # another group, another result
        ballot.sealed(ballot.plan.members[part.reducer][0], Sealed(0, part.attempt, result_hash, part.senders))
        ballot.held(result_hash)
        self.advance(coordinator, key)

    def propose(self, coordinator: Peer, key: tuple[int, int], proposal: Propose) -> None:
        """The coordinator votes first, and only then does anybody see the proposal."""
        ballot = coordinator.ballots[key]
        self.on_proposal(coordinator, coordinator, key, proposal)
        if coordinator.ballots.get(key) is not ballot:
            return  # it crashed
        cast = coordinator.voter.vote_cast(ballot.view)
        if cast is None or (cast.ballot, cast.commit_bytes) != (key[1], proposal.commit_bytes):
            ballot.give_up()
            return
        if self.chance.random() < 0.1:
            coordinator.crash(self.voter)  # between its vote and the proposal
            return
        for peer in self.peers.values():
            self.post(lambda peer=peer: self.on_proposal(peer, coordinator, key, proposal))

    def on_proposal(self, peer: Peer, coordinator: Peer, key: tuple[int, int], proposal: Propose) -> None:
        view, (round_, ballot) = peer.view, key
        if view.round != round_ or peer.name not in view.council.members:
            return
        promises = [self.frames[frame] for frame in proposal.promises]
        try:
            check_proposal(view, ballot, proposal, promises, None)
        except RecordError:
            return
        if not peer.voter.vote(view, ballot, proposal.commit_bytes):
            return
        peer.save()
        if self.chance.random() < 0.05:
            peer.crash(self.voter)  # between the vote file and the vote
            return
        digest = digest_of(proposal.commit_bytes)
        self.post(lambda: self.on_vote(coordinator, key, peer.name, digest))

    def on_vote(self, coordinator: Peer, key: tuple[int, int], voter: str, digest: bytes) -> None:
        if key in coordinator.ballots:
            coordinator.ballots[key].voted(voter, digest, SIGNATURE)
            self.advance(coordinator, key)

    def decide(self, header: Header) -> None:
        commit = header.commit()
        if self.decided.setdefault(commit.round, header.commit_bytes) != header.commit_bytes:
            raise Split
        for peer in self.peers.values():
            self.post(lambda peer=peer: self.on_decided(peer, header))

    def on_decided(self, peer: Peer, header: Header) -> None:
        commit = header.commit()
        if commit.round == peer.view.round and commit.prev == peer.view.prev:
            peer.chain.append(header.commit_bytes)
            peer.voter.forget_before(commit.round + 1)


@pytest.fixture(autouse=True)
def no_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ballot_module, "is_signed_by", lambda *_: True)


def num_splits(runs: int, size: int, voter: type[Voter] = Voter) -> int:
    splits = 0
    for seed in range(runs):
        try:
            Chaos(seed, size, voter).run(140)
        except Split:
            splits += 1
    return splits


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_round_has_one_decided_commit_whatever_happens(size: int) -> None:
    num_decided = 0
    for seed in range(220):
        chaos = Chaos(seed, size)
        chaos.run(140)
        num_decided += len(chaos.decided)
    assert num_decided > 110  # the disorder still lets rounds come to an end


class ForgetsPromises(Voter):
    """Knocks at a ballot, and votes at a lower one later."""

    def promised(self, view: View) -> int:
        return 0

    def promise(self, view: View, ballot: int) -> bool:
        return True


def test_without_promises_a_round_splits() -> None:
    class Forgetful(ForgetsPromises):
        def vote(self, view: View, ballot: int, commit_bytes: bytes) -> bool:
            cast = self.vote_cast(view)
            if cast is not None and cast.ballot == ballot and cast.commit_bytes != commit_bytes:
                return False
            self._votes.pop((view.round, view.prev), None)
            return super().vote(view, ballot, commit_bytes)

    assert num_splits(150, 3, Forgetful) > 0


def test_without_adopting_a_round_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ballot_module, "adopted", lambda *_: None)
    monkeypatch.setattr(checks, "adopted", lambda *_: None)
    assert num_splits(150, 3) > 0


def test_with_vote_files_that_are_lost_a_round_splits() -> None:
    class Amnesiac(Voter):
        @classmethod
        def decode(cls, data: bytes) -> Voter:
            return cls()

    assert num_splits(200, 3, Amnesiac) > 0
