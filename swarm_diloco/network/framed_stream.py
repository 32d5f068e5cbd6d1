"""Frames over one asyncio connection: a 4-byte big-endian length, then so many bytes. Every wait has its deadline."""

import asyncio
import contextlib
from typing import cast

from swarm_diloco.errors import RecordError, StreamLost, StreamTimeout
from swarm_diloco.network.interface import MAX_FRAME_BYTES
from swarm_diloco.network.read_buffer import ReadBuffer

HEADER_BYTES = 4
SMALL_BYTES = 2**12  # of a frame go out together with its header; the rest is not copied
CHUNK_BYTES = 2**18  # handed to the transport at once; larger ones are no faster (measured with p2pd)
WRITE_BUFFER_BYTES = 2**19  # waiting in the transport before a sender waits
READ_BUFFER_BYTES = 2**20  # read ahead of a receiver
CLOSE_SECONDS = 2.0  # for what is still in the transport's buffer


class FramedStream:
    """Implements interface.Stream. A cancelled `receive` may be called again; a cancelled `send` ends the stream."""

    def __init__(
        self,
        peer: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        remote_address: str | None = None,  # where the other side's connection comes from, as a multiaddr
    ) -> None:
        self._peer = peer
        self._writer = writer  # kept, because it closes the connection when it is collected
        self._transport = cast("asyncio.Transport", writer.transport)
        self.remote_address = remote_address
        self._buffer = ReadBuffer(self._transport, reader)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._frame_bytes: int | None = None  # of the frame whose length has been read
        self._lost: str | None = None  # why the stream is of no more use
        self._closing: asyncio.Task[None] | None = None

    @property
    def peer(self) -> str:
        return self._peer

    async def send(self, frame: bytes | bytearray | memoryview, *, timeout_seconds: float) -> None:
        data = frame if isinstance(frame, bytes) else bytes(frame)  # uvloop keeps it, and the caller may change it
        if len(data) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame has at most {MAX_FRAME_BYTES} bytes, not {len(data)}")
        if self._lost is not None or (self._buffer.has_ended and not len(self._buffer)):
            raise self._stream_lost()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._write(data)
        except TimeoutError as error:
            self.break_("the other side stopped reading")
            raise StreamTimeout(f"{self._peer} took no bytes for {timeout_seconds:g} s") from error
        except OSError as error:
            self.break_("closed by the other side")
            raise self._stream_lost() from error
        except BaseException:
            self.break_("a frame was sent in part")
            raise

    async def _write(self, data: bytes) -> None:
        await self._buffer.until_writable()
        self._transport.write(len(data).to_bytes(HEADER_BYTES, "big") + data[:SMALL_BYTES])
        rest = memoryview(data)
        for start in range(SMALL_BYTES, len(data), CHUNK_BYTES):
            self._transport.write(rest[start : start + CHUNK_BYTES])
            await self._buffer.until_writable()

    async def receive(self, *, timeout_seconds: float, limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
        if self._lost is not None:
            raise self._stream_lost()
        try:
            async with asyncio.timeout(timeout_seconds):
                if self._frame_bytes is None:
                    await self._until_come(HEADER_BYTES)
                    self._frame_bytes = int.from_bytes(self._buffer.take_bytes(HEADER_BYTES), "big")
                if self._frame_bytes > limit_bytes:
                    self.break_("a frame over the limit")
                    raise RecordError(
                        f"{self._peer} sends a frame of {self._frame_bytes} bytes, at most {limit_bytes} are allowed"
                    )
                await self._until_come(self._frame_bytes)
        except TimeoutError as error:
            if self._frame_bytes is not None:
                self.break_("a frame came in part")
            raise StreamTimeout(f"{self._peer} sent no whole frame for {timeout_seconds:g} s") from error
        frame, self._frame_bytes = self._buffer.take_bytes(self._frame_bytes), None
        return frame

    async def _until_come(self, num_bytes: int) -> None:
        if not await self._buffer.until(num_bytes):
            raise self._stream_lost()

    def _stream_lost(self) -> StreamLost:
        return StreamLost(f"the stream to {self._peer} has ended: {self._lost or 'closed by the other side'}")

    async def close(self) -> None:
        if self._lost is None:
            self._lost = "closed here"
            self._transport.close()
        if self._closing is None:  # one waiter, whoever is cancelled
            self._closing = asyncio.create_task(self._wait_closed())
        await asyncio.shield(self._closing)

    async def _wait_closed(self) -> None:
        """Send what is in the buffer, but not for ever."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._buffer.closed.wait()
        except TimeoutError:
            pass
        finally:
            self._abort()

    def break_(self, reason: str) -> None:
        """End both directions at once, without sending what is still in the buffer."""
        if self._lost is None:
            self._lost = reason
        self._abort()

    def _abort(self) -> None:
        """What has closed by itself is not aborted: asyncio's own transport then fails with an AttributeError."""
        if not self._buffer.closed.is_set():
            with contextlib.suppress(OSError):
                self._transport.abort()
