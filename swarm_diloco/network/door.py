"""A port of this machine that leads to another place: for one connection that p2pd does not put off.

After a failed dial p2pd refuses to dial the same address again for 5 s and the square of the failures in seconds, at
most 5 minutes, although the peer may be back (measured: 25 s after an outage of 60 s). It asks nobody and tells nobody.
The same peer at an address that it does not know is dialled at once, and a success clears the delay for all.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from swarm_diloco.network.addresses import Address
from swarm_diloco.network.probing import open_connection

CHUNK_BYTES = 2**16


@contextlib.asynccontextmanager
async def door_to(place: Address) -> AsyncIterator[Address]:
    """An address that leads to `place` until the block is left; what goes through it then ends."""
    writers: list[asyncio.StreamWriter] = []
    tasks: set[asyncio.Task[None]] = set()

    async def pass_on(here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there, forth = await open_connection(place)
            writers.append(forth)
            await asyncio.gather(_copy(here, forth), _copy(there, back))

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        task = asyncio.get_running_loop().create_task(pass_on(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield Address("ip4", "127.0.0.1", server.sockets[0].getsockname()[1], None)
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        for writer in writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
