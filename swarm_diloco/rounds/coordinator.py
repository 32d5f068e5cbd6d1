"""Around decision.Ballot: the streams of those who knocked, the clock, and the fetching of parts."""

import asyncio
from contextlib import suppress

from swarm_diloco.diloco.ledger import Header
from swarm_diloco.errors import DataError, NetworkError, RecordError, StateError
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.wire import (
    Beat,
    Bye,
    CastVote,
    Decided,
    Knock,
    Message,
    Plan,
    Promised,
    Propose,
    Refused,
    Sealed,
    Signed,
    Waiting,
    read_signed,
)
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
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.participant import Participant
from swarm_diloco.rounds.settings import RunRules

MAX_QUEUED = 64  # messages to one peer; one that takes none for so long is let go
PROBE_SECONDS = 3.0


class Coordinator:
    """This peer as the coordinator of one round at one ballot. `run` works until the round is decided or cancelled."""

    def __init__(self, participant: Participant, view: View, ballot: int) -> None:
        attendance = participant.attendance
        commits = participant.follower.log.newest(64)
        expected = attendance.expected(commits)
        period = participant.follower.log.commit(view.round - 1).next_due_ms / 1000
        self.view = view
        self.ballot = Ballot(
            view=view,
            ballot=ballot,
            me=participant.identity.peer,
            expected=expected,
            pacing=Pacing(
                patience=attendance.patience_seconds(participant.rules, period),
                deadline=attendance.deadline_seconds(participant.rules),
            ),
            own_vote=participant.voter.vote_cast(view),
        )
        self._participant = participant
        self._outgoing: dict[str, asyncio.Queue[Message]] = {}
        self._wake = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._opened = asyncio.Event()  # a worker has knocked
        self._opened_at = 0.0
        self._lateness: list[float] = []

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
        if self.ballot.proposal is not None:
            outgoing.put_nowait(self.ballot.proposal)
        if self.ballot.decided is not None:
            outgoing.put_nowait(Decided(self.ballot.decided.encode()))
        self._wake.set()
        writing = asyncio.create_task(self._write(stream, outgoing))
        try:
            await self._read(stream, peer)
        except (NetworkError, RecordError):
            pass  # gone, silent, or not speaking the protocol: the same to the round
        finally:
            writing.cancel()
            if self._outgoing.get(peer) is outgoing:
                del self._outgoing[peer]
                self.ballot.left(peer)
                self._wake.set()
            await asyncio.gather(writing, return_exceptions=True)

    def _note_lateness(self, signed: Signed, now: float) -> None:
        if isinstance(signed.message, Knock) and signed.message.weight:
            if not self._opened.is_set():
                self._opened_at = now
                self._opened.set()
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
                if isinstance(message, Decided | Refused):
                    return

    def _beat(self) -> Message:
        need, have = self.view.rules.rounds.minimum_workers, self.ballot.num_contributions
        return Waiting(have, need) if self.ballot.plan is None and 0 < have < need else Beat()

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
        """Word that an expected peer leaves the run."""
        self.ballot.left(peer)
        self._wake.set()

    def conclude(self, header: bytes) -> None:
        """The round is in the log: tell whoever still waits here."""
        if self.ballot.decided is None:
            self._broadcast(Decided(header))

    async def run(self) -> Header:
        """Raises StateError if this peer's state is not the council's majority's."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            probing = tasks.create_task(self._probe_absent())
            while self.ballot.decided is None:
                for action in self.ballot.advance(loop.time(), self._participant.network.wall_milliseconds()):
                    self._do(action)
                if self.ballot.decided is not None:
                    break
                wakes_at = self.ballot.wakes_at()
                timeout = None if wakes_at is None else max(0.0, wakes_at - loop.time()) + 0.001
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._wake.wait()
                self._wake.clear()
            probing.cancel()
        return self.ballot.decided

    def _do(self, action: Action) -> None:
        assert self._tasks is not None
        match action:
            case SendPlan(plan):
                self._note_attendance(plan)
                self._broadcast(plan)
            case SendProposal(proposal):
                self._propose(proposal)
            case FetchPart(_, part_hash):
                self._tasks.create_task(self._fetch(part_hash))
            case Decide(header):
                self._broadcast(Decided(header.encode()))
            case Refuse(peer, reason):
                self._broadcast(Refused(reason[:64]), {peer})
            case StateDiffers():
                raise StateError(
                    f"round {self.view.round}: a majority of the council has another state than this peer. "
                    "Remove the run's folder (not the key) and join again"
                )

    def _propose(self, proposal: Propose) -> None:
        self._broadcast(proposal, set(self.view.council.members))

    def _note_attendance(self, plan: Plan) -> None:
        if any(part.attempt for part in plan.parts):
            return
        attendance = self._participant.attendance
        attendance.opened(self._lateness)
        for peer in set(self.ballot.expected) - {peer for peer, _ in plan.members}:
            attendance.missed(peer, self.view.round)

    async def _fetch(self, part_hash: bytes) -> None:
        """From whoever knocked: a result is the same bytes everywhere."""
        holders = [peer for peer in self.ballot.knocks if peer != self._participant.identity.peer]
        try:
            await self._participant.follower.fetch_parts([part_hash], holders)
            self.held(part_hash)
        except DataError:
            self.ballot.unavailable(part_hash)
            self._wake.set()

    async def _probe_absent(self) -> None:
        """Dial the expected who have not knocked: one that nobody reaches is not worth waiting for."""
        log = self._participant.follower.log
        await self._opened.wait()
        for member in log.commit(log.head.round).members:
            is_absent = member.peer in self.ballot.expected and member.peer not in self.ballot.knocks
            if is_absent and member.reachable and member.peer != self._participant.identity.peer:
                try:
                    stream = await self._participant.network.dial(
                        member.peer, ping_protocol(self.view.rules), timeout_seconds=PROBE_SECONDS
                    )
                    await stream.close()
                except NetworkError:
                    if member.peer not in self.ballot.knocks:
                        self.ballot.left(member.peer)
                        self._wake.set()


def ping_protocol(rules: RunRules) -> str:
    return f"{rules.protocol_prefix}/ping"
