"""Fetching what others hold: parts by hash from whoever gives them, a snapshot chunk by chunk, all of it checked."""

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import aclosing, suppress
from pathlib import Path

from swarm_diloco.errors import DataError, DiskError, NetworkError, RecordError
from swarm_diloco.network.interface import Network
from swarm_diloco.rounds.library import Donor
from swarm_diloco.rounds.log import PartStore
from swarm_diloco.rounds.settings import RunRules
from swarm_diloco.rounds.snapshot import CHUNK_BYTES, STATE_FILE, finish_snapshot
from swarm_diloco.rounds.tasks import end

VALUE_BYTES = 8  # θ and m, float32
HEADER_ROOM_BYTES = 2**16  # what safetensors adds


async def fetch_parts(
    network: Network, rules: RunRules, store: PartStore, hashes: Sequence[bytes], holders: Sequence[str]
) -> None:
    """Hold all these parts, asking the holders one after the other.

    From a holder that has given nothing for a while more may come, but the next one is asked beside it: a frozen peer
    takes a stream as a busy one does. Raises DataError: how many are missing.
    """
    missing = dict.fromkeys(part_hash for part_hash in hashes if store.get(part_hash) is None)
    waiting = [peer for peer in holders if peer != network.peer]
    asking: set[asyncio.Task[None]] = set()
    news = asyncio.Event()

    async def ask(peer: str) -> None:
        with suppress(NetworkError, RecordError):  # what it gave is kept; another is asked for the rest
            async with Donor(network, peer, rules.run_id) as donor, aclosing(donor.parts(list(missing))) as parts:
                async for part in parts:
                    missing.pop(store.hold(part), None)
                    news.set()

    try:
        while missing and (waiting or asking):
            if waiting:
                asking.add(task := asyncio.create_task(ask(waiting.pop(0))))
                task.add_done_callback(lambda _: news.set())
            num_asking = len(asking)
            with suppress(TimeoutError):
                while missing and len(asking) == num_asking:
                    news.clear()
                    async with asyncio.timeout(rules.rounds.silence_seconds if waiting else None):
                        await news.wait()
                    for task in [task for task in asking if task.done()]:
                        asking.remove(task)
                        task.result()
            missing = {part_hash: None for part_hash in missing if store.get(part_hash) is None}  # by other ways
    finally:
        await end(asking)
    if missing:
        raise DataError(f"{len(missing)} of {len(hashes)} parts could not be had from {len(holders)} peers")


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
