"""One peer around the real deciding module, as session, voting, participant and follower stand around it.

What waits for a disk or for another peer is a generator: at each `yield` the world may do anything else first, and a
crash drops it there.
"""

from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from interleavings.candidate import Candidate, Key
from interleavings.memory_log import MemoryLog
from interleavings.surroundings import LOCKED_OUT, READY, Surroundings, Waiting
from interleavings.witness import DegradedVote
from swarm_diloco.diloco.ledger import (
    Commit,
    Header,
    degraded_message,
    digest_of,
    is_in_bitmap,
    member_bitmap,
    vote_message,
)
from swarm_diloco.errors import RecordError
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.messages import CastVote, Decided, Knock, Message, Plan, Promised, Propose, Sealed, VoteCast
from swarm_diloco.network.wire import Signed, sign
from swarm_diloco.rounds.decision.checks import check_certificate, check_plan, check_proposal
from swarm_diloco.rounds.decision.degraded import check_degraded_proposal, is_degraded
from swarm_diloco.rounds.decision.voter import View, Voter


@dataclass(slots=True)
class Disk:
    """What a crash leaves."""

    headers: list[Header]
    parts: set[bytes]
    vote_file: bytes
    num_written: int = 1  # headers that were here once, damaged ones too


class Peer:
    def __init__(
        self, world: Surroundings, identity: Identity, genesis: Header, *, is_reachable: bool, trains: bool
    ) -> None:
        self.world = world
        self.identity = identity
        self.name = identity.peer
        self.is_reachable = is_reachable
        self.trains = trains
        self.upload_kilobits = world.chance.choice((0, 0, 100, 10_000))
        self.is_up = True
        self.disk = Disk([genesis], set(), Voter().encode())
        self.forks: set[int] = set()  # rounds of which it has seen another decision; kept for the test's end
        self._boot()

    def _boot(self) -> None:
        """Resume from the disk; nothing else is left."""
        self.now = 0.0
        self.log = MemoryLog(self.world.rules, self.disk.headers)
        self.voter = Voter.decode(self.disk.vote_file)
        self.candidate = Candidate(self)
        self.plans: dict[Key, Plan] = {}
        self.held: set[bytes] = set()
        self.own_knocks: dict[int, Signed] = {}
        self.contributions: dict[int, int] = {}  # round -> weight: after a restart it is another
        self.told: defaultdict[int, int] = defaultdict(int)  # round -> a ballot that somebody has promised
        self.tasks: list[tuple[int, Waiting, bool]] = []  # with their round, and what they have yielded
        self._writing: bytes | None = None

    def crash(self) -> None:
        """A file that was being written is the old one or the new one."""
        if self._writing is not None and self.world.chance.random() < 0.5:
            self.disk.vote_file = self._writing
        self._writing = None
        for _, task, _ in self.tasks:
            task.close()
        self._boot()

    def ready_tasks(self) -> list[int]:
        is_writing = self._writing is not None
        return [index for index, (_, _, state) in enumerate(self.tasks) if state is READY or not is_writing]

    def damage(self) -> None:
        """The newest header cannot be read any more."""
        del self.disk.headers[max(1, len(self.disk.headers) - 1) :]

    def has_lost(self, round_: int) -> bool:
        """Whether the round was decided here, so that what was promised and voted in it is forgotten."""
        return round_ < self.disk.num_written and self.world.conduct.waits_for_lost_rounds

    # --- what it sends

    @property
    def next_round(self) -> int:
        return self.log.head.round + 1

    def candidate_of(self, view: View, ballot: int) -> str | None:
        """The last degraded turn is for who cannot be dialled: for itself."""
        candidate = view.candidate(ballot)
        return self.name if candidate is None and not self.is_reachable else candidate

    def sign(self, round_: int, ballot: int, message: Message) -> Signed:
        run, head = self.world.rules.run_id, self.log.head
        return sign(self.identity, run=run, round_=round_, ballot=ballot, head=head, message=message)

    def send(self, to: str, round_: int, ballot: int, message: Message) -> None:
        self.world.post(self.name, to, self.sign(round_, ballot, message))

    def tell(self, to: str, round_: int) -> None:
        """Of a decided round."""
        self.send(to, round_, 0, Decided(self.log.headers[round_].encode()))

    def save(self) -> Waiting:
        """One write of the vote file at a time, also when what wanted it is cancelled."""
        while self._writing is not None:
            yield LOCKED_OUT
        data = self._writing = self.voter.encode()
        try:
            yield READY
        finally:
            if self._writing is data:
                self.disk.vote_file, self._writing = data, None

    def saved(self) -> Waiting:
        if self.world.conduct.saves_before_it_sends:
            yield from self.save()
        else:
            self.world.start(self, self.next_round, self.save())

    # --- as a member

    def knock(self, round_: int, ballot: int) -> Waiting:
        """Promise durably, then say so."""
        view = self.log.view_of(round_)
        candidate = self.candidate_of(view, ballot)
        if candidate is None or self.has_lost(round_) or not self.voter.promise(view, ballot):
            return
        yield from self.saved()
        signed = self.sign(round_, ballot, self.knock_message(view, ballot))
        self.own_knocks[round_] = signed
        if signed.head.digest == view.prev:
            self.world.witness.knock_left(view, signed)
        self.world.post(self.name, candidate, signed)

    def knock_message(self, view: View, ballot: int) -> Knock:
        weight = self.contributions.setdefault(view.round, self.world.chance.randint(1, 100)) if self.trains else 0
        credited = view.tokens_credited.get(self.name, 0)
        return Knock(
            fragment=view.fragment,
            base=view.base,
            weight=weight,
            tokens_from=credited,
            tokens_to=credited + weight,
            upload_kilobits=self.upload_kilobits,
            reachable=self.is_reachable,
            vote=self.reported_vote(view, ballot),
        )

    def reported_vote(self, view: View, ballot: int) -> VoteCast | None:
        return self.voter.reported(view)

    def vote_for(self, view: View, ballot: int, proposal: Propose) -> Generator[bool, None, CastVote | None]:
        """Check, hold the parts, make parts and vote durable, and only then sign."""
        promises = [self.world.read(frame) for frame in proposal.promises]
        plan: tuple[str, ...] = ()
        is_adopted = False
        try:
            if is_degraded(ballot):
                checked = self._check_degraded(view, ballot, proposal, promises)
                commit, plan, is_adopted = checked
            else:
                commit = check_proposal(view, ballot, proposal, promises, self.own_knocks.get(view.round))
        except RecordError as error:
            self.world.counts["proposals refused"] += 1
            self.world.counts["... that pass over a vote"] += "passed over" in str(error)
            return None
        hashes = {part.result_hash for part in commit.parts}
        if not hashes <= self.held | self.disk.parts:
            yield READY
            if not all(self.world.give_part(self, part_hash) for part_hash in sorted(hashes)):
                return None
        self.disk.parts |= hashes
        if not self._may_vote(view, ballot, proposal.commit_bytes, plan, is_adopted):
            self.world.counts["votes withheld"] += 1
            return None
        commit_bytes, cast_at = proposal.commit_bytes, self.world.steps
        yield from self.saved()
        if plan:
            reported = frozenset(cast for cast in map(_vote_in, promises) if cast is not None)
            vote = DegradedVote(commit_bytes, frozenset(plan), reported, cast_at)
            self.world.witness.degraded_vote_left(view, self.name, ballot, vote)
        else:
            self.world.witness.vote_left(view, self.name, ballot, commit_bytes)
        return self._sign_vote(view, ballot, digest_of(commit_bytes), plan)

    def _check_degraded(
        self, view: View, ballot: int, proposal: Propose, promises: Sequence[Signed]
    ) -> tuple[Commit, tuple[str, ...], bool]:
        own = self.own_knocks.get(view.round)
        if own is None:
            raise RecordError("this peer has not knocked")
        may_pass_over = self.world.may_pass_over()
        checked = check_degraded_proposal(view, ballot, proposal, promises, own, may_pass_over=may_pass_over)
        return checked.commit, checked.plan, checked.is_adopted

    def _may_vote(self, view: View, ballot: int, commit_bytes: bytes, plan: tuple[str, ...], is_adopted: bool) -> bool:
        if self.has_lost(view.round):
            return False
        if plan:
            return self.voter.vote_degraded(view, ballot, commit_bytes, is_adopted=is_adopted)
        return self.voter.vote(view, ballot, commit_bytes)

    def _sign_vote(self, view: View, ballot: int, digest: bytes, plan: tuple[str, ...]) -> CastVote:
        run = view.rules.run_id
        message = (
            degraded_message(run, view.round, ballot, digest, plan)
            if plan
            else vote_message(run, view.round, ballot, digest)
        )
        return CastVote(digest, self.identity.sign(message))

    def consider(self, coordinator: str, view: View, ballot: int, proposal: Propose) -> Waiting:
        cast = yield from self.vote_for(view, ballot, proposal)
        if cast is not None:
            self.send(coordinator, view.round, ballot, cast)

    def average(self, coordinator: str, key: Key, index: int, plan: Plan) -> Waiting:
        """Reduce a part of those who sent. Another group or attempt gives another result."""
        part, chance = plan.parts[index], self.world.chance
        yield READY
        if chance.random() < self.world.part_loss:
            return
        senders = [member for member in range(len(plan.members)) if is_in_bitmap(part.senders, member)]
        whole = [member for member in senders if chance.random() < 0.9] or senders
        result_hash = chance.randbytes(32)
        self.held.add(result_hash)
        self.send(coordinator, *key, Sealed(index, part.attempt, result_hash, member_bitmap(whole)))

    # --- what it hears

    def hear(self, signed: Signed) -> None:
        """A message from anybody, late or twice perhaps."""
        round_, key = signed.round, (signed.round, signed.ballot)
        match signed.message:
            case Decided(data):
                self.hear_decision(Header.decode(data))
            case _ if round_ < self.next_round:
                if isinstance(signed.message, Knock):
                    self.tell(signed.sender, round_)  # it is behind
            case _ if round_ > self.next_round:
                pass  # nothing is coordinated or voted for before the rounds in front of it are decided
            case Knock():
                self.candidate.hear_knock(signed)
            case Promised(ballot):
                self.hear_promise(round_, ballot)
            case Sealed() as sealed:
                self.candidate.hear_seal(signed.sender, key, sealed)
            case CastVote(digest, signature):
                self.candidate.hear_vote(signed.sender, key, digest, signature)
            case Plan() | Propose() if signed.sender == self.candidate_of(self.log.view_of(round_), signed.ballot):
                self.hear_coordinator(signed, key)
            case _:
                pass

    def hear_promise(self, round_: int, ballot: int) -> None:
        """Somebody is at a higher ballot; so it goes there."""
        view = self.log.view_of(round_)
        if ballot > max(self.told[round_], self.voter.promised(view)):
            self.told[round_] = ballot
            self.world.start(self, round_, self.knock(round_, ballot))

    def hear_coordinator(self, signed: Signed, key: Key) -> None:
        view = self.log.view_of(signed.round)
        is_voter = self.name in view.council.members or is_degraded(signed.ballot)
        match signed.message:
            case Propose() as proposal if is_voter and signed.sender != self.name:
                waiting = self.consider(signed.sender, view, signed.ballot, proposal)
                self.world.start(self, signed.round, waiting)
            case Plan() as plan:
                self._follow(signed.sender, view, key, plan)
            case _:
                pass

    def _follow(self, coordinator: str, view: View, key: Key, plan: Plan) -> None:
        own = self.own_knocks.get(key[0])
        if own is None or own.ballot != key[1]:
            return
        former = self.plans.get(key)
        try:
            check_plan(view, plan, former, own)
        except RecordError:
            return
        self.plans[key] = plan
        for index, part in enumerate(plan.parts):
            is_new = former is None or former.parts[index] != part
            if is_new and plan.members[part.reducer][0] == self.name:
                self.world.start(self, key[0], self.average(coordinator, key, index, plan))

    def hear_decision(self, header: Header) -> None:
        round_ = header.commit().round
        if round_ == self.next_round:
            self.world.start(self, round_, self.learn(header))
        elif 0 < round_ < self.next_round and header.digest != self.log.digest(round_):
            try:
                check_certificate(self.log.view_before(round_), header)
            except RecordError:
                return
            self.forks.add(round_)

    def learn(self, header: Header) -> Waiting:
        """Check the certificate, make parts and header durable, and leave the round behind."""
        view = self.log.view_of(self.next_round)
        try:
            commit = check_certificate(view, header)
        except RecordError:
            self.world.counts["decisions refused"] += 1
            return
        if not all(self.world.give_part(self, part.result_hash) for part in commit.parts):
            return
        yield READY
        if commit.round != self.next_round:
            self.hear_decision(header)
            return
        self.world.witness.accepted(view, header)
        self.disk.parts |= {part.result_hash for part in commit.parts}
        self.disk.headers.append(header)
        self.disk.num_written = max(self.disk.num_written, len(self.disk.headers))
        self.log.append(header)
        self._conclude(commit.round)

    def _conclude(self, round_: int) -> None:
        """What belongs to the decided round ends; only then are its promises and votes forgotten."""
        for started_for, task, _ in self.tasks:
            if started_for <= round_:
                task.close()
        self.tasks = [task for task in self.tasks if task[0] > round_]
        self.candidate.conclude(round_)
        self.plans = {key: plan for key, plan in self.plans.items() if key[0] > round_}
        self.own_knocks.pop(round_, None)
        self.held.clear()
        self.voter.forget_before(round_ + 1)


def _vote_in(signed: Signed) -> VoteCast | None:
    return signed.message.vote if isinstance(signed.message, Knock) else None
