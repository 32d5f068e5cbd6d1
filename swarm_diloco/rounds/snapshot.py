"""The whole global state as files: safetensors, and an index with a hash for each chunk."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from swarm_diloco.diloco.records import HASH_BYTES, hash_of, pack, unpack
from swarm_diloco.disk import read_file, sync_folder, write_durably
from swarm_diloco.errors import DiskError, RecordError, StateError
from swarm_diloco.rounds.log import Log
from swarm_diloco.rounds.replica import Replica, fragment_base

INDEX_VERSION = 1
CHUNK_BYTES = 2**22
MAX_INDEX_BYTES = 2**22  # 120,000 chunks: half a terabyte
STATE_FILE = "state.safetensors"
INDEX_FILE = "index"


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """What a snapshot is and how to check each chunk of its file."""

    run: bytes
    round: int
    digest: bytes  # D_round
    applied: tuple[int, ...]  # results of each fragment so far
    num_bytes: int
    chunk_hashes: tuple[bytes, ...]

    def encode(self) -> bytes:
        chunks = b"".join(self.chunk_hashes)
        return pack(
            [INDEX_VERSION, self.run, self.round, self.digest, list(self.applied), self.num_bytes, CHUNK_BYTES, chunks]
        )

    @classmethod
    def decode(cls, data: bytes) -> "SnapshotIndex":
        """Raises RecordError."""
        fields = unpack(data, "snapshot index", limit_bytes=MAX_INDEX_BYTES)
        fields.version(INDEX_VERSION)
        run, round_, digest = fields.hash_(), fields.integer(), fields.hash_()
        applied = fields.integers(limit=256)
        num_bytes, chunk_bytes = fields.integer(), fields.integer()
        chunks = fields.bytes_(limit=MAX_INDEX_BYTES)
        fields.end()
        hashes = tuple(chunks[start : start + HASH_BYTES] for start in range(0, len(chunks), HASH_BYTES))
        if chunk_bytes != CHUNK_BYTES or len(hashes) != -(-num_bytes // CHUNK_BYTES) or len(chunks) % HASH_BYTES:
            raise RecordError("snapshot index: its chunks do not make up its size")
        return cls(run, round_, digest, applied, num_bytes, hashes)

    def check_chunk(self, index: int, data: bytes) -> None:
        """Raises RecordError if `data` is not chunk `index`."""
        if hash_of(data) != self.chunk_hashes[index]:
            raise RecordError(f"snapshot of round {self.round}: chunk {index} does not have its hash")


def write_snapshot(
    folder: Path, *, run: bytes, round_: int, digest: bytes, theta: Tensor, momentum: Tensor, applied: Sequence[int]
) -> SnapshotIndex:
    """Write `folder` (snapshots/<round>) whole or not at all. Raises DiskError."""
    aside = folder.with_name(f".writing-{folder.name}")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        save_file({"theta": theta, "momentum": momentum}, aside / STATE_FILE)
        index = _index_of(aside / STATE_FILE, run=run, round_=round_, digest=digest, applied=applied)
        finish_snapshot(aside, folder, index)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise DiskError(f"cannot write the snapshot {folder}: {error}") from error
    return index


def finish_snapshot(aside: Path, folder: Path, index: SnapshotIndex) -> None:
    """Put a complete state file's folder in its place, its index last."""
    write_durably(aside / INDEX_FILE, index.encode())
    with (aside / STATE_FILE).open("rb") as file:
        os.fsync(file.fileno())
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)
    sync_folder(folder.parent)


def _index_of(path: Path, *, run: bytes, round_: int, digest: bytes, applied: Sequence[int]) -> SnapshotIndex:
    hashes = []
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            hashes.append(blake3(chunk).digest())
        num_bytes = file.tell()
    return SnapshotIndex(run, round_, digest, tuple(applied), num_bytes, tuple(hashes))


def read_index(folder: Path) -> SnapshotIndex:
    """Raises DiskError, RecordError."""
    return SnapshotIndex.decode(read_file(folder / INDEX_FILE, limit_bytes=MAX_INDEX_BYTES))


