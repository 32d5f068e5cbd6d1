"""Bytes over a socket pair: all of them, in order, in room that grows with what has come and never with a promise."""

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
import uvloop

from swarm_diloco.network.read_buffer import FIRST_BYTES, ROOM_AHEAD_BYTES, ReadBuffer

LOOPS = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
LIMIT_SECONDS = 60.0

MakeLoop = Callable[[], asyncio.AbstractEventLoop]
Scenario = Callable[[asyncio.StreamReader, asyncio.StreamWriter, socket.socket], Awaitable[None]]


def run(make_loop: MakeLoop, scenario: Scenario) -> None:
    """`scenario` with asyncio's ends of one side of a socket pair, and the bare other side."""

    async def bounded() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            async with asyncio.timeout(LIMIT_SECONDS):
                await scenario(reader, writer, theirs)
            writer.transport.abort()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(bounded())


def taken_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ReadBuffer:
    return ReadBuffer(cast("asyncio.Transport", writer.transport), reader)


@LOOPS
@pytest.mark.parametrize("seed", range(3))
def test_all_bytes_come_once_and_in_order_whatever_is_asked_for(make_loop: MakeLoop, seed: int) -> None:
    chance = random.Random(seed)
    sent = chance.randbytes(3_000_000)
    sizes = [1, 4, 100, FIRST_BYTES, FIRST_BYTES + 1, 300_000, 1_000_000]

    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, theirs: socket.socket) -> None:
        buffer, got = taken_over(reader, writer), bytearray()
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(theirs, sent))
        while len(got) < len(sent):
            size = min(chance.choice(sizes), len(sent) - len(got))
            assert await buffer.until(size)
            assert len(buffer) >= size
            got += buffer.take_bytes(size)
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        await sending
        assert got == sent
        assert len(buffer) == 0

    run(make_loop, scenario)


@LOOPS
@pytest.mark.parametrize("num_bytes", [0, 1, FIRST_BYTES, 5 * FIRST_BYTES])
@pytest.mark.parametrize("ends", [False, True])
def test_what_the_reader_before_it_held_is_taken_over(make_loop: MakeLoop, num_bytes: int, ends: bool) -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, theirs: socket.socket) -> None:
        loop, first = asyncio.get_running_loop(), random.Random(1).randbytes(num_bytes)
        await loop.sock_sendall(theirs, b"?" + first)
        await reader.readexactly(1)
        if ends:
            theirs.shutdown(socket.SHUT_WR)
            await asyncio.sleep(0)  # the reader may know of the end or not: both are right
        buffer = taken_over(reader, writer)
        if not ends:
            await loop.sock_sendall(theirs, b"more")
            for _ in range(3):  # it comes before it is asked for
                await asyncio.sleep(0)
        assert await buffer.until(num_bytes + (0 if ends else 4))
        assert buffer.take_bytes(num_bytes) == first
        if ends:
            assert not await buffer.until(1)
            assert buffer.has_ended
        else:
            assert buffer.take_bytes(4) == b"more"
            theirs.shutdown(socket.SHUT_WR)
            assert not await buffer.until(1)

    run(make_loop, scenario)


@LOOPS
def test_a_sender_to_whom_nobody_listens_fills_the_buffer_and_no_more(make_loop: MakeLoop) -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, theirs: socket.socket) -> None:
        buffer, sent = taken_over(reader, writer), bytes(4_000_000)
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(theirs, sent))
        while len(buffer) < FIRST_BYTES:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(buffer) == FIRST_BYTES
        assert not sending.done()
        assert await buffer.until(1_000_000)
        assert 1_000_000 <= len(buffer) <= 1_000_000 + ROOM_AHEAD_BYTES
        buffer.take_bytes(1_000_000)
        assert await buffer.until(1_000_000)
        sending.cancel()

    run(make_loop, scenario)


@LOOPS
def test_room_grows_with_what_comes_not_with_what_is_promised(make_loop: MakeLoop) -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, theirs: socket.socket) -> None:
        buffer = taken_over(reader, writer)
        waiting = asyncio.create_task(buffer.until(2**24))
        await asyncio.sleep(0)
        assert len(buffer.get_buffer(-1)) == FIRST_BYTES
        await asyncio.get_running_loop().sock_sendall(theirs, bytes(100_000))
        while len(buffer) < 100_000:
            await asyncio.sleep(0)
        assert len(buffer.get_buffer(-1)) <= 7 * 100_000
        waiting.cancel()

    run(make_loop, scenario)


@LOOPS
def test_a_connection_that_is_gone_says_so_to_writers_and_readers(make_loop: MakeLoop) -> None:
    async def scenario(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, theirs: socket.socket) -> None:
        buffer = taken_over(reader, writer)
        writer.transport.set_write_buffer_limits(high=1)
        writer.transport.write(bytes(4_000_000))
        waiting = [asyncio.create_task(buffer.until_writable()), asyncio.create_task(buffer.until(1))]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        theirs.close()
        with pytest.raises(ConnectionResetError):
            await waiting[0]
        assert not await waiting[1]
        await buffer.closed.wait()
        late = taken_over(reader, writer)
        assert late.has_ended
        assert late.closed.is_set()

    run(make_loop, scenario)
