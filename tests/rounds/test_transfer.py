"""Parts by hash, from holders of whom some are frozen, gone or have only a few."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from small_swarm import identity, rules_for
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.errors import DataError
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.simulated_network import SimulatedNetwork, SimulatedWorld, run_virtual
from swarm_diloco.rounds.library import ANSWER_SECONDS, library_protocol
from swarm_diloco.rounds.log import PartStore
from swarm_diloco.rounds.transfer import fetch_parts

RULES = rules_for()
PARTS = [bytes([number]) * 1000 for number in range(5)]
HASHES = [hash_of(part) for part in PARTS]


async def never(_stream: Stream) -> None:
    """A frozen program whose network daemon answers for it."""
    await asyncio.Event().wait()


async def holder(world: SimulatedWorld, name: str, parts: Sequence[bytes] | None) -> SimulatedNetwork:
    """One that has these parts; None: it is frozen."""
    network = world.network(identity(name))
    held = {hash_of(part): part for part in parts or ()}

    async def give(stream: Stream) -> None:
        while True:
            request = await stream.receive(timeout_seconds=60)
            found = next((part for part_hash, part in held.items() if part_hash in request), None)
            await stream.send(b"\x00it is not here" if found is None else b"\x01" + found, timeout_seconds=60)

    await network.serve(library_protocol(RULES.run_id), never if parts is None else give)
    return network


def fetched(folder: Path, holders: Sequence[Sequence[bytes] | None], *, limit_seconds: float) -> PartStore:
    store = PartStore(folder)

    async def scenario(world: SimulatedWorld) -> None:
        networks = [await holder(world, f"holder {number}", parts) for number, parts in enumerate(holders)]
        asker = world.network(identity("asker"))
        await fetch_parts(asker, RULES, store, HASHES, [network.peer for network in networks])

    run_virtual(scenario, seed=1, limit_seconds=limit_seconds)
    return store


def test_a_frozen_holder_keeps_nobody_waiting_for_its_answers_deadline(tmp_path: Path) -> None:
    store = fetched(tmp_path, [None, None, PARTS], limit_seconds=ANSWER_SECONDS / 2)
    assert all(store.get(part_hash) == part for part_hash, part in zip(HASHES, PARTS, strict=True))


def test_what_one_holder_lacks_comes_from_the_next(tmp_path: Path) -> None:
    store = fetched(tmp_path, [PARTS[:2], [], PARTS[3:], PARTS[1:4]], limit_seconds=10)
    assert all(store.get(part_hash) is not None for part_hash in HASHES)


def test_what_nobody_has_is_counted_and_the_rest_is_held(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 of 5 parts could not be had from 3 peers"):
        fetched(tmp_path, [PARTS[:3], None, PARTS[2:4]], limit_seconds=2 * ANSWER_SECONDS)
    assert [PartStore(tmp_path).get(part_hash) for part_hash in HASHES] == [None] * 5, (
        "not on disk before it is decided"
    )
