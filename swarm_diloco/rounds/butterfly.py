"""One round's parts on the move: reduce-scatter to the reducers, all-gather of what they averaged (protocol rule 5).

A member opens one two-way stream to each reducer: its encoded parts go out on it, the averaged parts come back. A
reducer keeps what comes encoded, closes a part when all planned senders are in or gone or time is up, sums in plan
order, encodes **once**, and sends the same bytes to all; its own value is decoded from those bytes too.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from swarm_diloco.diloco.aggregate import aggregate
from swarm_diloco.diloco.codec import Data
from swarm_diloco.diloco.ledger import is_in_bitmap, member_bitmap
from swarm_diloco.diloco.schedule import fragment_of_round
from swarm_diloco.errors import NetworkError, RecordError
from swarm_diloco.network.interface import Network, Stream
from swarm_diloco.network.messages import Plan, Sealed
from swarm_diloco.rounds.line import Line
from swarm_diloco.rounds.log import PartStore
from swarm_diloco.rounds.part_frame import PartFrame
from swarm_diloco.rounds.part_sender import Key, PartSender
from swarm_diloco.rounds.parts_stream import MAX_ACK_BYTES, Hello, decode_ack
from swarm_diloco.rounds.settings import RunRules
from swarm_diloco.rounds.tasks import Tasks, until_first

HELLO_SECONDS = 10.0
DIAL_TRIES = 3
RETRY_SECONDS = 0.5
LATE_SECONDS = 1.0  # a timer so late says that this peer was asleep
CODEC_ROOM = 2.0  # a mean is no longer than the longest contribution; its codec may add a little


@dataclass(slots=True)
class _Reduction:
    """One part that this peer averages."""

    senders: set[str]
    awaited: set[str]
    inputs: dict[str, Data] = field(default_factory=dict)
    is_closed: bool = False


@dataclass(slots=True)
class Traffic:
    """Payload of one round, for the views and the next plan's shares."""

    sent_bytes: int = 0
    received_bytes: int = 0
    line: Line = field(default_factory=Line)


