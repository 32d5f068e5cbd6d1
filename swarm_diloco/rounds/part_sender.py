"""The sending half of a stream between a member and a reducer: parts, and word of the parts that came the other way."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from swarm_diloco.network.interface import Stream
from swarm_diloco.rounds.line import ACK_BYTES, ACK_SECONDS, STALL_SECONDS, Line
from swarm_diloco.rounds.part_frame import PartFrame
from swarm_diloco.rounds.parts_stream import encode_ack

Key = tuple[int, int]  # part, attempt


class PartSender:
    """`give` parts by their keys; `run` sends them in order, no more at once than the line takes. `end` it.

    `frame_of(key)` is asked as late as possible: None if it need not be sent any more.
    """

    def __init__(
        self,
        stream: Stream,
        line: Line,
        frame_of: Callable[[Key], PartFrame | None],
        *,
        is_contribution: bool,
        timeout_seconds: Callable[[], float],
    ) -> None:
        self.peer = stream.peer
        self.sent_bytes = 0
        loop = asyncio.get_running_loop()
        self._stream, self._frame_of = stream, frame_of
        self._is_contribution, self._timeout_seconds = is_contribution, timeout_seconds
        self._given: set[Key] = set()
        self._keys: list[Key] = []
        self._num_taken = 0  # parts received from the other side
        self._num_told = 0
        self._untold_bytes = 0
        self._is_time_to_tell = False
        self._timer: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._on_the_way = line.stream(loop.time, on_room=self._news.set)

    def give(self, key: Key) -> None:
        if key not in self._given:
            self._given.add(key)
            self._keys.append(key)
            self._news.set()

    def acknowledged(self, num_parts: int) -> None:
        """The other side says that it has so many of my parts."""
        self._on_the_way.received(num_parts)

    def took(self, num_bytes: int) -> None:
        """One part has come from the other side: tell it soon."""
        self._num_taken += 1
        self._untold_bytes += num_bytes
        if self._untold_bytes >= ACK_BYTES:
            self._tell()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACK_SECONDS, self._tell)

    def _tell(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._untold_bytes = 0
        self._is_time_to_tell = True
        self._news.set()

    async def run(self) -> None:
        """Until cancelled. Raises NetworkError, and what `frame_of` raises."""
        num_sent = 0
        while True:
            self._news.clear()
            frame = None if num_sent == len(self._keys) else self._frame_of(self._keys[num_sent])
            if self._is_time_to_tell:
                self._is_time_to_tell = False
                await self._stream.send(encode_ack(self._num_taken), timeout_seconds=self._timeout_seconds())
            elif num_sent < len(self._keys) and frame is None:
                num_sent += 1
            elif frame is not None and self._on_the_way.has_room(len(frame.data)):
                await self._send(frame)
                num_sent += 1
            else:
                await self._wait(STALL_SECONDS / 2 if frame is not None else None)

    async def _wait(self, seconds: float | None) -> None:
        """For news; while there is no room not for ever, since a stream that stalls says nothing."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    async def _send(self, frame: PartFrame) -> None:
        self._on_the_way.sending(len(frame.data), is_contribution=self._is_contribution)
        await self._stream.send(frame.encode(), timeout_seconds=self._timeout_seconds())
        self.sent_bytes += len(frame.data)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._on_the_way.end()
