"""How a round is decided: promises, ballots, votes and commits (protocol rules 4 to 7), with no clock and no I/O.

Two parts. A `Voter` is what a peer must remember to be trusted: what it promised, what it voted for. A `Ballot` is one
coordinator's side of (round, ballot): messages go in by its methods, `advance(now)` gives what is to be done. The engine,
network and disk stand around them, and so does the test that interleaves them at random.

Safety in three lines: a commit is decided when a majority of the council has voted for it at one ballot; who knocks at
ballot b votes at no lower one any more, and says what it has voted for; past ballot 0 a coordinator has a majority's
knocks and proposes, unchanged, the reported commit of the highest ballot.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from swarm_diloco.diloco.ledger import (
    MAX_DURATION_MS,
    MAX_TOKENS,
    Commit,
    Evaluation,
    Header,
    Kind,
    Member,
    PartRecord,
    Vote,
    digest_of,
    listed_values,
    member_bitmap,
    vote_message,
)
from swarm_diloco.diloco.records import Field, pack, unpack
from swarm_diloco.errors import RecordError
from swarm_diloco.network.identity import is_signed_by
from swarm_diloco.network.wire import Knock, Plan, PlannedPart, Propose, Sealed, Signed, VoteCast
from swarm_diloco.rounds.council import Council
from swarm_diloco.rounds.membership import share_out
from swarm_diloco.rounds.settings import RunRules

MAX_ATTEMPTS = 3
VOTE_FILE_VERSION = 1
MAX_VOTE_FILE_BYTES = 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a peer knows of a round from its log and state: all that a decision may rest on."""

    rules: RunRules
    round: int
    fragment: int
    prev: bytes  # D_{r−1}
    anchor: bytes  # D_{r−W}, which names the council
    base: bytes  # of my own state
    council: Council
    tokens_credited: Mapping[str, int]  # a member's counter as of its last commit on this chain


# --- the voter -------------------------------------------------------------------------------------------------------


class Voter:
    """A peer's promises and votes. The caller makes `encode()` durable before a knock or a vote leaves."""

    def __init__(self) -> None:
        self._promises: dict[tuple[int, bytes], int] = {}
        self._votes: dict[tuple[int, bytes], VoteCast] = {}

    def promised(self, view: View) -> int:
        """The lowest ballot in which this peer may still vote."""
        return self._promises.get((view.round, view.anchor), 0)

    def promise(self, view: View, ballot: int) -> bool:
        """Give up all ballots below this one. False if a higher one was promised."""
        if ballot < self.promised(view):
            return False
        self._promises[view.round, view.anchor] = ballot
        return True

    def vote_cast(self, view: View) -> VoteCast | None:
        return self._votes.get((view.round, view.prev))

    def vote(self, view: View, ballot: int, commit_bytes: bytes) -> bool:
        """Vote, unless a higher ballot was promised or another commit has this ballot's vote."""
        cast = self.vote_cast(view)
        if ballot < self.promised(view) or (cast and cast.ballot == ballot and cast.commit_bytes != commit_bytes):
            return False
        self._promises[view.round, view.anchor] = ballot
        self._votes[view.round, view.prev] = VoteCast(ballot, commit_bytes)
        return True

    def forget_before(self, round_: int) -> None:
        """Drop what belongs to rounds that are decided and applied."""
        self._promises = {key: ballot for key, ballot in self._promises.items() if key[0] >= round_}
        self._votes = {key: cast for key, cast in self._votes.items() if key[0] >= round_}

    def encode(self) -> bytes:
        promises: list[Field] = [[*key, ballot] for key, ballot in sorted(self._promises.items())]
        votes: list[Field] = [
            [*key, cast.ballot, cast.commit_bytes]
            for key, cast in sorted(self._votes.items(), key=lambda item: item[0])
        ]
        return pack([VOTE_FILE_VERSION, promises, votes])

    @classmethod
    def decode(cls, data: bytes) -> "Voter":
        """Raises RecordError."""
        fields = unpack(data, "vote file", limit_bytes=MAX_VOTE_FILE_BYTES)
        fields.version(VOTE_FILE_VERSION)
        voter = cls()
        for round_, anchor, ballot in fields.list_of(
            lambda entry: (entry.integer(), entry.hash_(), entry.integer()), limit=4096
        ):
            voter._promises[round_, anchor] = ballot
        for round_, prev, cast in fields.list_of(
            lambda entry: (entry.integer(), entry.hash_(), VoteCast.read(entry)), limit=4096
        ):
            voter._votes[round_, prev] = cast
        fields.end()
        return voter


