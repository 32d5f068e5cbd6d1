"""A stream on which several tasks may send: a member's beats, seals and votes go out on one."""

import asyncio

from swarm_diloco.network.interface import MAX_FRAME_BYTES, Stream


class SharedStream:
    """Implements interface.Stream; each send waits for the one before it, which bounds itself."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._sending = asyncio.Lock()

    @property
    def peer(self) -> str:
        return self._stream.peer

    async def send(self, frame: bytes | bytearray | memoryview, *, timeout_seconds: float) -> None:
        async with self._sending:
            await self._stream.send(frame, timeout_seconds=timeout_seconds)

    async def receive(self, *, timeout_seconds: float, limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
        return await self._stream.receive(timeout_seconds=timeout_seconds, limit_bytes=limit_bytes)

    async def close(self) -> None:
        await self._stream.close()
