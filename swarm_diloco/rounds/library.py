"""What one peer hands another on request: manifest, files, headers, parts, snapshots, and the live feed of the log.

A request is a record [version, what, arguments…]; each answer is a frame that begins with 1 and the bytes, or with 0
and a reason. Nothing received is believed: the caller checks hashes and certificates.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from blake3 import blake3

from swarm_diloco.diloco.ledger import MAX_DURATION_MS, MAX_HEADER_BYTES, Head
from swarm_diloco.diloco.records import Field, Fields, pack, unpack
from swarm_diloco.disk import sync_folder
from swarm_diloco.errors import DataError, DiskError, NetworkError, RecordError, SwarmDilocoError
from swarm_diloco.network.interface import MAX_FRAME_BYTES, Network, Stream
from swarm_diloco.rounds.log import Log
from swarm_diloco.rounds.snapshot import CHUNK_BYTES, SnapshotIndex, read_chunk, read_index, stored_rounds

REQUEST_VERSION = 1
MAX_REQUEST_BYTES = 1024
MAX_STREAMS = 128  # served at once; a further one is closed
MAX_FEEDS = 64  # of them, live feeds: who follows holds its stream for ever, and must not keep joiners out
HEADERS_AT_ONCE = 64
FILE_CHUNK_BYTES = 2**20
MAX_FILE_BYTES = 2**48
ASKED_AHEAD = 8  # parts
IDLE_SECONDS = 120.0
ANSWER_SECONDS = 30.0  # for one answer; the largest is a part or chunk of some megabytes
FEED_BEAT_SECONDS = 10.0


def library_protocol(run_id: bytes) -> str:
    """Stands apart from the round protocol's names, so that an old client can still read what the run is."""
    return f"/swarm-diloco/library/1/{run_id.hex()[:32]}"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run's published bytes as this peer holds them. `files` maps a file's blake3 to where it lies."""

    manifest: bytes
    genesis: bytes
    files: Mapping[bytes, Path]


class Library:
    """Serves one run. `wait_past(round)` returns when the log's head is past `round`."""

    def __init__(
        self,
        published: RunFiles,
        log: Log,
        snapshots: Path,
        *,
        wait_past: Callable[[int], Awaitable[None]],
        head_age_seconds: Callable[[], float],
        forks: Callable[[], Sequence[bytes]] = tuple,
    ) -> None:
        self._published = published
        self._log = log
        self._snapshots = snapshots
        self._wait_past = wait_past
        self._head_age_seconds = head_age_seconds
        self._forks = forks
        self._streams = self._feeds = 0

    async def serve(self, stream: Stream) -> None:
        """One asker's requests, one after the other, until it goes or is idle."""
        if self._streams >= MAX_STREAMS:
            return
        self._streams += 1
        try:
            while True:
                request = unpack(
                    await stream.receive(timeout_seconds=IDLE_SECONDS, limit_bytes=MAX_REQUEST_BYTES),
                    "request",
                    limit_bytes=MAX_REQUEST_BYTES,
                )
                request.version(REQUEST_VERSION)
                what = request.string()
                if what == "follow" and self._feeds >= MAX_FEEDS:
                    return
                if what == "follow":
                    first = request.integer()
                    request.end()
                    await self._feed(stream, first)
                else:
                    await stream.send(self._answer(what, request), timeout_seconds=ANSWER_SECONDS)
        except (NetworkError, RecordError):
            pass  # it went away, was idle, or does not speak our language: nothing is owed
        finally:
            self._streams -= 1

    def _answer(self, what: str, request: Fields) -> bytes:
        try:
            answer = b"\x01" + self._look_up(what, request)
            request.end()
            return answer
        except (SwarmDilocoError, OSError, KeyError, IndexError) as error:
            return b"\x00" + f"{what}: {error or type(error).__name__}".encode()[:500]

    def _look_up(self, what: str, request: Fields) -> bytes:
        match what:
            case "manifest":
                return self._published.manifest
            case "genesis":
                return self._published.genesis
            case "file":
                return self._file_chunk(request.hash_(), request.integer(maximum=MAX_FILE_BYTES))
            case "head":
                age_ms = min(int(self._head_age_seconds() * 1000), MAX_DURATION_MS)  # the most that an asker takes
                return pack([*self._log.head.fields(), age_ms])
            case "headers":
                return self._headers(request.integer())
            case "forks":
                return pack([[fork] for fork in self._forks()])
            case "part":
                part = self._log.parts.get(request.hash_())
                if part is None:
                    raise DiskError("this part is not here")
                return part
            case "snapshots":
                return pack(list(stored_rounds(self._snapshots)))
            case "snapshot index":
                return read_index(self._snapshots / str(request.integer())).encode()
            case "snapshot chunk":
                return read_chunk(
                    self._snapshots / str(request.integer()), request.integer(maximum=MAX_FILE_BYTES // CHUNK_BYTES)
                )
            case _:
                raise RecordError("not known here")

    def _file_chunk(self, file_hash: bytes, offset: int) -> bytes:
        path = self._published.files.get(file_hash)
        if path is None:
            raise DiskError("this file is not here")
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(FILE_CHUNK_BYTES)

    def _headers(self, first: int) -> bytes:
        headers: list[bytes] = []
        size = 0
        for round_ in range(first, min(first + HEADERS_AT_ONCE, self._log.head.round + 1)):
            header = self._log.header_bytes(round_)
            size += len(header)
            if headers and size > MAX_FRAME_BYTES // 2:
                break
            headers.append(header)
        return pack([[header] for header in headers])

    async def _feed(self, stream: Stream, first: int) -> None:
        """Headers from `first` on as they come, an empty frame as a beat between them."""
        next_round = first
        self._feeds += 1
        try:
            while True:
                while next_round <= self._log.head.round:
                    await stream.send(self._log.header_bytes(next_round), timeout_seconds=ANSWER_SECONDS)
                    next_round += 1
                with suppress(TimeoutError):
                    async with asyncio.timeout(FEED_BEAT_SECONDS):
                        await self._wait_past(next_round - 1)
                    continue
                await stream.send(b"", timeout_seconds=ANSWER_SECONDS)
        finally:
            self._feeds -= 1


def _hash_of_file(path: Path) -> bytes:
    hasher = blake3()
    if path.stat().st_size:  # nothing cannot be mapped
        hasher.update_mmap(path)
    return hasher.digest()


class Donor:
    """The asking side, over one stream. Use it as an async context manager; every wait is bounded."""

    def __init__(self, network: Network, peer: str, run_id: bytes, *, timeout_seconds: float = ANSWER_SECONDS) -> None:
        self.peer = peer
        self._network = network
        self._protocol = library_protocol(run_id)
        self._timeout = timeout_seconds
        self._stream: Stream | None = None

    async def __aenter__(self) -> "Donor":
        """Raises PeerUnreachable."""
        self._stream = await self._network.dial(self.peer, self._protocol, timeout_seconds=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            await self._stream.close()

    async def _ask(self, what: str, *arguments: Field) -> bytes:
        assert self._stream is not None
        request = pack([REQUEST_VERSION, what, *arguments])
        await self._stream.send(request, timeout_seconds=self._timeout)
        answer = await self._stream.receive(timeout_seconds=self._timeout, limit_bytes=MAX_FRAME_BYTES)
        if answer[:1] != b"\x01":
            raise DataError(f"{self.peer} cannot give it: {answer[1:].decode(errors='replace')[:200]}")
        return answer[1:]

    async def manifest(self) -> bytes:
        return await self._ask("manifest")

    async def genesis(self) -> bytes:
        return await self._ask("genesis")

    async def head(self) -> tuple[Head, float]:
        """The donor's head, and how many seconds ago it came there (its word: nothing but a due time rests on it)."""
        fields = unpack(await self._ask("head"), "head", limit_bytes=MAX_REQUEST_BYTES)
        head, age_ms = Head.read(fields), fields.integer(maximum=MAX_DURATION_MS)
        fields.end()
        return head, age_ms / 1000

    async def headers(self, first: int) -> list[bytes]:
        """Headers of the rounds from `first` on, not all: ask again from the last one's successor."""
        fields = unpack(await self._ask("headers", first), "headers", limit_bytes=MAX_FRAME_BYTES)
        return fields.rest(lambda entry: entry.bytes_(limit=MAX_HEADER_BYTES))

    async def forks(self) -> list[bytes]:
        """Other branches that the donor has proof of: encoded, unchecked."""
        fields = unpack(await self._ask("forks"), "forks", limit_bytes=MAX_FRAME_BYTES)
        return fields.rest(lambda entry: entry.bytes_(limit=MAX_FRAME_BYTES))

    async def parts(self, part_hashes: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
        """Those of the parts that the donor has, each checked; a few are asked for ahead of what has come.

        Raises RecordError if bytes do not have their hash.
        """
        assert self._stream is not None
        num_asked = 0
        for number, part_hash in enumerate(part_hashes):
            while num_asked < min(number + ASKED_AHEAD, len(part_hashes)):
                request = pack([REQUEST_VERSION, "part", part_hashes[num_asked]])
                await self._stream.send(request, timeout_seconds=self._timeout)
                num_asked += 1
            answer = await self._stream.receive(timeout_seconds=self._timeout, limit_bytes=MAX_FRAME_BYTES)
            if answer[:1] != b"\x01":
                continue
            if blake3(answer[1:]).digest() != part_hash:
                raise RecordError(f"{self.peer} gave a part that does not have its hash")
            yield answer[1:]

    async def snapshots(self) -> list[int]:
        fields = unpack(await self._ask("snapshots"), "snapshots", limit_bytes=2**16)
        return fields.remaining_integers()

    async def snapshot_index(self, round_: int) -> SnapshotIndex:
        return SnapshotIndex.decode(await self._ask("snapshot index", round_))

    async def snapshot_chunk(self, round_: int, number: int) -> bytes:
        data = await self._ask("snapshot chunk", round_, number)
        if len(data) > CHUNK_BYTES:
            raise RecordError(f"{self.peer} gave a chunk of {len(data)} bytes")
        return data

    async def file(
        self, file_hash: bytes, num_bytes: int, into: Path, progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Fetch one of the run's files, whole and right or not at all. An interrupted fetch goes on where it stopped.

        Raises DataError, RecordError, NetworkError, DiskError.
        """
        aside = into.with_name(f".fetching-{file_hash.hex()[:16]}")
        try:
            into.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("ab") as file:
                while (offset := file.tell()) < num_bytes:
                    chunk = await self._ask("file", file_hash, offset)
                    if not chunk:
                        raise DataError(f"{self.peer} has only {offset} of the {num_bytes} bytes of {into.name}")
                    file.write(chunk)
                    progress(file.tell())
                file.flush()
                os.fsync(file.fileno())
                if file.tell() != num_bytes or _hash_of_file(aside) != file_hash:
                    aside.unlink()
                    raise RecordError(f"{self.peer} gave a file {into.name} that does not have its hash")
            aside.rename(into)
            sync_folder(into.parent)
        except OSError as error:
            raise DiskError(f"cannot write {into}: {error.strerror or error}") from error

    async def follow(self, first: int) -> AsyncGenerator[bytes, None]:
        """Headers from round `first` on, for ever. Raises StreamTimeout when the donor falls silent."""
        assert self._stream is not None
        await self._stream.send(pack([REQUEST_VERSION, "follow", first]), timeout_seconds=self._timeout)
        while True:
            frame = await self._stream.receive(timeout_seconds=3 * FEED_BEAT_SECONDS, limit_bytes=MAX_HEADER_BYTES)
            if frame:
                yield frame
