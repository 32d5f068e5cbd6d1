"""All records and frames: what may be written, how, how it is read again, and how its reader refuses.

Each entry of `RECORDS`, of file_formats.FILES and of training_formats.TRAINING is held to the same rules by
tests/test_formats.py, which fails for a reader in the code that no entry names.
"""

import asyncio
import hashlib
import socket
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
from hypothesis import strategies as st

from damage import Form
from record_values import COUNTS, HASHES, SIGNATURES, TEXTS, Strategy, records_of, values_of
from swarm_diloco.diloco import ledger
from swarm_diloco.diloco.records import hash_of, pack, unpack
from swarm_diloco.errors import RecordError, StreamLost
from swarm_diloco.network import discovery, handshake, peer_record, reachability, wire
from swarm_diloco.network.framed_stream import HEADER_BYTES, FramedStream
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import MAX_FRAME_BYTES
from swarm_diloco.network.messages import MAX_BALLOT, Beat
from swarm_diloco.rounds import library, part_frame, parts_stream
from swarm_diloco.rounds.forks import Fork
from swarm_diloco.rounds.snapshot import CHUNK_BYTES, MAX_INDEX_BYTES, SnapshotIndex

ANN = Identity.from_seed(hashlib.sha256(b"ann").digest())
RUN = hash_of(b"this run")
MAX_TEST_FRAME_BYTES = 1000


@dataclass(frozen=True, kw_only=True)
class Format:
    """One thing that is written and read.

    A signed one stands here by what is signed: `decode` signs it anew, so that what is tried is what a liar would send.
    """

    values: Strategy
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    refusals: tuple[type[Exception], ...] = (RecordError,)
    form: Form = "msgpack"
    is_canonical: bool = True  # one value, one byte string
    limit_bytes: int | None = None  # of what a reader takes
    covers: tuple[str, ...] = ()  # classes with a reader of their own that are read here
    share: int = 1  # of the examples: one in so many, for what is slow


def read_file_with(read: Callable[[Path], Any], name: str = "file") -> Callable[[bytes], Any]:
    """A decoder that reads a file of this name."""

    def decode(data: bytes) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(data)
            return read(path)

    return decode


def write_file_with(write: Callable[[Any, Path], object], name: str = "file") -> Callable[[Any], bytes]:
    """An encoder that writes a file of this name."""

    def encode(value: Any) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            write(value, Path(folder) / name)
            return (Path(folder) / name).read_bytes()

    return encode


# --- signed things, by their bodies


def sealed(payload: bytes) -> bytes:
    return pack([payload, ANN.sign(payload)])


def payload_of(frame: bytes) -> bytes:
    return unpack(frame, "", limit_bytes=len(frame)).bytes_(limit=len(frame))


def message_frame(value: tuple[Any, int, int, ledger.Head]) -> bytes:
    message, round_, ballot, head = value
    return wire.sign(ANN, run=RUN, round_=round_, ballot=ballot, head=head, message=message).frame


def read_message(frame: bytes) -> tuple[Any, int, int, ledger.Head]:
    signed = wire.read_signed(frame, run=RUN, sender=ANN.peer)
    return signed.message, signed.round, signed.ballot, signed.head


def message_values(kind: Any) -> Strategy:
    return st.tuples(records_of(kind), COUNTS, st.integers(0, MAX_BALLOT), values_of(ledger.Head))


def message_format(kind: Any) -> Format:
    return Format(
        values=message_values(kind),
        encode=lambda value: payload_of(message_frame(value)),
        decode=lambda payload: read_message(sealed(payload)),
        covers=(kind.__name__, "VoteCast", "PlannedPart"),
    )


def peer_record_body(record: peer_record.PeerRecord) -> bytes:
    return payload_of(record.signed(ANN))


def read_peer_record(body: bytes) -> peer_record.PeerRecord:
    signature = ANN.sign(peer_record.SIGNED_BEFORE + body)
    return peer_record.PeerRecord.read(pack([body, signature]), run_id=RUN)


places = st.sampled_from(["/ip4/203.0.113.7/tcp/31337", "/ip6/2001:db8::1/tcp/1", "/dns4/host.example/tcp/65535"])
peer_records = st.builds(
    peer_record.PeerRecord,
    run_id=st.just(RUN),
    peer=st.just(ANN.peer),
    role=st.sampled_from(["worker", "archive"]),
    is_leaving=st.booleans(),
    round=COUNTS,
    digest=HASHES,
    addresses=st.lists(places, max_size=peer_record.MAX_ADDRESSES).map(tuple),
    client_version=TEXTS,
    issued_at_ms=COUNTS,
)


