"""What has come over a connection and has not been taken: read from the socket straight to where frames are cut from.

asyncio's StreamReader copies each byte three times on that way and wakes its reader for every piece: at megabytes a
frame that is a third of a stream's cost in Python (measured).
"""

import asyncio

FIRST_BYTES = 2**14  # of room; it grows to a frame's size while the frame comes, so nobody gets memory by a promise
ROOM_AHEAD_BYTES = 2**16  # past a large frame, for what follows it


class ReadBuffer(asyncio.BufferedProtocol):
    """Takes a connection over from asyncio's streams. A full buffer stops reading, a wish for more starts it again."""

    def __init__(self, transport: asyncio.Transport, reader: asyncio.StreamReader) -> None:
        self.has_ended = False  # nothing more comes
        self.closed = asyncio.Event()
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._news = asyncio.Event()
        self._transport = transport
        self._wanted = 0
        if not transport.is_closing():
            transport.pause_reading()
        taken_over, self.has_ended = _what_came(reader)
        self._bytes = bytearray(max(FIRST_BYTES, len(taken_over)))
        self._bytes[: len(taken_over)] = taken_over
        self._start, self._end = 0, len(taken_over)
        self._is_paused = True
        if transport.is_closing():
            self.connection_lost(None)
        else:
            transport.set_protocol(self)
            self._make_room()

    def __len__(self) -> int:
        return self._end - self._start

    async def until(self, num_bytes: int) -> bool:
        """Whether so many bytes have come; not, once the other side has ended."""
        self._wanted = num_bytes
        while len(self) < num_bytes and not self.has_ended:
            self._make_room()
            self._news.clear()
            await self._news.wait()
        return len(self) >= num_bytes

    def take_bytes(self, num_bytes: int) -> bytes:
        """Bytes that have come, for good."""
        start, self._start = self._start, self._start + num_bytes
        taken = bytes(memoryview(self._bytes)[start : self._start])
        if self._start == self._end:
            self._start = self._end = 0
        return taken

    async def until_writable(self) -> None:
        """Until the transport's buffer has room. Raises ConnectionResetError once the connection is gone."""
        await self._can_write.wait()
        if self.closed.is_set() or self._transport.is_closing():
            raise ConnectionResetError("the connection is gone")

    def _make_room(self) -> None:
        """For the wanted bytes, one after the other, growing at most eightfold at a time."""
        if self._start + self._wanted > len(self._bytes):
            size = len(self._bytes)
            if self._wanted > size and len(self) == size:
                size = min(self._wanted + ROOM_AHEAD_BYTES, 8 * size)
            room = bytearray(size) if size > len(self._bytes) else self._bytes
            memoryview(room)[: len(self)] = memoryview(self._bytes)[self._start : self._end]
            self._bytes, self._start, self._end = room, 0, len(self)
        if self._end < len(self._bytes):
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        if self._is_paused and not self.has_ended and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    # --- called by the transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._bytes)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        if self._end == len(self._bytes):
            if len(self) < self._wanted:
                self._make_room()
            if self._end == len(self._bytes):
                self._is_paused = True
                self._transport.pause_reading()
        if len(self) >= self._wanted:
            self._news.set()

    def eof_received(self) -> bool:
        self._end_here()
        return True  # what we have to say can still go out

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()
        self._can_write.set()
        self._end_here()

    def _end_here(self) -> None:
        self.has_ended = True
        self._news.set()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()


def _what_came(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """What a reader holds, and whether its connection has ended. It is of no more use then."""
    reading = reader.read()
    has_ended = True
    try:
        reading.send(None)  # waits if there may be more
        has_ended = False
        reader.feed_eof()
        reading.send(None)
    except StopIteration as done:
        return done.value, has_ended
    except OSError:
        return b"", True
    raise AssertionError("a reader that has ended does not wait")
