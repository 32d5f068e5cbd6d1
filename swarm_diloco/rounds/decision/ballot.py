"""One coordinator's side of a round at one ballot: knocks to a plan, parts to a proposal, votes to a decision."""

from collections.abc import Collection
from dataclasses import dataclass, field

from swarm_diloco.diloco.ledger import Commit, Header, Vote, digest_of, vote_message
from swarm_diloco.network.identity import is_signed_by
from swarm_diloco.network.messages import Knock, Plan, Propose, Sealed, VoteCast
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.decision.checks import adopted
from swarm_diloco.rounds.decision.proposals import knock_of, normal_commit, void_commit
from swarm_diloco.rounds.decision.reducing import PlanSettings, Reducing
from swarm_diloco.rounds.decision.voter import View


@dataclass(frozen=True, slots=True)
class SendPlan:
    plan: Plan


@dataclass(frozen=True, slots=True)
class SendProposal:
    """The coordinator's own vote for it must be durable before anybody sees it: else it could, after a crash, propose
    another commit at the same ballot.
    """

    proposal: Propose


@dataclass(frozen=True, slots=True)
class FetchPart:
    """Get these bytes from any holder; answer with `held` or `unavailable`."""

    part: int
    result_hash: bytes


@dataclass(frozen=True, slots=True)
class Decide:
    header: Header


@dataclass(frozen=True, slots=True)
class Refuse:
    """Its state is not the swarm's, as these knocks of a council's majority show."""

    peer: str
    knocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StateDiffers:
    """A majority of the council has another state than this coordinator."""


Action = SendPlan | SendProposal | FetchPart | Decide | Refuse | StateDiffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """A coordinator's waits, in seconds."""

    patience: float  # for expected members, from the first worker's knock
    deadline: float  # from the plan to the decision