def read_chunk(folder: Path, index: int) -> bytes:
    """One chunk of the state file, unchecked. Raises DiskError."""
    try:
        with (folder / STATE_FILE).open("rb") as file:
            file.seek(index * CHUNK_BYTES)
            return file.read(CHUNK_BYTES)
    except OSError as error:
        raise DiskError(f"cannot read {folder / STATE_FILE}: {error.strerror or error}") from error


Certify = Callable[[SnapshotIndex, Sequence[bytes]], None]


def load_snapshot(folder: Path, replica: Replica, certify: Certify = lambda _index, _bases: None) -> SnapshotIndex:
    """Check every chunk and give the state to the replica.

    `certify(index, bases)` raises if the state is not the log's; `bases` holds H(θ_f ‖ m_f) of each fragment.
    Raises DiskError, RecordError or what `certify` raises; then nothing changed.
    """
    index = read_index(folder)
    if index.run != replica.rules.run_id or len(index.applied) != replica.rules.num_fragments:
        raise RecordError(f"snapshot {folder}: it belongs to another run")
    for number in range(len(index.chunk_hashes)):
        index.check_chunk(number, read_chunk(folder, number))
    try:
        tensors = load_file(folder / STATE_FILE)
        theta, momentum = tensors["theta"], tensors["momentum"]
    except (OSError, SafetensorError, KeyError) as error:
        raise RecordError(f"snapshot {folder}: not a state ({error})") from error
    expected = (replica.rules.layout.num_values,)
    for tensor in (theta, momentum):
        if tensor.dtype is not torch.float32 or tuple(tensor.shape) != expected:
            raise RecordError(
                f"snapshot {folder}: {tensor.dtype} {tuple(tensor.shape)} where float32 {expected} is due"
            )
    wheres = [replica.rules.fragment_slice(fragment) for fragment in range(replica.rules.num_fragments)]
    certify(index, [fragment_base(theta[where], momentum[where]) for where in wheres])
    replica.load(theta, momentum, round_=index.round, applied=index.applied)
    return index


def certify(log: Log, round_: int, index: SnapshotIndex, bases: Sequence[bytes], *, strictly: bool) -> None:
    """A snapshot counts once the fragments' next commits name its hash; θ_0 is named by the genesis.

    A fragment without a next commit is let pass unless `strictly`. Raises RecordError, StateError.
    """
    if index.round != round_ or index.applied != log.applied_after(round_):
        raise RecordError(f"snapshot of round {round_}: it claims another place in the log")
    if round_ == 0 and log.commit(0).base != b"".join(bases):
        raise StateError("the first snapshot is not the one that the genesis names")
    checked: set[int] = set(range(len(bases))) if round_ == 0 else set()
    for next_round in range(round_ + 1, log.head.round + 1):
        commit = log.commit(next_round)
        if commit.fragment not in checked and commit.base != bases[commit.fragment]:
            raise StateError(f"snapshot of round {round_}: its state is not the one that round {next_round} names")
        checked.add(commit.fragment)
        if len(checked) == len(bases):
            return
    if strictly and len(checked) < len(bases):
        raise RecordError(f"snapshot of round {round_}: the log does not name its state yet")


def stored_rounds(folder: Path) -> list[int]:
    """The rounds of which whole snapshots lie under `folder` (snapshots/), oldest first."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise DiskError(f"{folder} is not a folder; remove it and start again")
    names = [path.name for path in folder.iterdir() if path.name.isdecimal() and (path / INDEX_FILE).exists()]
    return sorted(int(name) for name in names)


def prune_snapshots(folder: Path, *, keep: int = 2) -> None:
    """Remove all but the newest `keep` snapshots; θ_0 is kept too: from it and all parts a run can be replayed."""
    for round_ in stored_rounds(folder)[:-keep]:
        if round_ > 0:
            shutil.rmtree(folder / str(round_), ignore_errors=True)