def adopted(view: View, knocks: Sequence[Signed]) -> bytes | None:
    """The reported commit of the highest ballot that follows from our chain, or None when nobody voted."""
    best: VoteCast | None = None
    for signed in knocks:
        cast = signed.message.vote if isinstance(signed.message, Knock) else None
        if cast and (best is None or cast.ballot > best.ballot) and Commit.decode(cast.commit_bytes).prev == view.prev:
            best = cast
    return best.commit_bytes if best else None


def check_proposal(
    view: View, ballot: int, proposal: Propose, promises: Sequence[Signed], own: Signed | None
) -> Commit:
    """What a council peer checks before it votes, but for the parts, which it must hold as well.

    `promises` are the proposal's knocks, signatures verified; `own` is this peer's knock at any ballot of the round.
    Raises RecordError with the rule that is broken.
    """
    if ballot > 0:
        knocked = {
            signed.sender
            for signed in promises
            if isinstance(signed.message, Knock) and (signed.round, signed.ballot) == (view.round, ballot)
        }
        if not view.council.is_majority(knocked):
            raise RecordError("proposal: no majority has promised its ballot")
        must = adopted(view, promises)
        if must is not None and must != proposal.commit_bytes:
            raise RecordError("proposal: a vote that must be adopted is passed over")
    commit = Commit.decode(proposal.commit_bytes)
    check_commit(view, commit)
    if own is not None and isinstance(own.message, Knock) and not _is_as_knocked(commit.member(own.sender), own):
        raise RecordError("proposal: my entry is not as I knocked")
    return commit


def check_commit(view: View, commit: Commit) -> None:
    """Whether the commit may follow this peer's log. Raises RecordError."""
    rules = view.rules
    if (commit.run, commit.round, commit.fragment, commit.prev) != (
        rules.run_id,
        view.round,
        view.fragment,
        view.prev,
    ):
        raise RecordError(f"commit {commit.round}: it does not follow my log")
    if commit.base != view.base:
        raise RecordError(f"commit {commit.round}: its base is not my state's")
    if commit.kind not in (Kind.NORMAL, Kind.VOID):
        raise RecordError(f"commit {commit.round}: a vote cannot decide a {commit.kind.name.lower()} commit")
    if not view.council.is_majority({member.peer for member in commit.members}):
        raise RecordError(f"commit {commit.round}: no majority of the council is among its members")
    if len(commit.members) > rules.rounds.group_limit or commit.next_due_ms > MAX_DURATION_MS:
        raise RecordError(f"commit {commit.round}: its group or its period is past the manifest's limit")
    for member in commit.members:
        if member.weight > rules.rounds.maximum_weight:
            raise RecordError(f"commit {commit.round}: {member.peer}'s weight is past the manifest's limit")
        if member.tokens_from != view.tokens_credited.get(member.peer, 0):
            raise RecordError(f"commit {commit.round}: {member.peer}'s tokens do not join on to its last ones")
    _check_parts(rules, commit)


def _check_parts(rules: RunRules, commit: Commit) -> None:
    if commit.kind is Kind.VOID:
        if any(member.tokens or member.ranges for member in commit.members):
            raise RecordError(f"commit {commit.round}: a void credits nothing")
        return
    sizes = rules.part_sizes(commit.fragment)
    if len(commit.parts) != len(sizes):
        raise RecordError(f"commit {commit.round}: {len(commit.parts)} parts where the fragment has {len(sizes)}")
    for part in commit.parts:
        listed = [member.weight for index, member in enumerate(commit.members) if part.lists(index)]
        if not listed or 0 in listed or sum(listed) != part.weight_sum or part.senders[-1] == 0:
            raise RecordError(f"commit {commit.round}: a part's weights are not its senders'")
        if int.from_bytes(part.senders, "little") >> len(commit.members):
            raise RecordError(f"commit {commit.round}: a part lists a sender that is no member")
    for member in commit.members:
        if member.ranges and not listed_values(commit, member.peer, sizes):
            raise RecordError(f"commit {commit.round}: {member.peer} is credited and in no part")


def _is_as_knocked(entry: Member | None, own: Signed) -> bool:
    knock = own.message
    assert isinstance(knock, Knock)
    if entry is None:
        return True
    is_late = entry.weight == entry.tokens == 0  # listed as having knocked, without its contribution
    return (
        (entry.weight == knock.weight or is_late)
        and entry.reachable == knock.reachable
        and entry.tokens_from == knock.tokens_from
        and entry.tokens_to <= knock.tokens_to
        and set(entry.ranges) <= set(knock.ranges)
    )


