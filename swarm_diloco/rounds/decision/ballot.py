"""One coordinator's side of a round at one ballot: knocks to a plan, parts to a proposal, votes to a decision."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from swarm_diloco.diloco.ledger import Commit, Header, Vote, digest_of, member_bitmap, vote_message
from swarm_diloco.network.identity import is_signed_by
from swarm_diloco.network.messages import Knock, Plan, PlannedPart, Propose, Sealed, VoteCast
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.decision.checks import MAX_ATTEMPTS, adopted
from swarm_diloco.rounds.decision.proposals import knock_of, normal_commit, void_commit
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.membership import share_out


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


@dataclass(slots=True)
class _PartState:
    """What the coordinator knows of one part."""

    reducer: str
    attempt: int = 0
    expires_at: float = 0.0
    sealed: Sealed | None = None
    is_held: bool = False
    is_fetching: bool = False


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
    knocks: dict[str, Signed] = field(default_factory=dict)
    late: dict[str, Signed] = field(default_factory=dict)  # came after the plan: the next round waits for them
    plan: Plan | None = None
    proposal: Propose | None = None
    decided: Header | None = None
    planned_at: float = 0.0
    _gone: set[str] = field(default_factory=set)
    _opened_at: float | None = None
    _parts: list[_PartState] = field(default_factory=list)
    _votes: dict[str, Vote] = field(default_factory=dict)
    _held: set[bytes] = field(default_factory=set)
    _unavailable: set[bytes] = field(default_factory=set)
    _adopting: Commit | None = None
    _promises: tuple[Signed, ...] = ()  # the council's knocks on which this ballot's choice rests
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
        if self.plan is None or sealed.part >= len(self._parts):
            return
        part = self._parts[sealed.part]
        planned = int.from_bytes(self.plan.parts[sealed.part].senders, "little")
        senders = int.from_bytes(sealed.senders, "little")
        if peer == part.reducer and sealed.attempt == part.attempt and senders and not senders & ~planned:
            part.sealed = part.sealed or sealed

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
        if self.plan is not None and self.proposal is None:
            actions += self._follow_parts(now, wall_ms)
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
        waits = [part.expires_at for part in self._parts if not part.is_held and not part.is_fetching]
        return min(waits) if waits else None

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
        return [peer for peer in self.view.council.members if peer in self.knocks]

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
        if must := self._must_adopt():
            return actions + self._adopt(must)
        if self.num_contributions < self.view.rules.rounds.minimum_workers or self._opened_at is None:
            return actions
        is_awaited = any(peer not in self.knocks and peer not in self._gone for peer in self.expected)
        if is_awaited and now < self._opened_at + self.pacing.patience:
            return actions
        if not self._able(present):
            return actions  # nobody here could average: my own knock is still to come
        self._plan(present, now)
        assert self.plan is not None
        return [*actions, SendPlan(self.plan)]

    @property
    def _voted_here(self) -> bool:
        """Before a restart this coordinator has voted at this very ballot, for a proposal of its own."""
        return self.own_vote is not None and self.own_vote.ballot == self.ballot

    def _must_adopt(self) -> bytes | None:
        if self._voted_here:
            assert self.own_vote is not None
            return self.own_vote.commit_bytes  # one commit a ballot, also after a restart
        return self._adoptable() if self.ballot > 0 else None

    def _adopt(self, commit_bytes: bytes) -> list[Action]:
        """Propose a reported commit unchanged, once its parts are here. A part that is nowhere ends this ballot."""
        if self._adopting is None:
            self._adopting = Commit.decode(commit_bytes)
            wanted = [(index, part.result_hash) for index, part in enumerate(self._adopting.parts)]
            missing = [(index, result_hash) for index, result_hash in wanted if result_hash not in self._held]
            if missing:
                return [FetchPart(index, result_hash) for index, result_hash in missing]
        if self._unavailable & {part.result_hash for part in self._adopting.parts}:
            self._failed = True
            return []
        if all(part.result_hash in self._held for part in self._adopting.parts):
            return [self._propose(commit_bytes)]
        return []

    def _plan(self, present: Collection[str], now: float) -> None:
        members = sorted(present)
        rules = self.view.rules
        senders = [index for index, peer in enumerate(members) if knock_of(self.knocks[peer]).weight > 0]
        able = self._able(members)
        rates = {i: knock_of(self.knocks[peer]).upload_kilobits for i, peer in enumerate(members) if peer in able}
        reducers = share_out(len(rules.part_sizes(self.view.fragment)), rates)
        bitmap = member_bitmap(senders)
        self.planned_at = now
        self._parts = [_PartState(members[reducer]) for reducer in reducers]
        self.plan = Plan(
            tuple((peer, knock_of(self.knocks[peer]).weight) for peer in members),
            tuple(PlannedPart(reducer, 0, bitmap) for reducer in reducers),
            close_in_ms=int(self.pacing.deadline * 500),
            deadline_in_ms=int(self.pacing.deadline * 1000),
        )
        for part in self._parts:
            part.expires_at = now + self._attempt_seconds

    def _able(self, peers: Collection[str]) -> set[str]:
        """Those that can average a part: others can dial them, or they are this coordinator."""
        return {peer for peer in peers if knock_of(self.knocks[peer]).reachable or peer == self.me}

    @property
    def _attempt_seconds(self) -> float:
        """A reducer closes at half of the deadline at latest, and then needs time to average and to tell."""
        return self.pacing.deadline * 0.7

    def _follow_parts(self, now: float, wall_ms: int) -> list[Action]:
        actions: list[Action] = []
        failed: list[int] = []
        for index, part in enumerate(self._parts):
            if part.sealed is None:
                if part.reducer in self._gone or now >= part.expires_at:
                    failed.append(index)
            elif part.sealed.result_hash in self._held:
                part.is_held = True
            elif part.sealed.result_hash in self._unavailable:
                failed.append(index)
            elif (part.reducer in self._gone or now >= part.expires_at) and not part.is_fetching:
                part.is_fetching = True
                actions.append(FetchPart(index, part.sealed.result_hash))
        if failed:
            return actions + self._attempt_again(failed, now, wall_ms)
        if all(part.is_held for part in self._parts):
            actions.append(self._propose(self._commit(wall_ms).encode()))
        return actions

    def _attempt_again(self, failed: Sequence[int], now: float, wall_ms: int) -> list[Action]:
        """New reducers for the parts whose reducer failed; after the third attempt the round is void."""
        assert self.plan is not None
        members = [peer for peer, _ in self.plan.members]
        burnt = {self._parts[index].reducer for index in failed}
        left = self._able(members) - burnt - self._gone
        able = {i: knock_of(self.knocks[peer]).upload_kilobits for i, peer in enumerate(members) if peer in left}
        if not able or any(self._parts[index].attempt + 1 >= MAX_ATTEMPTS for index in failed):
            return [self._propose(self._void(wall_ms).encode())]
        parts = list(self.plan.parts)
        gone = member_bitmap([index for index, peer in enumerate(members) if peer in self._gone])
        for index, reducer in zip(failed, share_out(len(failed), able), strict=True):
            attempt = self._parts[index].attempt + 1
            self._parts[index] = _PartState(members[reducer], attempt, now + self._attempt_seconds)
            alive = int.from_bytes(parts[index].senders, "little") & ~int.from_bytes(gone, "little")
            parts[index] = PlannedPart(reducer, attempt, alive.to_bytes((alive.bit_length() + 7) // 8, "little"))
        self.plan = Plan(self.plan.members, tuple(parts), self.plan.close_in_ms, self.plan.deadline_in_ms)
        if any(not parts[index].senders for index in failed):
            return [self._propose(self._void(wall_ms).encode())]
        return [SendPlan(self.plan)]

    def _propose(self, commit_bytes: bytes) -> SendProposal:
        promises = tuple(signed.frame for signed in self._promises)
        self.proposal = Propose(commit_bytes, promises if self.ballot > 0 else ())
        return SendProposal(self.proposal)

    def _commit(self, wall_ms: int) -> Commit:
        assert self.plan is not None
        members = [self.knocks[peer] for peer, _ in self.plan.members]
        sealed = [part.sealed for part in self._parts if part.sealed is not None]
        late = [self.late[peer] for peer in sorted(self.late.keys() - self.knocks.keys() - self._gone)]
        return normal_commit(self.view, members, sealed, late=late, wall_ms=wall_ms)

    def _void(self, wall_ms: int) -> Commit:
        return void_commit(self.view, [self.knocks[peer] for peer in sorted(self.knocks)], wall_ms=wall_ms)