@dataclass(frozen=True)
class StoredRecord:
    key: bytes
    subkey: bytes
    value: bytes
    expiration_time: float


def read_stored(packed: bytes) -> bytes:
    """What another DHT node takes of a value that ann signed."""
    validator = discovery.OwnersOnly(ANN, RUN, now=lambda: 1234.0)
    key = discovery.id_of_key(discovery.record_key(RUN, ANN.peer))
    unsigned = StoredRecord(key, msgpack.packb(ANN.peer), packed, 1234.5)
    signed = StoredRecord(unsigned.key, unsigned.subkey, validator.sign_value(unsigned), unsigned.expiration_time)
    if not validator.validate(signed):
        raise RecordError("not its owner's")
    content: bytes = msgpack.unpackb(validator.strip_value(signed))
    return content


# --- what is asked and answered over streams


class OneAnswer:
    """A stream, and the network that opens it, on which one frame waits; what is sent is forgotten."""

    peer = ANN.peer

    def __init__(self, frame: bytes) -> None:
        self._frames = [frame]

    async def dial(self, _peer: str, _protocol: str, *, timeout_seconds: float) -> "OneAnswer":
        return self

    async def send(self, frame: bytes, *, timeout_seconds: float) -> None:
        pass

    async def receive(self, *, timeout_seconds: float, limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
        if not self._frames:
            raise StreamLost("no more")
        return self._frames.pop()

    async def close(self) -> None:
        pass


def asked(question: Callable[[library.Donor], Awaitable[Any]]) -> Callable[[bytes], Any]:
    """What a joiner makes of a donor's answer."""

    def decode(answer: bytes) -> Any:
        async def ask() -> Any:
            async with library.Donor(OneAnswer(b"\x01" + answer), ANN.peer, RUN) as donor:  # type: ignore[arg-type]
                return await question(donor)

        return asyncio.run(ask())

    return decode


def read_frames(data: bytes) -> list[bytes]:
    """What a receiver with a limit of MAX_TEST_FRAME_BYTES gives out."""

    async def read() -> list[bytes]:
        here, there = socket.socketpair()
        there.setblocking(False)
        stream = FramedStream(ANN.peer, *await asyncio.open_connection(sock=here))
        sending = asyncio.create_task(send_all(there, data))
        frames: list[bytes] = []
        try:
            while True:
                frames.append(await stream.receive(timeout_seconds=60.0, limit_bytes=MAX_TEST_FRAME_BYTES))
        except StreamLost:
            if b"".join(map(framed, frames)) != data:
                raise
            return frames
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            there.close()
            await stream.close()

    return asyncio.run(read())


async def send_all(there: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(there, data)
    there.shutdown(socket.SHUT_WR)


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(HEADER_BYTES, "big") + frame


# --- the table

blobs = st.binary(max_size=60)
blob_lists = st.lists(blobs, max_size=4)
indices = st.builds(
    lambda run, round_, digest, applied, hashes, missing_bytes: SnapshotIndex(
        run, round_, digest, tuple(applied), max(0, len(hashes) * CHUNK_BYTES - missing_bytes), tuple(hashes)
    ),
    HASHES,
    COUNTS,
    HASHES,
    st.lists(COUNTS, max_size=4),
    st.lists(HASHES, max_size=4),
    st.integers(0, CHUNK_BYTES - 1),
)

RECORDS: dict[str, Format] = {
    "commit": Format(
        values=records_of(ledger.Commit),
        encode=ledger.Commit.encode,
        decode=ledger.Commit.decode,
        limit_bytes=ledger.MAX_COMMIT_BYTES,
        covers=("Commit", "Member", "DataRange", "PartRecord", "Evaluation", "Head"),
    ),
    "header": Format(
        values=records_of(ledger.Header),
        encode=ledger.Header.encode,
        decode=ledger.Header.decode,
        limit_bytes=ledger.MAX_HEADER_BYTES,
        covers=("Header", "Vote"),
    ),
    **{f"message {name}": message_format(kind) for kind, name in wire.NAMES.items()},
    "message frame": Format(
        values=message_values(Beat), encode=message_frame, decode=read_message, limit_bytes=wire.MAX_MESSAGE_BYTES
    ),
    "peer record": Format(
        values=peer_records, encode=peer_record_body, decode=read_peer_record, covers=("PeerRecord",)
    ),
    "peer record frame": Format(
        values=peer_records,
        encode=lambda record: record.signed(ANN),
        decode=lambda data: peer_record.PeerRecord.read(data, run_id=RUN),
        limit_bytes=peer_record.MAX_RECORD_BYTES,
    ),
    "stored record": Format(
        values=st.binary(max_size=discovery.MAX_RECORD_BYTES), encode=msgpack.packb, decode=read_stored
    ),
    "handshake": Format(
        values=st.builds(handshake.Handshake, protocol_version=COUNTS, run_id=HASHES, client_version=TEXTS),
        encode=handshake.Handshake.encode,
        decode=handshake.Handshake.decode,
        limit_bytes=handshake.MAX_HANDSHAKE_BYTES,
        covers=("Handshake",),
    ),
    "reachability question": Format(
        values=st.integers(0, 65535),
        encode=reachability.number_bytes,
        decode=lambda data: reachability.read_number(data, maximum=65535),
        limit_bytes=reachability.MAX_MESSAGE_BYTES,
    ),
    "parts hello": Format(
        values=st.builds(parts_stream.Hello, COUNTS, st.integers(0, MAX_BALLOT), HASHES),
        encode=parts_stream.Hello.encode,
        decode=parts_stream.Hello.decode,
        limit_bytes=256,
        covers=("Hello",),
    ),
    "part frame": Format(
        values=st.builds(part_frame.PartFrame, st.integers(0, ledger.MAX_PARTS), st.integers(0, 255), blobs),
        encode=part_frame.PartFrame.encode,
        decode=part_frame.PartFrame.decode,
        limit_bytes=MAX_FRAME_BYTES,
        covers=("PartFrame",),
    ),
    "parts acknowledged": Format(
        values=COUNTS,
        encode=parts_stream.encode_ack,
        decode=parts_stream.decode_ack,
        limit_bytes=parts_stream.MAX_ACK_BYTES,
    ),
    "head answer": Format(
        values=st.tuples(values_of(ledger.Head), st.integers(0, ledger.MAX_DURATION_MS)),
        encode=lambda value: pack([*value[0].fields(), value[1]]),
        decode=asked(lambda donor: as_milliseconds(donor)),
    ),
    "headers answer": Format(
        values=blob_lists,
        encode=lambda headers: pack([[header] for header in headers]),
        decode=asked(lambda donor: donor.headers(1)),
    ),
    "forks answer": Format(
        values=blob_lists,
        encode=lambda forks: pack([[fork] for fork in forks]),
        decode=asked(lambda donor: donor.forks()),
    ),
    "fork": Format(
        values=st.builds(Fork, COUNTS, values_of(ledger.Head), blobs),
        encode=Fork.encode,
        decode=Fork.decode,
        limit_bytes=ledger.MAX_HEADER_BYTES + 2**10,
        covers=("Fork",),
    ),
    "snapshots answer": Format(
        values=st.lists(COUNTS, max_size=5), encode=pack, decode=asked(lambda donor: donor.snapshots())
    ),
    "snapshot index": Format(
        values=indices,
        encode=SnapshotIndex.encode,
        decode=SnapshotIndex.decode,
        limit_bytes=MAX_INDEX_BYTES,
        covers=("SnapshotIndex",),
    ),
    "snapshot index answer": Format(
        values=indices, encode=SnapshotIndex.encode, decode=asked(lambda donor: donor.snapshot_index(1))
    ),
    "frames": Format(
        values=blob_lists,
        encode=lambda frames: b"".join(map(framed, frames)),
        decode=read_frames,
        refusals=(RecordError, StreamLost),
        form="none",
    ),
}


async def as_milliseconds(donor: library.Donor) -> tuple[ledger.Head, int]:
    head, age_seconds = await donor.head()
    return head, round(age_seconds * 1000)


SIGNED_TEXTS: dict[str, tuple[Strategy, Callable[[Any], bytes]]] = {  # signed and never read: only their writing counts
    "vote": (st.tuples(HASHES, COUNTS, COUNTS, HASHES), lambda value: ledger.vote_message(*value)),
    "degraded vote": (
        st.tuples(HASHES, COUNTS, COUNTS, HASHES, st.lists(st.text("abc", min_size=1, max_size=5), max_size=3)),
        lambda value: ledger.degraded_message(*value),
    ),
    "genesis": (SIGNATURES, ledger.genesis_message),
}