def check_certificate(view: View, header: Header) -> Commit:
    """Whether a header's commit follows the log and a majority of its council voted for it. Raises RecordError.

    The base is compared by whoever applies the commit: a header alone can be checked without the state.
    """
    commit = header.commit()
    if header.degraded:
        raise RecordError(f"commit {commit.round}: degraded certificates come with a later version")
    if (commit.run, commit.round, commit.prev) != (view.rules.run_id, view.round, view.prev):
        raise RecordError(f"commit {commit.round}: it does not follow commit {view.round - 1} of my log")
    message = vote_message(view.rules.run_id, commit.round, header.ballot, header.digest)
    voters = {vote.peer for vote in header.votes if vote.peer in view.council.members}
    if not view.council.is_majority(voters):
        raise RecordError(f"commit {commit.round}: its certificate names no majority of the council")
    for vote in header.votes:
        if vote.peer not in voters or not is_signed_by(vote.peer, message, vote.signature):
            raise RecordError(f"commit {commit.round}: a vote by {vote.peer} is not valid")
    return commit


# --- the coordinator -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendPlan:
    plan: Plan


@dataclass(frozen=True, slots=True)
class SendProposal:
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
    peer: str
    reason: str


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
        if knock.base != self.view.base:
            self._strangers[signed.sender] = signed
        elif self.plan is not None and signed.sender not in self.knocks:
            self.late[signed.sender] = signed
        elif self.plan is None:
            self.knocks[signed.sender] = signed
            if knock.weight and self._opened_at is None:
                self._opened_at = now
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
        if self.proposal is None or peer not in self.view.council.members:
            return
        digest = digest_of(self.proposal.commit_bytes)
        message = vote_message(self.view.rules.run_id, self.view.round, self.ballot, digest)
        if commit_digest == digest and is_signed_by(peer, message, signature):
            self._votes[peer] = Vote(peer, signature)

    # decisions out

    def advance(self, now: float, wall_ms: int) -> list[Action]:
        """All that is to be done now. Call it after each message and at `wakes_at`."""
        if self.decided or self._failed:
            return []
        actions: list[Action] = []
        if self.plan is None and self.proposal is None:
            actions += self._open(now, wall_ms)
        if self.plan is not None and self.proposal is None:
            actions += self._follow_parts(now, wall_ms)
        if self.proposal is not None and self.view.council.is_majority(self._votes):
            votes = tuple(vote for _, vote in sorted(self._votes.items()))
            self.decided = Header(self.proposal.commit_bytes, self.ballot, votes)
            actions.append(Decide(self.decided))
        return actions

    def wakes_at(self) -> float | None:
        """When `advance` has something to do though no message comes."""
        if self.decided or self.proposal or self._failed:
            return None
        if self.plan is None:
            return None if self._opened_at is None else self._opened_at + self.pacing.patience
        waits = [part.expires_at for part in self._parts if part.sealed is None]
        return min(waits) if waits else None

    @property
    def num_contributions(self) -> int:
        return sum(_knock(signed).weight > 0 for peer, signed in self.knocks.items() if peer not in self._gone)

    def _open(self, now: float, wall_ms: int) -> list[Action]:
        """Refuse other states; adopt a reported vote; else plan when all expected are here or patience has ended."""
        council = self.view.council
        actions: list[Action] = []
        if council.is_majority(self._strangers):
            self._failed = True
            return [StateDiffers()]
        present = {peer for peer in self.knocks if peer not in self._gone}
        if not council.is_majority(present):
            return actions
        for peer in list(self._strangers):
            del self._strangers[peer]
            actions.append(Refuse(peer, "your state is not the swarm's"))
        if must := self._must_adopt():
            return actions + self._adopt(must)
        if self.num_contributions < self.view.rules.rounds.minimum_workers or self._opened_at is None:
            return actions
        is_awaited = any(peer not in self.knocks and peer not in self._gone for peer in self.expected)
        if is_awaited and now < self._opened_at + self.pacing.patience:
            return actions
        self._plan(present, now)
        assert self.plan is not None
        return [*actions, SendPlan(self.plan)]

    def _must_adopt(self) -> bytes | None:
        if self.own_vote is not None and self.own_vote.ballot == self.ballot:
            return self.own_vote.commit_bytes  # one commit a ballot, also after a restart
        return adopted(self.view, list(self.knocks.values())) if self.ballot > 0 else None

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
        senders = [index for index, peer in enumerate(members) if _knock(self.knocks[peer]).weight > 0]
        rates = {
            index: _knock(self.knocks[peer]).upload_kilobits
            for index, peer in enumerate(members)
            if _knock(self.knocks[peer]).reachable or peer == self.me
        }
        reducers = share_out(len(rules.part_sizes(self.view.fragment)), rates)
        bitmap = member_bitmap(senders)
        self.planned_at = now
        self._parts = [_PartState(members[reducer]) for reducer in reducers]
        self.plan = Plan(
            tuple((peer, _knock(self.knocks[peer]).weight) for peer in members),
            tuple(PlannedPart(reducer, 0, bitmap) for reducer in reducers),
            close_in_ms=int(self.pacing.deadline * 500),
            deadline_in_ms=int(self.pacing.deadline * 1000),
        )
        for part in self._parts:
            part.expires_at = now + self._attempt_seconds

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
            elif part.reducer in self._gone and not part.is_fetching:
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
        able = {
            index: _knock(self.knocks[peer]).upload_kilobits
            for index, peer in enumerate(members)
            if peer not in burnt | self._gone and (_knock(self.knocks[peer]).reachable or peer == self.me)
        }
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
        promises: list[bytes] = []
        if self.ballot > 0:
            council = [self.knocks[peer].frame for peer in self.view.council.members if peer in self.knocks]
            promises = council
        self.proposal = Propose(commit_bytes, tuple(promises))
        return SendProposal(self.proposal)

    def _commit(self, wall_ms: int) -> Commit:
        assert self.plan is not None
        members = [self.knocks[peer] for peer, _ in self.plan.members]
        parts: list[PartRecord] = []
        for state in self._parts:
            assert state.sealed is not None
            bits = int.from_bytes(state.sealed.senders, "little")
            weight = sum(_knock(signed).weight for index, signed in enumerate(members) if bits >> index & 1)
            senders = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
            parts.append(PartRecord(state.attempt, state.sealed.result_hash, senders, weight))
        return self._record(Kind.NORMAL, members, tuple(parts), wall_ms)

    def _void(self, wall_ms: int) -> Commit:
        return self._record(Kind.VOID, [self.knocks[peer] for peer in sorted(self.knocks)], (), wall_ms)

    def _record(self, kind: Kind, members: Sequence[Signed], parts: tuple[PartRecord, ...], wall_ms: int) -> Commit:
        view = self.view
        sizes = view.rules.part_sizes(view.fragment)
        entries = []
        for index, signed in enumerate(members):
            listed = sum(size for part, size in zip(parts, sizes, strict=False) if part.lists(index))
            entries.append(_entry(signed, listed, sum(sizes)))
        for peer in sorted(self.late.keys() - self.knocks.keys() - self._gone):
            entries.append(replace(_entry(self.late[peer], 0, sum(sizes)), weight=0))
        return Commit(
            run=view.rules.run_id,
            round=view.round,
            fragment=view.fragment,
            prev=view.prev,
            kind=kind,
            base=view.base,
            members=tuple(entries),
            parts=parts,
            next_due_ms=next_due_ms(view.rules, [_knock(signed) for signed in members]),
            wall_ms=wall_ms,
            evaluation=_evaluations([_knock(signed) for signed in members]),
        )


