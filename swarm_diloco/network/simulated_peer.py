"""One peer of a simulated network: its line, its streams, what a crash or a freeze does to it."""

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from swarm_diloco.errors import NetworkError, PeerUnreachable, SwarmDilocoError
from swarm_diloco.network.discovery import MAX_RECORD_BYTES
from swarm_diloco.network.interface import Handler
from swarm_diloco.network.simulated_stream import Direction, SimulatedStream

T = TypeVar("T")

FIRST_WALL_MILLISECONDS = 1_700_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSettings:
    """One peer's line. A path's latency and jitter are the sums of its two ends', its loss the larger."""

    latency_seconds: float = 0.02  # one way, from the peer to the middle of the network
    jitter_seconds: float = 0.0  # at most so much more, drawn for each chunk; order is kept
    up_bytes_per_second: float | None = None
    down_bytes_per_second: float | None = None
    loss_fraction: float = 0.0  # of chunks and dials that come a retransmission later
    dial_failure_fraction: float = 0.0  # of dials to this peer that fail at once
    tail_loss_fraction: float = 0.0  # of streams that lose what is under way when this peer closes them
    client_mode: bool = False  # behind NAT: dials, and cannot be dialled
    clock_offset_milliseconds: int = 0

    def __post_init__(self) -> None:
        if min(self.latency_seconds, self.jitter_seconds) < 0:
            raise ValueError("a line's latency and jitter are not negative")
        for rate in (self.up_bytes_per_second, self.down_bytes_per_second):
            if rate is not None and rate <= 0:
                raise ValueError(f"a line's rate is above 0 bytes/s, not {rate}")
        if not 0 <= self.loss_fraction <= 0.5:
            raise ValueError(f"a line loses from 0 to half of its chunks, not {self.loss_fraction}")


class World(Protocol):
    """What a peer needs of the network between the peers; simulated_network.SimulatedWorld is it."""

    random: random.Random

    async def travel(self, here: "SimulatedNetwork", peer: str, legs: int) -> "SimulatedNetwork":
        """Wait for so many one-way trips, and while the path is cut. Raises PeerUnreachable."""
        ...

    def delay(self, here: "SimulatedNetwork", there: "SimulatedNetwork") -> float:
        """One trip's seconds, drawn anew each time."""
        ...

    def reach(
        self, here: "SimulatedNetwork", there: "SimulatedNetwork", way: Direction, land: Callable[[], None]
    ) -> None:
        """Call `land`, now or when the cut path heals."""
        ...

    async def publish(self, here: "SimulatedNetwork", record: bytes, lifetime_seconds: float) -> None: ...

    async def published(self, here: "SimulatedNetwork") -> Mapping[str, bytes]: ...