class Butterfly:
    """One member's share of the exchange of one ballot, from its first plan until the round is decided.

    `encoded` are this member's parts, or None without a contribution. `on_sealed` is called for each part averaged
    here, `on_held` for each averaged part whose bytes are here now (in `parts`). Nobody waits for the parts of a
    `doubtful` sender. Cancelling `run` ends all. Plans are checked by the caller.
    """

    def __init__(
        self,
        network: Network,
        rules: RunRules,
        *,
        round_: int,
        ballot: int,
        prev: bytes,
        encoded: Sequence[memoryview] | None,
        parts: PartStore,
        traffic: Traffic,
        on_sealed: Callable[[Sealed], None],
        on_held: Callable[[bytes], None],
        doubtful: Collection[str] = (),
        coordinator: str | None = None,
    ) -> None:
        self.in_vain: set[str] = set()  # senders that this peer waited for as a reducer until a part's end
        self.delivered: set[str] = set()  # and those of which all came that was planned; of a doubtful one, something
        self.refused: dict[str, str] = {}  # sender -> why its part was not taken
        self._network = network
        self._rules = rules
        self._part_sizes = rules.part_sizes(fragment_of_round(round_, rules.num_fragments))
        self._hello = Hello(round_, ballot, prev)
        self._encoded = encoded
        self._parts = parts
        self._traffic = traffic
        self._on_sealed = on_sealed
        self._on_held = on_held
        self._doubtful = doubtful
        self.coordinator = coordinator
        self._plan: Plan | None = None
        self.slow: set[str] = set()  # planned for some parts only
        self._gone: set[str] = set()
        self._reductions: dict[Key, _Reduction] = {}
        self._sealed: dict[Key, bytes] = {}  # averaged here or received -> its hash
        self._to_send: dict[str, list[Key]] = {}  # reducer -> what is planned to go there
        self._senders: dict[str, PartSender] = {}  # reducer -> the stream on which it is going there
        self._awaited: dict[str, set[Key]] = {}  # reducer -> what is still to come from there
        self._exchanges: dict[str, asyncio.Task[None] | None] = {}
        self._listeners: list[PartSender] = []  # one for each stream that a member has opened
        self._num_planned: Counter[str] = Counter()  # sender -> parts to come here
        self._tasks = Tasks()
        self._begun = asyncio.Event()  # the first plan's reductions stand
        self._planned_more = asyncio.Event()  # replaced at each plan

    async def run(self) -> None:
        """Work until cancelled. Parts are then let go, also when somebody still refers to this object."""
        try:
            await self._tasks.run(self._begin())
        finally:
            self._encoded = None
            self._exchanges.clear()  # a cancelled task refers to its frames, and these to us
            for reduction in self._reductions.values():
                reduction.is_closed = True
                reduction.inputs.clear()

    async def _begin(self) -> None:
        if self._plan is not None:
            self._act_on(self._plan)
        await asyncio.Event().wait()

    def follow_plan(self, plan: Plan) -> None:
        """Take the coordinator's plan, or a later one in which failed parts have another reducer."""
        self._plan = plan
        if self._tasks.is_open:
            self._act_on(plan)

    def _act_on(self, plan: Plan) -> None:
        me = self._network.peer
        peers = [peer for peer, _ in plan.members]
        if me not in peers:
            return
        if not self._begun.is_set():
            first = [part.senders for part in plan.parts if part.attempt == 0]  # later attempts lack who had gone
            self.slow = {
                peer
                for i, (peer, weight) in enumerate(plan.members)
                if weight and peer != self.coordinator and not all(is_in_bitmap(senders, i) for senders in first)
            }
        for part, planned in enumerate(plan.parts):
            key, reducer = (part, planned.attempt), peers[planned.reducer]
            senders = {peer for i, peer in enumerate(peers) if is_in_bitmap(planned.senders, i)}
            if reducer == me and key not in self._reductions:
                self._reductions[key] = _Reduction(senders, senders.difference(self._doubtful) or senders)
                self._num_planned.update(senders)
                self._tasks.start(self._close_later(key, plan.close_in_ms / 1000))
                if me in senders and self._encoded is not None:
                    self._reductions[key].inputs[me] = self._encoded[part]
                self._close_if_complete(key)
            elif reducer != me and key not in self._sealed and key not in self._awaited.setdefault(reducer, set()):
                self._awaited[reducer].add(key)
                if me in senders and self._encoded is not None:
                    self._to_send.setdefault(reducer, []).append(key)
                    if reducer in self._senders:
                        self._senders[reducer].give(key)
        for reducer in self._awaited:
            exchange = self._exchanges.get(reducer)
            if self._awaited[reducer] and (exchange is None or exchange.done()):
                self._exchanges[reducer] = self._tasks.start(self._exchange_with(reducer))
        self._begun.set()
        self._planned_more.set()
        self._planned_more = asyncio.Event()

    # --- as a member

    async def _exchange_with(self, reducer: str) -> None:
        """Send my parts to one reducer and take its results; a broken stream is dialled again, with all of them."""
        num_failures = 0
        while self._awaited[reducer] and num_failures < DIAL_TRIES:
            try:
                await self._exchange_once(reducer)
            except (NetworkError, RecordError):
                await asyncio.sleep(RETRY_SECONDS * 2**num_failures)
                num_failures += 1

    async def _exchange_once(self, reducer: str) -> None:
        stream = await self._network.dial(
            reducer, self._rules.parts_protocol, timeout_seconds=self._rules.rounds.silence_seconds
        )
        try:
            await stream.send(self._hello.encode(), timeout_seconds=self._limit)
            sender = self._sender(stream, self._unsealed, is_contribution=True)
            self._senders[reducer] = sender
            for key in self._to_send.get(reducer, []):  # also what a stream before this one may have brought
                sender.give(key)
            try:
                await until_first(self._take_results(stream, reducer, sender), sender.run())
            finally:
                del self._senders[reducer]
                self._end(sender)
            await stream.send(b"", timeout_seconds=self._limit)
            with suppress(NetworkError):
                await stream.receive(timeout_seconds=HELLO_SECONDS)  # its close: all was read
        finally:
            await stream.close()

    def _sender(
        self, stream: Stream, frame_of: Callable[[Key], PartFrame | None], *, is_contribution: bool
    ) -> PartSender:
        return PartSender(
            stream,
            self._traffic.line,
            frame_of,
            is_contribution=is_contribution,
            timeout_seconds=lambda: self._limit,
        )

    def _end(self, sender: PartSender) -> None:
        self._traffic.sent_bytes += sender.sent_bytes
        sender.end()

    def _unsealed(self, key: Key) -> PartFrame | None:
        assert self._encoded is not None
        return None if key in self._sealed else PartFrame(*key, self._encoded[key[0]])

    @property
    def _limit(self) -> float:
        """The longest that one frame may take."""
        assert self._plan is not None
        return self._plan.deadline_in_ms / 1000

    async def _take_results(self, stream: Stream, reducer: str, sender: PartSender) -> None:
        again: set[Key] = set()  # a second stream brings once more what the first has brought
        while awaited := self._awaited[reducer]:
            received = await stream.receive(timeout_seconds=self._limit)
            if len(received) <= MAX_ACK_BYTES:
                sender.acknowledged(decode_ack(received))
                continue
            frame = PartFrame.decode(received)
            key = (frame.part, frame.attempt)
            if key in self._sealed and key not in again:
                again.add(key)
                sender.took(len(frame.data))
                continue
            if key not in awaited:
                raise RecordError(f"{reducer} sent part {key}, which it was not asked for")
            _check_result(self._rules, frame.part, frame.data, self._part_sizes[frame.part])
            self._traffic.received_bytes += len(frame.data)
            awaited.remove(key)
            self._hold(key, bytes(frame.data), frame.part_hash)
            sender.took(len(frame.data))

    def _hold(self, key: Key, data: bytes, part_hash: bytes | None = None) -> None:
        self._sealed[key] = self._parts.hold(data, part_hash)
        self._on_held(self._sealed[key])

    # --- as a reducer

    async def accept(self, stream: Stream) -> None:
        """A member's stream, its hello read. Returns when the member has all it came for, or is gone."""
        if self._plan is None or stream.peer not in dict(self._plan.members):
            return
        if sum(listener.peer == stream.peer for listener in self._listeners) >= DIAL_TRIES:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(HELLO_SECONDS):
                await self._begun.wait()  # a part may have come before our own first step
        if not self._begun.is_set():
            return
        listener = self._sender(stream, self._averaged, is_contribution=False)
        self._listeners.append(listener)
        self._offer(listener)
        self._gone.discard(stream.peer)
        try:
            await until_first(self._take_inputs(stream, listener), listener.run())
        except (NetworkError, RecordError) as error:
            if isinstance(error, RecordError):
                self.refused[stream.peer] = str(error)
            self._lost(stream.peer)
        finally:
            self._listeners.remove(listener)
            self._end(listener)

    async def _take_inputs(self, stream: Stream, listener: PartSender) -> None:
        taken: set[Key] = set()
        while frame := await stream.receive(timeout_seconds=self._limit + HELLO_SECONDS):
            if len(frame) <= MAX_ACK_BYTES:
                listener.acknowledged(decode_ack(frame))
                continue
            part = PartFrame.decode(frame)
            key = (part.part, part.attempt)
            reduction = await self._reduction(key)
            if reduction is None or stream.peer not in reduction.senders or key in taken:
                raise RecordError(f"part {part.part}, attempt {part.attempt}: not planned here, or sent twice")
            taken.add(key)
            _check_input(self._rules, part, self._part_sizes[part.part])
            self._traffic.received_bytes += len(part.data)
            if not reduction.is_closed:
                reduction.inputs.setdefault(stream.peer, part.data)
                self._close_if_complete(key)
            if len(taken) == self._num_planned[stream.peer] or stream.peer in self._doubtful:
                self.delivered.add(stream.peer)  # a doubtful one may have its results before it has sent all
            listener.took(len(part.data))

    async def _reduction(self, key: Key) -> _Reduction | None:
        """The part may be a second attempt whose plan the sender has got a moment before this peer."""
        assert self._plan is not None
        part, attempt = key
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rules.rounds.silence_seconds):
                while part < len(self._plan.parts) and attempt > self._plan.parts[part].attempt:
                    await self._planned_more.wait()
        return self._reductions.get(key)

    def _averaged(self, key: Key) -> PartFrame:
        data = self._parts.get(self._sealed[key])
        if data is None:
            raise RecordError("this exchange is over")  # the round was decided with other parts
        return PartFrame(*key, data, self._sealed[key])

    def _offer(self, listener: PartSender) -> None:
        """What is averaged here, but for who is too slow to send all: it fetches the result when it is decided.

        The coordinator needs it before.
        """
        if listener.peer not in self.slow:
            for key in self._sealed:
                if key in self._reductions:
                    listener.give(key)

    def _lost(self, peer: str) -> None:
        """Wait no longer for what this sender has not sent."""
        self._gone.add(peer)
        for key in list(self._reductions):
            self._close_if_complete(key)

    async def _close_later(self, key: Key, seconds: float) -> None:
        closes_at = asyncio.get_running_loop().time() + seconds
        await asyncio.sleep(seconds)
        reduction = self._reductions[key]
        missing = reduction.awaited - reduction.inputs.keys() - self._gone
        others = reduction.senders - {self._network.peer}
        is_late = asyncio.get_running_loop().time() > closes_at + LATE_SECONDS
        if not reduction.is_closed and not is_late and (len(others) == 1 or missing != others):
            self.in_vain |= missing  # else this peer was asleep or cut off itself
        self._close(key)

    def _close_if_complete(self, key: Key) -> None:
        reduction = self._reductions[key]
        if all(peer in reduction.inputs or peer in self._gone for peer in reduction.awaited):
            self._close(key)

    def _close(self, key: Key) -> None:
        reduction = self._reductions[key]
        if reduction.is_closed or not reduction.inputs or not self._tasks.is_open:
            return  # a part that nobody sent is not sealed; its coordinator notices
        reduction.is_closed = True
        self._tasks.start(self._reduce(key, reduction))

    async def _reduce(self, key: Key, reduction: _Reduction) -> None:
        assert self._plan is not None
        order = [i for i, (peer, _) in enumerate(self._plan.members) if peer in reduction.inputs]
        weights = [self._plan.members[i][1] for i in order]
        inputs = [reduction.inputs[self._plan.members[i][0]] for i in order]
        data = await self._network.run_blocking(_average, self._rules, inputs, weights, self._part_sizes[key[0]])
        reduction.inputs.clear()
        self._hold(key, data)
        for listener in self._listeners:
            if listener.peer not in self.slow:
                listener.give(key)
        self._on_sealed(Sealed(*key, self._sealed[key], member_bitmap(order)))


def _average(rules: RunRules, inputs: Sequence[Data], weights: Sequence[int], num_values: int) -> bytes:
    return rules.download.encode(aggregate(inputs, weights, rules.upload, num_values))


def _check_input(rules: RunRules, part: PartFrame, num_values: int) -> None:
    """Size, codec, finiteness and norm, before the bytes are kept. Raises RecordError."""
    norm = rules.upload.check(part.data, num_values)
    if norm > rules.rounds.maximum_norm:
        raise RecordError(f"part {part.part}: its norm {norm:.3g} is past the manifest's limit")


def check_result(rules: RunRules, fragment: int, part: int, data: bytes) -> None:
    """Whether these bytes can be an averaged part: size, codec, finiteness, norm. Raises RecordError."""
    _check_result(rules, part, data, rules.part_sizes(fragment)[part])


def _check_result(rules: RunRules, part: int, data: Data, num_values: int) -> None:
    norm = rules.download.check(data, num_values)
    if norm > rules.rounds.maximum_norm * CODEC_ROOM:
        raise RecordError(f"part {part}: the mean's norm {norm:.3g} is past the manifest's limit")