def _knock(signed: Signed) -> Knock:
    assert isinstance(signed.message, Knock)
    return signed.message


def _entry(signed: Signed, listed: int, num_values: int) -> Member:
    """A member's line in the commit: its counter falls by floor(counter × values listed / values)."""
    knock = _knock(signed)
    credited = (knock.tokens_to - knock.tokens_from) * listed // num_values
    return Member(
        peer=signed.sender,
        weight=knock.weight,
        tokens_from=knock.tokens_from,
        tokens_to=min(knock.tokens_from + credited, MAX_TOKENS),
        reachable=knock.reachable,
        ranges=knock.ranges if listed else (),
        knock_hash=signed.hash_,
    )


def next_due_ms(rules: RunRules, knocks: Sequence[Knock]) -> int:
    """How long until the next round opens: when the median worker has done H/P steps. 0 with pace "steps"."""
    steps = [knock.step_microseconds for knock in knocks if knock.weight and knock.step_microseconds]
    if rules.schedule.pace == "steps" or not steps:
        return 0
    between_rounds = rules.schedule.inner_steps / rules.num_fragments
    return min(int(between_rounds * median(steps) / 1000), MAX_DURATION_MS)


def _evaluations(knocks: Sequence[Knock]) -> tuple[Evaluation, ...]:
    found: dict[tuple[str, int], Evaluation] = {}
    for knock in knocks:
        for evaluation in knock.evaluation:
            found.setdefault((evaluation.set_name, evaluation.round), evaluation)
    return tuple(found[key] for key in sorted(found)[:16])
