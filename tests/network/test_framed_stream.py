"""Frames over a plain socket pair, whose other side misbehaves byte by byte."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from swarm_diloco.errors import RecordError, StreamLost, StreamTimeout
from swarm_diloco.network.framed_stream import FramedStream


@pytest_asyncio.fixture
async def ends() -> AsyncIterator[tuple[FramedStream, socket.socket]]:
    """A stream, and the bare other end of its socket."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(30.0)
    reader, writer = await asyncio.open_connection(sock=ours)
    stream = FramedStream("them", reader, writer)
    with theirs:
        yield stream, theirs
        await stream.close()


async def test_the_form_on_the_wire(ends: tuple[FramedStream, socket.socket]) -> None:
    stream, theirs = ends
    await stream.send(b"abc", timeout_seconds=1.0)
    assert theirs.recv(100) == b"\x00\x00\x00\x03abc"
    await stream.send(b"", timeout_seconds=1.0)
    assert theirs.recv(100) == b"\x00\x00\x00\x00"


@pytest.mark.parametrize("sent", [b"", b"\x00", b"\x00\x00\x00\x05", b"\x00\x00\x00\x05half"])
async def test_an_end_at_any_byte_is_stream_lost(ends: tuple[FramedStream, socket.socket], sent: bytes) -> None:
    stream, theirs = ends
    theirs.sendall(sent)
    theirs.close()
    with pytest.raises(StreamLost):
        await stream.receive(timeout_seconds=30.0)


async def test_a_frame_that_stops_half_way_ends_the_stream_after_its_timeout(
    ends: tuple[FramedStream, socket.socket],
) -> None:
    stream, theirs = ends
    theirs.sendall(b"\x00\x00\x00\x05half")
    with pytest.raises(StreamTimeout):
        await stream.receive(timeout_seconds=0.05)
    with pytest.raises(StreamLost):
        await stream.receive(timeout_seconds=30.0)
    theirs.setblocking(False)
    assert await asyncio.get_running_loop().sock_recv(theirs, 100) == b""


async def test_a_length_in_two_halves_survives_a_timeout_between_them(
    ends: tuple[FramedStream, socket.socket],
) -> None:
    stream, theirs = ends
    theirs.sendall(b"\x00\x00")
    with pytest.raises(StreamTimeout):
        await stream.receive(timeout_seconds=0.05)
    theirs.sendall(b"\x00\x01x")
    assert await stream.receive(timeout_seconds=30.0) == b"x"


async def test_nothing_is_sent_to_a_side_that_has_ended(ends: tuple[FramedStream, socket.socket]) -> None:
    stream, theirs = ends
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(StreamLost):
        await stream.receive(timeout_seconds=30.0)
    with pytest.raises(StreamLost):
        await stream.send(b"into the void", timeout_seconds=30.0)


async def test_a_stated_length_allocates_nothing(ends: tuple[FramedStream, socket.socket]) -> None:
    stream, theirs = ends
    theirs.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(RecordError, match="4294967295 bytes"):
        await stream.receive(timeout_seconds=30.0)


async def test_a_cancelled_send_ends_the_stream(ends: tuple[FramedStream, socket.socket]) -> None:
    stream, _ = ends
    sending = asyncio.create_task(stream.send(bytes(2**24), timeout_seconds=30.0))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    with pytest.raises(StreamLost):
        await stream.send(b"", timeout_seconds=30.0)


async def test_closing_does_not_wait_for_ever_for_a_receiver_that_does_not_read(
    ends: tuple[FramedStream, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_diloco.network.framed_stream.CLOSE_SECONDS", 0.05)
    stream, theirs = ends
    await stream.send(bytes(2**19), timeout_seconds=30.0)  # more than the socket takes, less than the buffer
    await stream.close()
    await asyncio.sleep(0)  # the loop closes the socket in its next turn
    received = 0
    while piece := theirs.recv(2**18):
        received += len(piece)
    assert received < 2**19


async def test_a_slow_receiver_gets_what_was_in_the_buffer_when_the_stream_was_closed(
    ends: tuple[FramedStream, socket.socket],
) -> None:
    """The transport closes itself once its buffer is empty; an abort after that would raise."""
    stream, theirs = ends
    await stream.send(bytes(2**19), timeout_seconds=30.0)
    closing = asyncio.create_task(stream.close())
    await asyncio.sleep(0)
    theirs.setblocking(False)
    received = 0
    while piece := await asyncio.get_running_loop().sock_recv(theirs, 2**16):
        received += len(piece)
    await closing
    assert received == 4 + 2**19
