"""A stream between two halves of one peer: a coordinator knocks at itself."""

import asyncio

from swarm_diloco.errors import StreamLost, StreamTimeout


class LocalStream:
    """One end of an in-process pair; the same contract as a network's stream."""

    def __init__(self, peer: str, incoming: asyncio.Queue[bytes | None], outgoing: asyncio.Queue[bytes | None]) -> None:
        self._peer = peer
        self._incoming = incoming
        self._outgoing = outgoing
        self._is_closed = False

    @property
    def peer(self) -> str:
        return self._peer

    async def send(self, frame: bytes | bytearray | memoryview, *, timeout_seconds: float) -> None:
        if self._is_closed:
            raise StreamLost("the stream is closed")
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._outgoing.put(bytes(frame))
        except TimeoutError:
            raise StreamTimeout("the other half takes nothing") from None

    async def receive(self, *, timeout_seconds: float, limit_bytes: int = 0) -> bytes:
        if self._is_closed:
            raise StreamLost("the stream is closed")
        try:
            async with asyncio.timeout(timeout_seconds):
                frame = await self._incoming.get()
        except TimeoutError:
            raise StreamTimeout("the other half is silent") from None
        if frame is None:
            self._is_closed = True
            raise StreamLost("the other half has closed the stream")
        return frame

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if not self._outgoing.full():
                self._outgoing.put_nowait(None)


def local_pair(peer: str) -> tuple[LocalStream, LocalStream]:
    """Two connected ends, both belonging to `peer`."""
    there: asyncio.Queue[bytes | None] = asyncio.Queue(256)
    back: asyncio.Queue[bytes | None] = asyncio.Queue(256)
    return LocalStream(peer, back, there), LocalStream(peer, there, back)
