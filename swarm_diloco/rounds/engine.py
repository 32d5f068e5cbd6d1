"""A peer's part in the rounds of one run, for as long as it stays.

Each round is one `Session`: this peer knocks at the round's coordinator, follows its plan, exchanges parts, votes, and
learns the decision, which the follower makes durable and applies. Beside the rounds run the live feed of the log (so
that a peer that is late or still training misses nothing) and the answering of other peers.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swarm_diloco.diloco.ledger import Head, Header, listed_spans, listed_values
from swarm_diloco.errors import DataError, DiskError, NetworkError, RecordError, StateError, SwarmDilocoError
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Network, Stream
from swarm_diloco.network.messages import (
    FIRST_DEGRADED,
    Ahead,
    Beat,
    Behind,
    Bye,
    Coming,
    Decided,
    Here,
    Knock,
    Message,
    Promised,
    Refused,
)
from swarm_diloco.network.wire import Signed, read_signed
from swarm_diloco.rounds.butterfly import HELLO_SECONDS, Traffic
from swarm_diloco.rounds.contribution import Contribution
from swarm_diloco.rounds.decision.degraded import is_degraded
from swarm_diloco.rounds.follower import Applied, Follower
from swarm_diloco.rounds.greeting import greet_for_ever
from swarm_diloco.rounds.participant import Participant
from swarm_diloco.rounds.parts_stream import Hello
from swarm_diloco.rounds.probation import MISSES_REMEMBERED_ROUNDS
from swarm_diloco.rounds.session import Session
from swarm_diloco.rounds.settings import RunRules
from swarm_diloco.rounds.tasks import end, until_first
from swarm_diloco.status import ForkStatus, RoundStatus

BYE_SECONDS = 5.0
MEETING_SECONDS = 2.0  # between two comparisons with one peer
MAX_MET = 256


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a contribution."""

    round: int  # the round that was decided
    listed: float  # fraction of the fragment's values that it is in; 0: it must be brought again
    newest: int  # the round whose θ the replica has now
    credited_tokens: int = 0  # of this peer, in that round
    taken: tuple[tuple[int, int], ...] = ()  # the listed values [first, end) of the fragment; with none, all if any


