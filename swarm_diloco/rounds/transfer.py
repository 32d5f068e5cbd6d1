"""Fetching a snapshot: chunk by chunk, each checked, going on where an earlier try stopped."""

import shutil
from pathlib import Path

from swarm_diloco.errors import DiskError, RecordError
from swarm_diloco.rounds.library import Donor
from swarm_diloco.rounds.settings import RunRules
from swarm_diloco.rounds.snapshot import CHUNK_BYTES, STATE_FILE, finish_snapshot

VALUE_BYTES = 8  # θ and m, float32
HEADER_ROOM_BYTES = 2**16  # what safetensors adds


async def fetch_snapshot(donor: Donor, round_: int, folder: Path, rules: RunRules) -> None:
    """Put the donor's snapshot of `round_` into `folder`, whole or not at all.

    Raises NetworkError, DataError, DiskError, RecordError (another run's or an oversized state, a wrong chunk).
    """
    index = await donor.snapshot_index(round_)
    if index.run != rules.run_id or index.round != round_:
        raise RecordError(f"{donor.peer} offers a snapshot of another run or round")
    if index.num_bytes > rules.layout.num_values * VALUE_BYTES + HEADER_ROOM_BYTES:
        raise RecordError(f"{donor.peer} offers a snapshot of {index.num_bytes} bytes, more than the model has")
    aside = folder.with_name(f".fetching-{folder.name}-{index.digest.hex()[:8]}")
    try:
        for other in folder.parent.glob(".fetching-*"):  # what a donor began and nobody could go on with
            if other != aside:
                shutil.rmtree(other, ignore_errors=True)
        aside.mkdir(parents=True, exist_ok=True)
        with (aside / STATE_FILE).open("a+b") as file:
            file.seek(0)
            held = 0
            while held < len(index.chunk_hashes):  # chunks of an earlier try that are right are kept
                chunk = file.read(CHUNK_BYTES)
                try:
                    index.check_chunk(held, chunk)
                except RecordError:
                    break
                held += 1
            file.truncate(held * CHUNK_BYTES if held < len(index.chunk_hashes) else index.num_bytes)
            for number in range(held, len(index.chunk_hashes)):
                chunk = await donor.snapshot_chunk(round_, number)
                index.check_chunk(number, chunk)
                file.write(chunk)
        finish_snapshot(aside, folder, index)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise DiskError(f"cannot write the snapshot {folder}: {error.strerror or error}") from error
