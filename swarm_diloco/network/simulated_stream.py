"""One stream between two simulated peers: frames cut into chunks that share the peers' lines, in virtual time.

What TCP over a home link does is kept: order, flow control (a receiver that does not read stops its sender after
WINDOW_BYTES), silence while the path is cut, an end that comes a latency after the close.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from swarm_diloco.errors import RecordError, StreamLost, StreamTimeout
from swarm_diloco.network.interface import MAX_FRAME_BYTES

WINDOW_BYTES = 2**20  # sent and not yet read by the other side's program: 16 MB/s at 60 ms, more than a home link has
CHUNK_BYTES = 2**17  # so that the streams of one peer share its line; 10 ms at 100 Mbit/s
HEADER_BYTES = 4


class Host(Protocol):
    """What a stream needs of the peer at its end."""

    @property
    def peer(self) -> str: ...

    @property
    def frozen(self) -> bool: ...

    async def thawed(self) -> None:
        """Wait while the peer is frozen."""
        ...

    def carry(self, stream: "SimulatedStream", line_bytes: int, arrive: Callable[[], None]) -> None:
        """Bring so many bytes to the other end, in order, then call `arrive`."""
        ...

    def forget(self, stream: "SimulatedStream") -> None: ...


@dataclass(frozen=True, slots=True)
class Chunk:
    data: bytes
    frame_bytes: int | None  # the whole frame's length, with its first chunk
    line_bytes: int  # what it takes of the line and of the window


def _chunks(data: bytes) -> Iterator[Chunk]:
    for start in range(0, max(1, len(data)), CHUNK_BYTES):
        piece = data[start : start + CHUNK_BYTES]
        yield Chunk(piece, None if start else len(data), len(piece) + (0 if start else HEADER_BYTES))


class Direction:
    """One half of a stream: what is under way, and what has arrived and is not yet read."""

    def __init__(self, sender: asyncio.Event, reader: asyncio.Event) -> None:
        self.sender, self.reader = sender, reader  # set when there is news for the one or the other end
        self.arrived: deque[Chunk] = deque()
        self.unread_bytes = 0  # under way or arrived
        self.ended = False  # the sender's end has arrived
        self.dropped = False  # what is still under way is lost
        self.reaches_at = 0.0  # when the last chunk so far comes to the receiver's line
        self.lands_at = 0.0  # … and through it
        self.held: deque[Callable[[], None]] = deque()  # what waits for a cut path to heal

    def arrive(self, chunk: Chunk) -> None:
        if not self.dropped:
            self.arrived.append(chunk)
            self.reader.set()

    def end(self) -> None:
        self.ended = True
        self.reader.set()

    def take(self) -> Chunk:
        chunk = self.arrived.popleft()
        self.unread_bytes -= chunk.line_bytes
        self.sender.set()
        return chunk


class SimulatedStream:
    """One peer's end. Implements interface.Stream; a `receive` may be cancelled and called again."""

    def __init__(self, here: Host, peer: str, outgoing: Direction, incoming: Direction) -> None:
        self._here, self._peer = here, peer
        self.outgoing, self.incoming = outgoing, incoming
        self._news = incoming.reader
        self._lost: str | None = None  # why the stream is of no more use
        self._frame: list[bytes] = []  # the chunks of the frame that is being received
        self._missing_bytes: int | None = None  # of that frame; None between frames

    @property
    def peer(self) -> str:
        return self._peer

    async def send(self, frame: bytes | bytearray | memoryview, *, timeout_seconds: float) -> None:
        data = bytes(frame)
        if len(data) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame has at most {MAX_FRAME_BYTES} bytes, not {len(data)}")
        whole = False
        try:
            if self._has_room(len(data) + HEADER_BYTES):
                self._carry_chunks(data)
            else:
                async with asyncio.timeout(timeout_seconds):
                    await self._send_chunks(data)
            whole = True
        except TimeoutError as error:
            await self._here.thawed()
            raise StreamTimeout(f"{self._peer} took no bytes for {timeout_seconds:g} s") from error
        finally:
            if not whole:
                self.break_("a frame was sent in part")

    async def _send_chunks(self, data: bytes) -> None:
        for chunk in _chunks(data):
            await self._room(chunk.line_bytes)
            self._carry(chunk)

    def _carry_chunks(self, data: bytes) -> None:
        """The same where nothing is to be waited for: without a timer, of which a simulation has too many."""
        for chunk in _chunks(data):
            self._carry(chunk)

    def _carry(self, chunk: Chunk) -> None:
        self.outgoing.unread_bytes += chunk.line_bytes
        self._here.carry(self, chunk.line_bytes, partial(self.outgoing.arrive, chunk))

    def _has_room(self, line_bytes: int) -> bool:
        """Raises StreamLost."""
        if self._here.frozen:
            return False
        if self._lost is not None or self.incoming.ended:
            raise StreamLost(f"the stream to {self._peer} has ended: {self._lost or 'closed by the other side'}")
        return self.outgoing.unread_bytes + line_bytes <= WINDOW_BYTES

    async def _room(self, line_bytes: int) -> None:
        """Wait until the window takes so many bytes more. Raises StreamLost."""
        await self._here.thawed()
        while not self._has_room(line_bytes):
            await self._wait_for_news()
            await self._here.thawed()

    async def receive(self, *, timeout_seconds: float, limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
        try:
            if not self._take(limit_bytes):
                async with asyncio.timeout(timeout_seconds):
                    await self._wait_for_frame(limit_bytes)
        except TimeoutError as error:
            await self._here.thawed()
            if not self._take(limit_bytes):
                if self._missing_bytes is not None:
                    self.break_("a frame came in part")
                raise StreamTimeout(f"{self._peer} sent no whole frame for {timeout_seconds:g} s") from error
        frame = b"".join(self._frame)
        self._frame, self._missing_bytes = [], None
        return frame

    async def _wait_for_frame(self, limit_bytes: int) -> None:
        while not self._take(limit_bytes):
            await self._wait_for_news()
            await self._here.thawed()

    def _take(self, limit_bytes: int) -> bool:
        """Read what has arrived; whether a frame is whole now. Raises StreamLost, RecordError."""
        if self._here.frozen:
            return False
        if self._lost is not None:
            raise StreamLost(f"the stream to {self._peer} has ended: {self._lost}")
        while self.incoming.arrived and self._missing_bytes != 0:
            chunk = self.incoming.take()
            if chunk.frame_bytes is not None:
                self._missing_bytes = chunk.frame_bytes
                if chunk.frame_bytes > limit_bytes:
                    self.break_("a frame over the limit")
                    raise RecordError(
                        f"{self._peer} sends a frame of {chunk.frame_bytes} bytes, at most {limit_bytes} are allowed"
                    )
            assert self._missing_bytes is not None
            self._frame.append(chunk.data)
            self._missing_bytes -= len(chunk.data)
        if self._missing_bytes != 0 and self.incoming.ended:
            raise StreamLost(f"{self._peer} ended the stream")
        return self._missing_bytes == 0

    async def _wait_for_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def close(self) -> None:
        self.break_("closed here")

    def break_(self, reason: str, *, drop: bool = False, silently: bool = False) -> None:
        """End both directions: here at once, there a latency later or, `silently`, never. May be called twice.

        `drop`: what was sent and has not arrived is lost.
        """
        if self._lost is not None:
            return
        self._lost = reason
        self.outgoing.dropped |= drop
        self.incoming.arrived.clear()
        self._news.set()
        if not silently:
            self._here.carry(self, 0, self.outgoing.end)
        self._here.forget(self)