@dataclass(slots=True, kw_only=True)
class Ballot:
    """The coordinator of one round at one ballot. Times are seconds of any one clock that the caller keeps."""

    view: View
    ballot: int
    me: str
    expected: set[str]
    pacing: Pacing
    due_at: float = 0.0  # nobody is late before: who knocks earlier waits
    own_vote: VoteCast | None = None
    doubtful: Collection[str] = ()  # who has failed to average a part of late
    knocks: dict[str, Signed] = field(default_factory=dict)
    late: dict[str, Signed] = field(default_factory=dict)  # came after the plan: the next round waits for them
    plan: Plan | None = None
    proposal: Propose | None = None
    decided: Header | None = None
    _gone: set[str] = field(default_factory=set)
    _opened_at: float | None = None
    _reducing: Reducing | None = None
    _votes: dict[str, Vote] = field(default_factory=dict)
    _held: set[bytes] = field(default_factory=set)
    _unavailable: set[bytes] = field(default_factory=set)
    _adopting: Commit | None = None
    _promises: tuple[Signed, ...] = ()  # the council's knocks on which this ballot's choice rests
    _unproven: set[str] = field(default_factory=set)  # report a vote for parts that they should hold and nobody has
    _strangers: dict[str, Signed] = field(default_factory=dict)
    _failed: bool = False

    # messages in

    def knocked(self, signed: Signed, now: float) -> str | None:
        """Take a knock at this ballot whose signature is right. Returns why it is refused, or None."""
        knock, rules = signed.message, self.view.rules
        assert isinstance(knock, Knock)
        if knock.fragment != self.view.fragment or signed.head.digest != self.view.prev:
            return "the knock is for another chain"
        if knock.weight > rules.rounds.maximum_weight or knock.norm_millionths > rules.rounds.maximum_norm * 1e6:
            return "weight or norm is past the manifest's limit"
        if knock.tokens_from != self.view.tokens_credited.get(signed.sender, 0):
            return "its tokens do not join on to the credited ones"
        known = self.knocks.keys() | self.late.keys()
        if signed.sender not in known and len(known) >= rules.rounds.group_limit:
            return f"the group is full ({rules.rounds.group_limit})"
        self._gone.discard(signed.sender)
        self._strangers.pop(signed.sender, None)
        if knock.base != self.view.base:
            self._strangers[signed.sender] = signed
        elif self.plan is not None and signed.sender not in self.knocks:
            self.late[signed.sender] = signed
        elif self.plan is None:
            self.knocks[signed.sender] = signed
            if knock.weight and self._opened_at is None:
                self._opened_at = max(now, self.due_at)
        return None

    def expect(self, peer: str) -> None:
        """A newcomer says that it trains for this round."""
        if len(self.expected) < self.view.rules.rounds.group_limit:
            self.expected.add(peer)

    def left(self, peer: str) -> None:
        """The peer said bye, or its stream ended, or nobody answers there: wait for it no longer."""
        self._gone.add(peer)

    def sealed(self, peer: str, sealed: Sealed) -> None:
        """A reducer's word that it has averaged a part."""
        if self._reducing is not None:
            self._reducing.sealed(peer, sealed)

    def held(self, result_hash: bytes) -> None:
        """This coordinator has these bytes now."""
        self._held.add(result_hash)

    def unavailable(self, result_hash: bytes) -> None:
        """Nobody that can be asked has these bytes."""
        self._unavailable.add(result_hash)

    def voted(self, peer: str, commit_digest: bytes, signature: bytes) -> None:
        """A council peer's vote; anything else is ignored."""
        if self.proposal is None or peer not in self.voters:
            return
        digest = digest_of(self.proposal.commit_bytes)
        if commit_digest == digest and is_signed_by(peer, self._vote_message(digest), signature):
            self._votes[peer] = Vote(peer, signature)

    def give_up(self) -> None:
        """This coordinator has promised a higher ballot."""
        self._failed = True

    # decisions out

    @property
    def is_over(self) -> bool:
        return self.decided is not None or self._failed

    def advance(self, now: float, wall_ms: int) -> list[Action]:
        """All that is to be done now. Call it after each message and at `wakes_at`."""
        if self.is_over:
            return []
        actions: list[Action] = []
        if self.plan is None and self.proposal is None:
            actions += self._open(now, wall_ms)
        if self._reducing is not None and self.proposal is None:
            actions += self._follow_parts(self._reducing, now, wall_ms)
        if self.proposal is not None and self._is_decisive(self._votes):
            votes = tuple(vote for _, vote in sorted(self._votes.items()))
            self.decided = Header(self.proposal.commit_bytes, self.ballot, votes, self._degraded_plan())
            actions.append(Decide(self.decided))
        return actions

    def wakes_at(self) -> float | None:
        """When `advance` has something to do though no message comes."""
        if self.is_over or self.proposal:
            return None
        if self.plan is None:
            return None if self._opened_at is None else self._opened_at + self.pacing.patience
        assert self._reducing is not None
        return self._reducing.wakes_at()

    # whose knocks and votes it takes; a degraded ballot has other rules (rounds.decision.degraded)

    @property
    def voters(self) -> Collection[str]:
        """Whose votes count."""
        return self.view.council.members

    def can_decide(self, present: Collection[str], _now: float) -> bool:
        """Whether enough peers are here for a decision."""
        return self.view.council.is_majority(present)

    def _promisers(self, _present: Collection[str]) -> list[str]:
        """Those whose knocks go with a proposal."""
        return [peer for peer in self.view.council.members if peer in self.knocks and peer not in self._unproven]

    def _adoptable(self) -> bytes | None:
        """The reported commit that must be proposed again, if there is one."""
        return adopted(self.view, self.ballot, self._promises)

    def _is_decisive(self, votes: Collection[str]) -> bool:
        return self.view.council.is_majority(votes)

    def _vote_message(self, digest: bytes) -> bytes:
        return vote_message(self.view.rules.run_id, self.view.round, self.ballot, digest)

    def _degraded_plan(self) -> tuple[str, ...]:
        return ()

    @property
    def num_contributions(self) -> int:
        return sum(knock_of(signed).weight > 0 for peer, signed in self.knocks.items() if peer not in self._gone)

    def _open(self, now: float, wall_ms: int) -> list[Action]:
        """Refuse other states; adopt a reported vote; else plan when all expected are here or patience has ended."""
        council = self.view.council
        actions: list[Action] = []
        if council.is_majority(self._strangers):
            self._failed = True
            return [StateDiffers()]
        present = {peer for peer in self.knocks if peer not in self._gone}
        if not self.can_decide(present, now):
            return actions
        if self._voted_here and self.me not in self.knocks:
            return actions  # the promises must show the vote that is to be adopted
        if self._adopting is None:
            self._promises = tuple(self.knocks[peer] for peer in self._promisers(present))
        for peer in list(self._strangers):
            del self._strangers[peer]
            actions.append(Refuse(peer, tuple(signed.frame for signed in self._promises)))
        while must := self._must_adopt():
            if not self._does_without(must):
                return actions + self._adopt(must)
        if self.num_contributions < self.view.rules.rounds.minimum_workers or self._opened_at is None:
            return actions
        if self._waits(self._opened_at, now):
            return actions
        if not any(peer == self.me or knock_of(self.knocks[peer]).reachable for peer in present):
            return actions  # nobody here could average: my own knock is still to come
        return [*actions, self._plan(present, now)]

    def _waits(self, opened_at: float, now: float) -> bool:
        """Whether somebody expected is still to come, and may."""
        is_awaited = any(peer not in self.knocks and peer not in self._gone for peer in self.expected)
        return is_awaited and now < opened_at + self.pacing.patience

    @property
    def _voted_here(self) -> bool:
        """Before a restart this coordinator has voted at this very ballot, for a proposal of its own."""
        return self.own_vote is not None and self.own_vote.ballot == self.ballot

    def _must_adopt(self) -> bytes | None:
        if self._voted_here:
            assert self.own_vote is not None
            return self.own_vote.commit_bytes  # one commit a ballot, also after a restart
        return self._adoptable() if self.ballot > 0 else None

    def _does_without(self, commit_bytes: bytes) -> bool:
        """Leave out the knocks that report this vote, if its parts are nowhere and the others here are a majority.

        Any majority's promises will do: each shares a peer with those who may have decided, so that nothing decided can
        be passed over. Else one that claims to have voted for what nobody holds would stall a round for ever.
        """
        others = [peer for peer in self._others(commit_bytes) if peer in self.knocks]
        if self._adopting is None or not self._is_nowhere(self._adopting) or not self.view.council.is_majority(others):
            return False
        self._unproven |= {signed.sender for signed in self._promises} - set(others)
        self._adopting = None
        self._promises = tuple(self.knocks[peer] for peer in others)
        return True

    def _is_nowhere(self, commit: Commit) -> bool:
        return not self._unavailable.isdisjoint(part.result_hash for part in commit.parts)

    def _others(self, commit_bytes: bytes) -> list[str]:
        """The council but for those who report this vote; nobody if it is this coordinator's own."""
        if self._voted_here:
            return []
        votes = {signed.sender: knock_of(signed).vote for signed in self.knocks.values()}
        return [
            peer
            for peer in self.view.council.members
            if peer not in self._unproven and ((cast := votes.get(peer)) is None or cast.commit_bytes != commit_bytes)
        ]

    def _adopt(self, commit_bytes: bytes) -> list[Action]:
        """Propose a reported commit unchanged, once its parts are here. A part that is nowhere ends this ballot, unless
        who is still to come may be a majority without those who report it.
        """
        if self._adopting is None:
            self._adopting = Commit.decode(commit_bytes)
            wanted = [(index, part.result_hash) for index, part in enumerate(self._adopting.parts)]
            missing = [(index, result_hash) for index, result_hash in wanted if result_hash not in self._held]
            if missing:
                return [FetchPart(index, result_hash) for index, result_hash in missing]
        if self._is_nowhere(self._adopting):
            self._failed = not self.view.council.is_majority(self._others(commit_bytes))
            return []
        if all(part.result_hash in self._held for part in self._adopting.parts):
            return [self._propose(commit_bytes)]
        return []

    def _plan(self, present: Collection[str], now: float) -> SendPlan:
        settings = PlanSettings(
            rules=self.view.rules,
            fragment=self.view.fragment,
            round=self.view.round,
            deadline=self.pacing.deadline,
            doubtful=self.doubtful,
        )
        members = [(peer, knock_of(self.knocks[peer])) for peer in sorted(present)]
        self._reducing = Reducing(settings, members, me=self.me, now=now)
        self.plan = self._reducing.plan
        return SendPlan(self.plan)

    def _follow_parts(self, reducing: Reducing, now: float, wall_ms: int) -> list[Action]:
        """New reducers for the parts whose reducer failed; when no attempt is left, the round is void."""
        failed, wanted = reducing.follow(now, gone=self._gone, held=self._held, unavailable=self._unavailable)
        actions: list[Action] = [FetchPart(part, result_hash) for part, result_hash in wanted]
        if failed and reducing.attempt_again(failed, now, gone=self._gone):
            self.plan = reducing.plan
            actions.append(SendPlan(self.plan))
        elif failed:
            actions.append(self._propose(self._void(wall_ms).encode()))
        elif reducing.is_complete:
            actions.append(self._propose(self._commit(reducing, wall_ms).encode()))
        return actions

    def _propose(self, commit_bytes: bytes) -> SendProposal:
        promises = tuple(signed.frame for signed in self._promises)
        self.proposal = Propose(commit_bytes, promises if self.ballot > 0 else ())
        return SendProposal(self.proposal)

    @property
    def failed_reducers(self) -> Collection[str]:
        """Whose parts had to be given to others."""
        return self._reducing.failed_reducers if self._reducing is not None else ()

    def _commit(self, reducing: Reducing, wall_ms: int) -> Commit:
        members = [self.knocks[peer] for peer, _ in reducing.plan.members]
        late = [self.late[peer] for peer in sorted(self.late.keys() - self.knocks.keys() - self._gone)]
        return normal_commit(self.view, members, reducing.seals, late=late, wall_ms=wall_ms)

    def _void(self, wall_ms: int) -> Commit:
        return void_commit(self.view, [self.knocks[peer] for peer in sorted(self.knocks)], wall_ms=wall_ms)
