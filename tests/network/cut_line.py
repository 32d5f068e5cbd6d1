"""A TCP line that can be cut and mended: libp2p goes through it when the address names its port.

Written anew after the project's shared tcp_fault_proxy, as a part of the test's own program.
"""

import asyncio
import contextlib
import socket
from types import TracebackType
from typing import Self

CHUNK_BYTES = 2**16


class CutLine:
    """Listens at `port` of loopback and passes everything on to `target_port`, a free one, while it is whole."""

    def __init__(self) -> None:
        self.port = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.target_port: int = probe.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()

    @property
    def place(self) -> str:
        return f"/ip4/127.0.0.1/tcp/{self.port}"

    async def cut(self) -> None:
        """Break what is open; further dials are refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._writers.add(there)
            await asyncio.gather(_copy(reader, there), _copy(back, writer))
        except OSError:
            pass
        finally:
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()
                    self._writers.discard(end)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
