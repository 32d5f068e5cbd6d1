"""Around decision.Ballot: the streams of those who knocked, the clock, and the fetching of parts."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from swarm_diloco.errors import DataError, NetworkError, RecordError, StateError
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.messages import (
    Beat,
    Bye,
    CastVote,
    Decided,
    Knock,
    Message,
    OtherState,
    Plan,
    Promised,
    Propose,
    Refused,
    Sealed,
    Waiting,
)
from swarm_diloco.network.wire import Signed, read_signed
from swarm_diloco.rounds.butterfly import check_result
from swarm_diloco.rounds.decision.ballot import (
    Action,
    Ballot,
    Decide,
    FetchPart,
    Pacing,
    Refuse,
    SendPlan,
    SendProposal,
    StateDiffers,
)
from swarm_diloco.rounds.decision.degraded import DegradedBallot, is_degraded
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.gathering import Gathering
from swarm_diloco.rounds.participant import Participant
from swarm_diloco.rounds.tasks import Tasks, end
from swarm_diloco.rounds.voting import vote_for

MAX_QUEUED = 64  # messages to one peer; one that takes none for so long is let go
PROBE_SECONDS = 3.0


def _council_ballot(participant: Participant, view: View, ballot: int, due_at: float) -> Ballot:
    attendance, me = participant.attendance, participant.identity.peer
    expected = attendance.expected(participant.recent_commits())
    if participant.is_training and not attendance.waited_in_vain_for(me, view.round):
        expected.add(me)  # its own contribution will come, whatever the log shows
    return Ballot(
        view=view,
        ballot=ballot,
        me=me,
        expected=expected,
        pacing=Pacing(
            patience=attendance.patience_seconds(participant.rules, participant.follower.next_due_ms / 1000),
            deadline=attendance.deadline_seconds(participant.rules),
        ),
        due_at=due_at,
        own_vote=participant.voter.vote_cast(view),
        doubtful=attendance.reducers.on(view.round),
    )


def _degraded_ballot(participant: Participant, view: View, ballot: int) -> DegradedBallot:
    """Everybody of the recent commits is waited for as long as it took to come here, unless nobody reaches it."""
    return DegradedBallot(
        view=view,
        ballot=ballot,
        me=participant.identity.peer,
        expected={member.peer for member in view.recent},
        pacing=Pacing(
            patience=participant.rules.degraded_seconds(participant.follower.next_due_ms),
            deadline=participant.attendance.deadline_seconds(participant.rules),
        ),
        own_vote=participant.voter.degraded_vote_cast(view),
    )


class Coordinator:
    """This peer as the coordinator of one round at one ballot. `run` works until the round is decided or cancelled."""

    def __init__(
        self, participant: Participant, view: View, ballot: int, *, stalled_from: Callable[[], float | None]
    ) -> None:
        self._due_at = asyncio.get_running_loop().time() - participant.follower.overdue_seconds()
        self.view = view
        self.ballot = (
            _degraded_ballot(participant, view, ballot)
            if is_degraded(ballot)
            else _council_ballot(participant, view, ballot, self._due_at)
        )
        self._stalled_from = stalled_from
        self._participant = participant
        self._outgoing: dict[str, asyncio.Queue[Message]] = {}
        self._wake = asyncio.Event()
        self._tasks = Tasks()
        self._opened = asyncio.Event()  # a worker has knocked
        self._opened_at = 0.0
        self._lateness: list[float] = []
        self._proposed: Propose | None = None  # for which this peer has voted

    # --- one knocker's stream

    async def attend(self, signed: Signed, stream: Stream) -> None:
        """Serve one peer that knocked, until it leaves or the round is over."""
        peer, now = signed.sender, asyncio.get_running_loop().time()
        reason = self.ballot.knocked(signed, now)
        if reason is not None:
            await self._send(stream, Refused(reason[:64]))
            return
        self._participant.attendance.knocked(peer)
        self._note_lateness(signed, now)
        outgoing: asyncio.Queue[Message] = asyncio.Queue(MAX_QUEUED)
        self._outgoing[peer] = outgoing
        if self.ballot.plan is not None:
            outgoing.put_nowait(self.ballot.plan)
        if self._proposed is not None:
            outgoing.put_nowait(self._proposed)
        if self.ballot.decided is not None:
            outgoing.put_nowait(Decided(self.ballot.decided.encode()))
        self._wake.set()
        writing = asyncio.create_task(self._write(stream, outgoing))
        try:
            await self._read(stream, peer)
        except (NetworkError, RecordError):
            pass  # gone, silent, or not speaking the protocol: the same to the round
        finally:
            if self._outgoing.get(peer) is outgoing:
                del self._outgoing[peer]
                self.left(peer)
            await end([writing])

    def _note_lateness(self, signed: Signed, now: float) -> None:
        if isinstance(signed.message, Knock) and signed.message.weight:
            if not self._opened.is_set():
                self._opened_at = max(now, self._due_at)
                self._opened.set()
            if len(self._lateness) < self.view.rules.rounds.group_limit:
                self._lateness.append(now - self._opened_at)

    async def _read(self, stream: Stream, peer: str) -> None:
        silence = self._participant.rules.rounds.silence_seconds
        while True:
            frame = await stream.receive(timeout_seconds=silence)
            signed = read_signed(frame, run=self.view.rules.run_id, sender=peer)
            if signed.round != self.view.round or signed.ballot != self.ballot.ballot:
                continue
            match signed.message:
                case Sealed() as sealed:
                    self.ballot.sealed(peer, sealed)
                case CastVote(commit_digest, signature):
                    self.ballot.voted(peer, commit_digest, signature)
                case Promised(promised) if promised > self.ballot.ballot:
                    return
                case Bye():
                    self._participant.attendance.left(peer)
                    return
                case _:
                    continue
            self._wake.set()

    async def _write(self, stream: Stream, outgoing: asyncio.Queue[Message]) -> None:
        beat = self._participant.rules.rounds.heartbeat_seconds
        with suppress(NetworkError):
            while True:
                message: Message
                try:
                    async with asyncio.timeout(beat):
                        message = await outgoing.get()
                except TimeoutError:
                    message = self._beat()
                await self._send(stream, message)
                if isinstance(message, Decided | Refused | OtherState | Promised | Bye):
                    return

    def _beat(self) -> Message:
        """Waiting stops the knocker's deadline: only a ballot with a majority, which lacks nothing but workers, may."""
        need, have = self.view.rules.rounds.minimum_workers, self.ballot.num_contributions
        now = asyncio.get_running_loop().time()
        can_decide = self.ballot.plan is None and self.ballot.can_decide(self.ballot.knocks, now)
        return Waiting(have, need) if can_decide and 0 < have < need else Beat()

    async def _send(self, stream: Stream, message: Message) -> None:
        signed = self._participant.sign(self.view.round, self.ballot.ballot, message)
        await stream.send(signed.frame, timeout_seconds=self._participant.rules.rounds.silence_seconds)

    def _broadcast(self, message: Message, to: set[str] | None = None) -> None:
        for peer, outgoing in list(self._outgoing.items()):
            if to is None or peer in to:
                if outgoing.full():
                    del self._outgoing[peer]
                    self.ballot.left(peer)
                else:
                    outgoing.put_nowait(message)

    # --- the ballot's clock

    def held(self, part_hash: bytes) -> None:
        """These bytes are here now."""
        self.ballot.held(part_hash)
        self._wake.set()

    def left(self, peer: str) -> None:
        """The peer leaves the run, or its stream has ended."""
        self.ballot.left(peer)
        self._wake.set()

    def give_up(self, ballot: int) -> bool:
        """A higher ballot was promised here: who waits at this one is to follow. False if its votes are under way."""
        if self._proposed is not None or self.ballot.decided is not None:
            return False
        self.ballot.give_up()
        self._broadcast(Promised(ballot))
        self._wake.set()
        return True

    def leave(self) -> None:
        """This peer leaves the run."""
        self._broadcast(Bye())

    def conclude(self, header: bytes) -> None:
        """The round is in the log: tell whoever still waits here."""
        if self.ballot.decided is None:
            self._broadcast(Decided(header))

    async def run(self) -> None:
        """Raises StateError if this peer's state is not the council's majority's."""
        await self._tasks.run(self._until_decided())

    async def _until_decided(self) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(self.ballot, DegradedBallot):
            gathering = Gathering(
                self._participant,
                self.ballot,
                stalled_from=self._stalled_from,
                reach=self._reach,
                changed=self._wake.set,
                move_on=lambda: self.give_up(self.ballot.ballot + 1),
            )
            self._tasks.start(gathering.call_recent())
            self._tasks.start(gathering.look_for_anybody())
        else:
            self._tasks.start(self._probe_expected())
            self._tasks.start(self._call_absent())
        while not self.ballot.is_over:
            self._wake.clear()
            now = loop.time()
            for action in self.ballot.advance(now, self._participant.network.wall_milliseconds()):
                self._do(action)
            if self.ballot.is_over:
                return
            wakes_at = self.ballot.wakes_at()
            is_to_come = wakes_at is not None and wakes_at > now  # else a message alone brings something new
            with suppress(TimeoutError):
                async with asyncio.timeout_at(wakes_at if is_to_come else None):
                    await self._wake.wait()

    def _do(self, action: Action) -> None:
        match action:
            case SendPlan(plan):
                self._note_attendance(plan)
                self._broadcast(plan)
            case SendProposal(proposal):
                self._tasks.start(self._propose(proposal))
            case FetchPart(part, part_hash):
                self._tasks.start(self._fetch(part, part_hash))
            case Decide(header):
                for peer, _ in self.ballot.plan.members if self.ballot.plan else ():
                    self._participant.attendance.reducers.came(peer, self.view.round)
                self._broadcast(Decided(header.encode()))
            case Refuse(peer, knocks):
                self._broadcast(OtherState(knocks), {peer})
            case StateDiffers():
                raise StateError(f"round {self.view.round}: a majority of the council has another state than this peer")

    async def _propose(self, proposal: Propose) -> None:
        """Vote first: after a crash between the two this peer would else propose another commit at the same ballot."""
        participant, me = self._participant, self._participant.identity.peer
        own, holders = self.ballot.knocks.get(me), list(self.ballot.knocks)
        try:
            cast = await vote_for(participant, self.view, self.ballot.ballot, proposal, own=own, holders=holders)
        except (RecordError, DataError):
            cast = None  # nobody else should vote for it either
        if cast is None:
            self.give_up(max(self.ballot.ballot + 1, participant.voter.promised(self.view)))
            return
        self._proposed = proposal
        self.ballot.voted(me, cast.commit_digest, cast.signature)
        self._broadcast(proposal, set(self.ballot.voters))
        self._wake.set()

    def _note_attendance(self, plan: Plan) -> None:
        attendance = self._participant.attendance
        if any(part.attempt for part in plan.parts):
            for peer in self.ballot.failed_reducers:
                attendance.reducers.missed(peer, self.view.round)
            return
        attendance.opened(self._lateness)
        for peer in set(self.ballot.expected) - {peer for peer, _ in plan.members}:
            attendance.missed(peer, self.view.round)

    async def _fetch(self, part: int, part_hash: bytes) -> None:
        """A result is the same bytes everywhere. Its reducer's own stream brings it to the plan's members: these ask
        others, and who is none of them asks it first.
        """
        follower, network, plan = self._participant.follower, self._participant.network, self.ballot.plan
        reducer = plan.members[plan.parts[part].reducer][0] if plan is not None else None
        holders = [peer for peer in self.ballot.knocks if peer != reducer]
        if reducer is not None and self.ballot.me not in self.ballot.knocks:
            holders.insert(0, reducer)
        try:
            await follower.fetch_parts([part_hash], holders)
            if (data := follower.log.parts.get(part_hash)) is not None:
                await network.run_blocking(check_result, self.view.rules, self.view.fragment, part, data)
            self.held(part_hash)
        except (DataError, RecordError):
            self.ballot.unavailable(part_hash)
            self._wake.set()

    async def _probe_expected(self) -> None:
        """One that nobody reaches is not worth waiting for."""
        await self._opened.wait()
        for member in self._participant.follower.log.commit(self.view.round - 1).members:
            is_awaited = member.peer in self.ballot.expected and self._is_absent(member.peer)
            if is_awaited and member.reachable and not await self._reach(member.peer, self.view.rules.ping_protocol):
                self.left(member.peer)

    async def _call_absent(self) -> None:
        """Past ballot 0, where everybody begins, and without a majority: call the council's others to this ballot."""
        while self.ballot.ballot > 0 and self.ballot.plan is None and not self.ballot.is_over:
            await asyncio.sleep(self._participant.rules.rounds.silence_seconds)
            if not self.view.council.is_majority(self.ballot.knocks):
                for peer in filter(self._is_absent, self.view.council.members):
                    await self._reach(peer, self.view.rules.control_protocol, Promised(self.ballot.ballot))

    def _is_absent(self, peer: str) -> bool:
        return peer not in self.ballot.knocks and peer != self._participant.identity.peer

    async def _reach(self, peer: str, protocol: str, message: Message | None = None) -> bool:
        """Whether the peer takes a stream, and a word on it."""
        try:
            stream = await self._participant.network.dial(peer, protocol, timeout_seconds=PROBE_SECONDS)
        except NetworkError:
            return not self._is_absent(peer)  # it may have come meanwhile
        with suppress(NetworkError, RecordError):
            if message is not None:
                await self._send(stream, message)
                await stream.receive(timeout_seconds=PROBE_SECONDS)  # its close: it was read
        await stream.close()
        return True
