"""A snapshot is whole and right, or it is refused and nothing has changed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from small_swarm import NUM_VALUES, first_state, normal_values, rules_for
from swarm_diloco.diloco.records import hash_of, pack
from swarm_diloco.errors import DiskError, RecordError, StateError
from swarm_diloco.rounds.replica import Replica
from swarm_diloco.rounds.snapshot import (
    CHUNK_BYTES,
    SnapshotIndex,
    load_snapshot,
    prune_snapshots,
    read_chunk,
    read_index,
    stored_rounds,
    write_snapshot,
)

RULES = rules_for()


def empty_replica() -> Replica:
    return Replica(RULES, torch.zeros(NUM_VALUES), torch.zeros(NUM_VALUES))


def write(folder: Path, round_: int = 4, *, values: int = NUM_VALUES, run: bytes = RULES.run_id) -> SnapshotIndex:
    theta = normal_values(3)[:values].clone()
    return write_snapshot(
        folder / str(round_),
        run=run,
        round_=round_,
        digest=hash_of(b"d"),
        theta=theta,
        momentum=theta * 2,
        applied=[round_],
    )


def test_what_is_written_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    index = write(tmp_path)
    assert read_index(tmp_path / "4") == index
    replica = empty_replica()
    assert load_snapshot(tmp_path / "4", replica) == index
    assert torch.equal(replica.theta, normal_values(3))
    assert torch.equal(replica.momentum, normal_values(3) * 2)
    assert (replica.round, replica.applied) == (4, [4])
    assert replica.base(0) == replica.state_hash()


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "no state", "no index", "another run", "another size"])
def test_a_damaged_snapshot_changes_nothing(tmp_path: Path, damage: str) -> None:
    write(
        tmp_path,
        values=NUM_VALUES - 1 if damage == "another size" else NUM_VALUES,
        run=hash_of(b"another") if damage == "another run" else RULES.run_id,
    )
    path = tmp_path / "4" / "state.safetensors"
    data = path.read_bytes()
    match damage:
        case "flipped":
            path.write_bytes(data[:500] + bytes([data[500] ^ 4]) + data[501:])
        case "cut":
            path.write_bytes(data[:-100])
        case "longer":
            path.write_bytes(data + b"x")
        case "no state":
            path.unlink()
        case "no index":
            (tmp_path / "4" / "index").unlink()
    replica = empty_replica()
    replica.load(*first_state(), round_=0, applied=[0])
    before = replica.state_hash()
    with pytest.raises((DiskError, RecordError)):
        load_snapshot(tmp_path / "4", replica)
    assert (replica.round, replica.state_hash(), replica.applied) == (0, before, [0])


def test_a_snapshot_that_the_log_does_not_name_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    replica = empty_replica()
    replica.load(*first_state(), round_=0, applied=[0])
    before = replica.state_hash()

    def refuse(_index: SnapshotIndex, bases: object) -> None:
        assert bases == [Replica_of(tmp_path).base(0)]
        raise StateError("not the log's")

    with pytest.raises(StateError, match="not the log's"):
        load_snapshot(tmp_path / "4", replica, refuse)
    assert (replica.round, replica.state_hash()) == (0, before)


def Replica_of(folder: Path) -> Replica:  # noqa: N802
    replica = empty_replica()
    load_snapshot(folder / "4", replica)
    return replica


@given(st.binary(max_size=200))
def test_any_bytes_are_no_index(data: bytes) -> None:
    with pytest.raises(RecordError):
        SnapshotIndex.decode(data)


def test_an_index_whose_chunks_do_not_make_up_its_size_is_refused() -> None:
    right = SnapshotIndex(RULES.run_id, 1, hash_of(b"d"), (1,), CHUNK_BYTES + 1, (hash_of(b"a"), hash_of(b"b")))
    assert SnapshotIndex.decode(right.encode()) == right
    for wrong in (
        replace(right, num_bytes=CHUNK_BYTES),
        replace(right, num_bytes=2 * CHUNK_BYTES + 1),
        replace(right, num_bytes=0),
        replace(right, chunk_hashes=right.chunk_hashes[:1]),
    ):
        with pytest.raises(RecordError):
            SnapshotIndex.decode(wrong.encode())
    for chunk_bytes, chunks in ((CHUNK_BYTES + 1, b"".join(right.chunk_hashes)), (CHUNK_BYTES, bytes(65))):
        fields = [1, right.run, 1, right.digest, [1], right.num_bytes, chunk_bytes, chunks]
        with pytest.raises(RecordError):
            SnapshotIndex.decode(pack(fields))


def test_an_interrupted_write_is_no_snapshot_and_the_newest_two_and_the_first_are_kept(tmp_path: Path) -> None:
    assert stored_rounds(tmp_path / "nothing") == []
    for round_ in (0, 4, 8, 12):
        write(tmp_path, round_)
    (tmp_path / "16").mkdir()
    (tmp_path / ".writing-20").mkdir()
    assert stored_rounds(tmp_path) == [0, 4, 8, 12]
    prune_snapshots(tmp_path)
    assert stored_rounds(tmp_path) == [0, 8, 12]
    with pytest.raises(DiskError):
        read_chunk(tmp_path / "16", 0)


def test_a_snapshot_replaces_one_of_the_same_round(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "4" / "state.safetensors").write_bytes(b"damaged")
    write(tmp_path)
    load_snapshot(tmp_path / "4", empty_replica())