class SimulatedNetwork:
    """One peer's access to the others. Implements interface.Network; made by SimulatedWorld.network.

    A peer in client mode can be dialled only by those whom it has dialled itself: over that connection, as in libp2p.
    """

    def __init__(self, world: World, peer: str, link: LinkSettings, number: int) -> None:
        self.link = link
        self.remembered: dict[str, tuple[str, ...]] = {}
        self.sent_bytes = self.received_bytes = 0
        self.closed = False
        self._world, self._peer, self._number = world, peer, number
        self._handlers: dict[str, Handler] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._streams: dict[SimulatedStream, SimulatedNetwork] = {}
        self._connections: set[SimulatedNetwork] = set()  # that this peer has made
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._up_free_at = self._down_free_at = 0.0

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def frozen(self) -> bool:
        return not self._thawed.is_set()

    async def thawed(self) -> None:
        while self.frozen:
            await self._thawed.wait()

    async def _usable(self) -> None:
        await self.thawed()
        if self.closed:
            raise NetworkError("this network is closed")

    async def serve(self, protocol: str, handler: Handler) -> None:
        await self._usable()
        if protocol in self._handlers:
            raise ValueError(f"{protocol} is served already")
        self._handlers[protocol] = handler

    async def dial(self, peer: str, protocol: str, *, timeout_seconds: float) -> SimulatedStream:
        if peer == self._peer:
            raise ValueError("a peer does not dial itself")
        await self._usable()
        try:
            async with asyncio.timeout(timeout_seconds):
                there = await self._world.travel(self, peer, 2)
        except TimeoutError as error:
            await self._usable()
            raise PeerUnreachable(f"{peer} did not answer in {timeout_seconds:g} s") from error
        await self._usable()
        handler = there._accepts(self, protocol, self._world.random)
        self._connections.add(there)
        wake_here, wake_there = asyncio.Event(), asyncio.Event()
        forth, back = Direction(wake_here, wake_there), Direction(wake_there, wake_here)
        stream = SimulatedStream(self, peer, forth, back)
        self._streams[stream] = there
        there._accept(SimulatedStream(there, self._peer, back, forth), self, handler)
        return stream

    def _accepts(self, caller: "SimulatedNetwork", protocol: str, chance: random.Random) -> Handler:
        if self.closed:
            raise PeerUnreachable(f"{self._peer} is not there")
        if self.link.client_mode and caller not in self._connections:
            raise PeerUnreachable(f"{self._peer} is behind NAT and cannot be dialled")
        if chance.random() < self.link.dial_failure_fraction:
            raise PeerUnreachable(f"the handshake with {self._peer} failed")
        if protocol not in self._handlers:
            raise PeerUnreachable(f"{self._peer} does not serve {protocol}")
        return self._handlers[protocol]

    def _accept(self, stream: SimulatedStream, caller: "SimulatedNetwork", handler: Handler) -> None:
        self._streams[stream] = caller
        task = asyncio.get_running_loop().create_task(self._handle(handler, stream))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _handle(self, handler: Handler, stream: SimulatedStream) -> None:
        try:
            await self.thawed()
            await handler(stream)
        except SwarmDilocoError:
            pass  # the stream's end tells the other side
        except Exception as error:
            context = {"message": f"a handler at {self._peer} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        finally:
            await stream.close()

    def carry(self, stream: SimulatedStream, line_bytes: int, arrive: Callable[[], None]) -> None:
        """From here to the other end of `stream`, in order; used by SimulatedStream."""
        there, way, loop = self._streams[stream], stream.outgoing, asyncio.get_running_loop()
        if line_bytes == 0 and self.link.tail_loss_fraction > self._world.random.random():
            way.dropped = True
        self.sent_bytes += line_bytes
        leaves_at = loop.time()
        if self.link.up_bytes_per_second is not None:
            leaves_at = max(leaves_at, self._up_free_at) + line_bytes / self.link.up_bytes_per_second
            self._up_free_at = leaves_at
        # No two chunks of a direction at one time: timers of equal times run in no set order.
        way.reaches_at = max(leaves_at + self._world.delay(self, there), math.nextafter(way.reaches_at, math.inf))
        loop.call_at(way.reaches_at, self._world.reach, self, there, way, lambda: there._land(way, line_bytes, arrive))

    def _land(self, way: Direction, line_bytes: int, arrive: Callable[[], None]) -> None:
        self.received_bytes += line_bytes
        loop = asyncio.get_running_loop()
        lands_at = loop.time()
        if self.link.down_bytes_per_second is None and way.lands_at < lands_at:
            arrive()
            return
        if self.link.down_bytes_per_second is not None:
            lands_at = max(lands_at, self._down_free_at) + line_bytes / self.link.down_bytes_per_second
            self._down_free_at = lands_at
        way.lands_at = max(lands_at, math.nextafter(way.lands_at, math.inf))
        loop.call_at(way.lands_at, arrive)

    def disconnect(self, other: "SimulatedNetwork") -> None:
        """The connection that this peer has made to `other` is gone."""
        self._connections.discard(other)

    def forget(self, stream: SimulatedStream) -> None:
        self._streams.pop(stream, None)

    def remember(self, peer: str, addresses: Sequence[str]) -> None:
        self.remembered[peer] = tuple(addresses)

    def addresses(self) -> Sequence[str]:
        if self.link.client_mode:
            return ()
        return (f"/ip4/10.{self._number >> 16}.{self._number >> 8 & 255}.{self._number & 255}/tcp/4001",)

    async def announce(self, record: bytes, *, lifetime_seconds: float) -> None:
        if len(record) > MAX_RECORD_BYTES:
            raise ValueError(f"a record has at most {MAX_RECORD_BYTES} bytes, not {len(record)}")
        await self._usable()
        await self._world.publish(self, record, lifetime_seconds)

    async def discover(self) -> Mapping[str, bytes]:
        await self._usable()
        records = await self._world.published(self)
        await self._usable()
        return records

    async def run_blocking(self, function: Callable[..., T], *args: object) -> T:
        await self.thawed()
        return function(*args)

    async def is_reachable(self, judge: str, *, timeout_seconds: float) -> bool:
        await self._usable()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._world.travel(self, judge, 4)
        except (TimeoutError, PeerUnreachable):
            await self._usable()
            return False
        await self._usable()
        return not self.link.client_mode

    def wall_milliseconds(self) -> int:
        seconds = asyncio.get_running_loop().time()
        return FIRST_WALL_MILLISECONDS + round(seconds * 1000) + self.link.clock_offset_milliseconds

    async def close(self) -> None:
        """Leave: every stream ends, handlers are cancelled, others find the port refused."""
        self.stop(silently=False, drop=False)

    def stop(self, *, silently: bool, drop: bool) -> None:
        self.closed = True
        for stream in list(self._streams):
            stream.break_("this network is closed", drop=drop, silently=silently)
        for task in list(self._tasks):
            task.cancel()

    def freeze(self) -> None:
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    def streams(self) -> list[tuple[SimulatedStream, "SimulatedNetwork"]]:
        return list(self._streams.items())