class Engine:
    """One peer in the rounds. `run` works until cancelled; `contribute` is for workers."""

    def __init__(
        self,
        network: Network,
        identity: Identity,
        rules: RunRules,
        follower: Follower,
        votes_path: Path,
        *,
        trains: bool,
        is_reachable: bool,
        remembered: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.rules = rules
        self.follower = follower
        self._network = network
        self._participant = Participant(
            network, identity, rules, follower, votes_path, trains, is_reachable, remembered=remembered
        )
        self._session: Session | None = None
        self._session_changed = asyncio.Event()
        self._due_callbacks: list[Callable[[int], None]] = []
        self.due_lead_seconds = 0.0
        self._past_traffic = (0, 0)  # bytes of parts sent and received in the rounds before this one
        self._meet_again_at: dict[str, float] = {}  # peer -> not before: whoever knocks could else keep us dialling
        follower.subscribe(self._on_applied)

    # --- for the app

    def on_due(self, callback: Callable[[int], None]) -> None:
        """Be told when a round is due: a worker forms its pseudo-gradient then. Not called with pace "steps".

        The call comes `due_lead_seconds` early. With a lead of one inner step nobody waits for a step that ends late.
        """
        self._due_callbacks.append(callback)

    async def begin_training(self) -> None:
        """The trainer is at work: rounds may wait for this worker from now on."""
        self._participant.is_training = True
        if self._session is not None:
            await self._session.announce_newcomer()

    async def contribute(self, contribution: Contribution) -> Outcome:
        """Bring a pseudo-gradient to the next round and wait until that round is decided.

        A Δ that was not taken against the newest θ is not sent: the outcome then says so at once (listed 0).
        """
        round_ = contribution.base_round + 1
        session = await self._session_of(round_)
        if session is not None:
            await session.bring(contribution)
        await self.follower.wait_past(round_ - 1)
        while self.follower.replica.round < round_:
            await self._session_changed.wait()
        commit = self.follower.log.commit(round_)
        entry, sizes = commit.member(self._network.peer), self.rules.part_sizes(commit.fragment)
        listed = listed_values(commit, self._network.peer, sizes) / sum(sizes)
        if entry is not None and (session is None or entry.knock_hash not in session.knock_hashes):
            # It took what this peer knocked with before a restart: of this contribution so many tokens are credited.
            listed = min(1.0, entry.tokens / contribution.tokens) if contribution.tokens else 0.0
        taken = listed_spans(commit, self._network.peer, self.rules.part_slices(commit.fragment)) if listed else ()
        return Outcome(round_, listed, self.follower.replica.round, entry.tokens if entry else 0, taken)

    async def leave(self) -> None:
        """Say bye to the coordinator, so that nobody waits for this peer. Bounded; a bye that fails costs a wait."""
        if self._session is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(BYE_SECONDS):
                    await self._session.leave()

    def status(self) -> RoundStatus:
        session = self._session
        sent_bytes, received_bytes = self._traffic()
        return RoundStatus(
            round=self.follower.replica.round,
            digest=self.follower.log.head.digest.hex(),
            open_round=session.round if session else None,
            phase=session.phase if session else "repairing" if self.follower.repairs else "starting",
            ballot=session.ballot % FIRST_DEGRADED if session else 0,
            is_degraded=session is not None and is_degraded(session.ballot),
            coordinator=session.view.candidate(session.ballot) if session else None,
            council=session.view.council.members if session else (),
            members=session.plan_members if session else (),
            waiting_for=session.waiting_for if session else None,
            sent_bytes=sent_bytes,
            received_bytes=received_bytes,
            num_repairs=len(self.follower.repairs),
            forks=tuple(
                ForkStatus(
                    since_round=fork.common_round + 1,
                    head_round=fork.head.round,
                    head_digest=fork.head.digest.hex(),
                )
                for fork in self.follower.forks.all()
            ),
        )

    def _traffic(self) -> tuple[int, int]:
        now = self._session.exchange.traffic if self._session else Traffic()
        return self._past_traffic[0] + now.sent_bytes, self._past_traffic[1] + now.received_bytes

    # --- the rounds

    async def run(self) -> None:
        """Take part until cancelled. Raises StateError, DiskError or RunRefused when this peer can go on no more."""
        if self.follower.replica.round < 0:
            raise DiskError("this peer has no state of the run: catch up first")
        self._participant.load_votes()
        await self.follower.serve()
        await self._network.serve(self.rules.control_protocol, self._on_control)
        await self._network.serve(self.rules.parts_protocol, self._on_parts)
        await self._network.serve(self.rules.ping_protocol, _answer_ping)
        await until_first(
            self.follower.follow(lambda: self._participant.donors),
            self._play(),
            greet_for_ever(self._participant, self._meet),
        )

    async def _play(self) -> None:
        """Round after round."""
        while True:
            await self._until_current()
            session = Session(self._participant)
            self._session = session
            self._announce_change()
            due = asyncio.create_task(self._when_due(session))
            try:
                await session.run()
            except StateError as error:
                self.follower.condemn_state(error)
            finally:
                due.cancel()
                await asyncio.gather(due, return_exceptions=True)
            self._past_traffic = self._traffic()
            self._session = None

    async def _until_current(self) -> None:
        while not self.follower.is_current:
            try:
                await self.follower.repair(self._participant.donors)
            except (NetworkError, RecordError, SwarmDilocoError) as error:
                if error.exit_status in FATAL:
                    raise
                await asyncio.sleep(1.0)

    async def _when_due(self, session: Session) -> None:
        """Open the round for this peer: next_due after the last decision, or as soon as a worker's steps are done.

        An archive that the newest commit does not list knocks at once: nobody waits for it, and a short round would be
        over before its knock is there.
        """
        newest = self.follower.log.commit(session.round - 1)
        next_due = newest.next_due_ms / 1000
        lead = min(self.due_lead_seconds, next_due / 2) if self._participant.trains else 0.0
        if self._participant.trains or newest.member(self._network.peer) is not None:
            await asyncio.sleep(max(0.0, next_due - lead - self.follower.head_age_seconds()))
        if not self._participant.trains:
            session.take_part()
        elif self.rules.schedule.pace == "time" and next_due:
            for callback in self._due_callbacks:
                callback(session.round)

    def _on_applied(self, _applied: Applied) -> None:
        self._announce_change()

    def _announce_change(self) -> None:
        self._session_changed.set()
        self._session_changed = asyncio.Event()

    async def _session_of(self, round_: int) -> Session | None:
        """The session of a round, when it is the next one; None when it is another."""
        while self._session is None or self._session.round < round_:
            if self.follower.log.head.round >= round_:
                return None
            await self._session_changed.wait()
        return self._session if self._session.round == round_ else None

    # --- others' streams

    async def _on_control(self, stream: Stream) -> None:
        frame = await stream.receive(timeout_seconds=HELLO_SECONDS)
        try:
            signed = read_signed(frame, run=self.rules.run_id, sender=stream.peer)
        except RecordError:
            return
        if not isinstance(signed.message, Knock | Coming | Bye | Promised | Here):
            return
        log = self.follower.log
        if isinstance(signed.message, Here):
            await self._reply(stream, signed, Here())
            await self._meet(signed.sender, signed.head)
        elif signed.round <= log.head.round:
            self._note_late(signed)
            await self._reply(stream, signed, Behind(log.header_bytes(log.head.round)))
        elif signed.round > log.head.round + 1:
            await self._reply(stream, signed, Ahead())
            if await self._is_told(signed, stream):
                await self._admit(signed, stream)
            else:
                await self._meet(signed.sender, signed.head)
        elif signed.head.digest != log.digest(signed.round - 1):
            await self._reply(stream, signed, Refused("the knock is for another chain"))
            await self._meet(signed.sender, signed.head)
        else:
            await self._admit(signed, stream)

    async def _admit(self, signed: Signed, stream: Stream) -> None:
        session = await self._open_session(signed.round)
        if session is None:
            await self._reply(stream, signed, Ahead())
        else:
            await session.candidacy.admit(signed, stream)

    def _note_late(self, signed: Signed) -> None:
        """A knock at a round of this log that is decided: who keeps coming a moment late is waited for next time."""
        log, round_ = self.follower.log, signed.round
        is_recent = max(0, log.head.round - MISSES_REMEMBERED_ROUNDS) < round_
        if isinstance(signed.message, Knock) and is_recent and signed.head.digest == log.digest(round_ - 1):
            self._participant.attendance.came_late(signed.sender)
            if self._session is not None:
                self._session.candidacy.expect(signed.sender)

    async def _is_told(self, signed: Signed, stream: Stream) -> bool:
        """Whether the knocker has told, on the same stream, of the one commit that this peer lacks."""
        if not isinstance(signed.message, Knock):
            return False
        with suppress(NetworkError, RecordError, DataError, StateError):
            frame = await stream.receive(timeout_seconds=HELLO_SECONDS)
            told = read_signed(frame, run=self.rules.run_id, sender=stream.peer).message
            header = Header.decode(told.header) if isinstance(told, Decided) else None
            if header is not None and header.commit().round == self.follower.log.head.round + 1:
                holders = [stream.peer, *self._participant.donors]
                learning = asyncio.create_task(self.follower.learn(header, holders))
                try:
                    while not (await asyncio.wait({learning}, timeout=self.rules.rounds.heartbeat_seconds))[0]:
                        await self._reply(stream, signed, Beat())
                    learning.result()
                finally:
                    await end([learning])
        return self.follower.log.head.round + 1 == signed.round

    async def _meet(self, peer: str, head: Head) -> None:
        """Learn from a peer that is ahead, also if nobody else can dial it; see a fork if its head is not on my log."""
        now, log = asyncio.get_running_loop().time(), self.follower.log
        if now < self._meet_again_at.get(peer, now):
            return
        self._meet_again_at.pop(peer, None)  # the newest come last
        self._meet_again_at[peer] = now + MEETING_SECONDS
        while len(self._meet_again_at) > MAX_MET:
            del self._meet_again_at[next(iter(self._meet_again_at))]
        if head.round <= log.head.round:
            await self.follower.compare(peer)
            return
        try:
            await self.follower.catch_up([peer])
        except (NetworkError, RecordError, DataError, StateError):
            await self.follower.compare(peer)

    async def _open_session(self, round_: int) -> Session | None:
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                return await self._session_of(round_)
        except TimeoutError:
            return None

    async def _reply(self, stream: Stream, signed: Signed, message: Message) -> None:
        answer = self._participant.sign(signed.round, signed.ballot, message)
        await stream.send(answer.frame, timeout_seconds=self.rules.rounds.silence_seconds)

    async def _on_parts(self, stream: Stream) -> None:
        """A member's stream to this peer as a reducer. It may come before our own plan does."""
        try:
            hello = Hello.decode(await stream.receive(timeout_seconds=HELLO_SECONDS, limit_bytes=256))
        except RecordError:
            return
        session = await self._open_session(hello.round)
        if session is None or session.view.prev != hello.prev:
            return
        try:
            async with asyncio.timeout(self.rules.rounds.deadline_seconds):
                butterfly = await session.exchange.at(hello.ballot)
        except TimeoutError:
            return
        if butterfly is not None:
            await butterfly.accept(stream)


FATAL = (13, 17)  # DiskError, StateError: waiting does not help


async def _answer_ping(_stream: Stream) -> None:
    """The stream's opening was the answer."""
