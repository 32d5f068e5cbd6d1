import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.errors import DataError
from swarm_diloco.training import channel as messages
from swarm_diloco.training.channel import Channel, File, NeedFile, Notice, Offer, Pause, Stop, StopRequested


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """All that a field of this type may hold; MessagePack's integers have 64 bits."""
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        if inner[-1] is Ellipsis:
            return st.lists(values_of(inner[0]), max_size=3).map(tuple)
        return st.tuples(*map(values_of, inner))
    if isinstance(hint, UnionType):
        return st.one_of(*map(values_of, get_args(hint)))
    plain = {
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=40),
        type(None): st.none(),
    }
    return plain[hint]


def messages_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: values_of(hint) for name, hint in get_type_hints(kind).items()})


every_message = st.one_of(*map(messages_of, get_args(messages.FromClient) + get_args(messages.FromTrainer)))


@given(every_message)
def test_every_message_comes_back_as_it_was(message: messages.Message) -> None:
    frame = messages.encode(message)
    header, payload = frame[: messages.HEADER_BYTES], frame[messages.HEADER_BYTES :]
    assert messages.payload_bytes(header) == len(payload)
    assert messages.decode(payload) == message


@given(st.binary(max_size=64))
def test_bytes_that_are_no_message_raise_value_error_and_nothing_else(payload: bytes) -> None:
    try:
        messages.decode(payload)
    except ValueError:
        return
    assert messages.encode(messages.decode(payload))


@pytest.mark.parametrize(
    "fields",
    [
        ["Stop", 1],
        ["Due"],
        ["Due", 1.0],
        ["Due", True],
        ["Notice", b"bytes"],
        ["Outcome", 1, 2, 1, 3],
        ["LogPosition", 1, 2, 1.0, ["a", 1], [], "a"],
        ["LogPosition", 1, 2, 1.0, ["a"], [[1, 2]], "a"],
        ["Unheard", 1],
        {"Stop": 1},
        [],
        7,
    ],
)
def test_a_message_of_another_form_is_refused(fields: object) -> None:
    with pytest.raises(ValueError, match=r"message|form"):
        messages.decode(msgpack.packb(fields))


def test_a_frame_past_the_limit_is_neither_written_nor_read() -> None:
    with pytest.raises(ValueError, match="at most"):
        messages.encode(Notice(text="x" * messages.MAX_MESSAGE_BYTES))
    with pytest.raises(ValueError, match="at most"):
        messages.payload_bytes(struct.pack(">I", messages.MAX_MESSAGE_BYTES + 1))


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    trainer, client = socket.socketpair()
    client.settimeout(20)
    with Channel(trainer) as channel, client:
        yield channel, client


def test_messages_arrive_in_order_however_they_are_cut(ends: tuple[Channel, socket.socket]) -> None:
    channel, client = ends
    frames = b"".join(messages.encode(messages.Due(round=number)) for number in range(20))
    for start in range(0, len(frames), 3):
        client.sendall(frames[start : start + 3])
    assert [channel.receive(5) for _ in range(20)] == [messages.Due(round=number) for number in range(20)]
    assert channel.poll() is None


def test_a_sent_offer_is_one_frame_at_the_other_end(ends: tuple[Channel, socket.socket]) -> None:
    channel, client = ends
    offer = Offer(
        number=3, round=2, weight=10, tokens=20, ranges=((0, 1, 2, 3),), norm=0.5, step_seconds=0.1, num_steps=4
    )
    channel.send(offer)
    length = messages.payload_bytes(client.recv(messages.HEADER_BYTES, socket.MSG_WAITALL))
    assert messages.decode(client.recv(length, socket.MSG_WAITALL)) == offer


def test_a_file_is_waited_for_while_other_messages_keep_their_order(ends: tuple[Channel, socket.socket]) -> None:
    channel, client = ends
    for message in (messages.Due(round=1), File(path="b", location="/b"), Pause(), File(path="a", location="/a")):
        client.sendall(messages.encode(message))
    assert channel.fetch("a") == Path("/a")
    assert channel.fetch("b") == Path("/b")
    assert [channel.poll(), channel.poll(), channel.poll()] == [messages.Due(round=1), Pause(), None]


def test_a_file_announced_before_is_asked_for_once(ends: tuple[Channel, socket.socket]) -> None:
    channel, client = ends
    channel.announce("a")
    client.sendall(messages.encode(File(path="a", location="/a")))
    channel.fetch("a")
    channel.fetch("a")
    channel.send(Notice(text="end"))
    sent = client.recv(2**16)
    assert sent == messages.encode(NeedFile(path="a")) + messages.encode(Notice(text="end"))


def test_a_file_that_cannot_be_had_is_a_data_error_and_may_be_asked_for_again(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, client = ends
    client.sendall(messages.encode(File(path="a", error="nobody has it")))
    with pytest.raises(DataError, match="a: nobody has it"):
        channel.fetch("a")
    client.sendall(messages.encode(File(path="a", location="/a")))
    assert channel.fetch("a") == Path("/a")
    assert client.recv(2**16) == 2 * messages.encode(NeedFile(path="a"))
    with pytest.raises(DataError, match="not there after 0 s"):
        channel.fetch("c", timeout_seconds=0.01)


def test_stop_ends_the_wait_for_a_file_and_is_still_to_be_received(ends: tuple[Channel, socket.socket]) -> None:
    channel, client = ends
    client.sendall(messages.encode(Pause()) + messages.encode(Stop()))
    with pytest.raises(StopRequested):
        channel.fetch("a")
    with pytest.raises(StopRequested):
        channel.raise_if_stopping()
    assert [channel.receive(), channel.receive()] == [Pause(), Stop()]


def test_the_end_of_the_client_ends_every_wait(ends: tuple[Channel, socket.socket]) -> None:
    channel, client = ends
    client.sendall(messages.encode(Pause()))
    closing = threading.Timer(0, client.close)
    closing.start()
    assert channel.receive() == Pause()
    with pytest.raises(EOFError):
        channel.receive()
    with pytest.raises(EOFError):
        channel.poll()
    with pytest.raises(EOFError):
        channel.fetch("a")
    with pytest.raises(EOFError):
        channel.send(Notice(text="anybody there?"))
    closing.join()


@pytest.mark.parametrize("frame", [b"\xff\xff\xff\xff", b"\0\0\0\1\x90", messages.encode(Notice(text="not its own"))])
def test_whatever_does_not_speak_as_a_client_is_taken_for_none(
    ends: tuple[Channel, socket.socket], frame: bytes
) -> None:
    channel, client = ends
    client.sendall(frame)
    with pytest.raises(EOFError, match="not the client"):
        channel.receive()
