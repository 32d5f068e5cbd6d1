"""What one peer hands another: whole and right or not at all, whatever the asker asks and the donor gives."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from small_swarm import NUM_VALUES, first_state, genesis_of, identity, normal_values, rules_for
from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.diloco.records import hash_of, pack
from swarm_diloco.errors import DataError, NetworkError, RecordError, StreamLost, StreamTimeout
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedNetwork, SimulatedWorld, run_virtual
from swarm_diloco.rounds import snapshot as snapshot_module
from swarm_diloco.rounds import transfer
from swarm_diloco.rounds.library import (
    FILE_CHUNK_BYTES,
    MAX_FEEDS,
    MAX_STREAMS,
    Donor,
    Library,
    RunFiles,
    library_protocol,
)
from swarm_diloco.rounds.log import Log
from swarm_diloco.rounds.replica import Replica
from swarm_diloco.rounds.snapshot import load_snapshot, write_snapshot
from swarm_diloco.rounds.transfer import fetch_snapshot

RULES = rules_for()
GENESIS = genesis_of(RULES, [identity("boot").peer])
FILE = bytes(range(256)) * 10_000  # 2.5 MB: three chunks


class Shelf:
    """A donor with a file and snapshots, and a network from which to ask it."""

    def __init__(self, world: SimulatedWorld, folder: Path, library: type[Library] = Library) -> None:
        self.world, self.folder = world, folder
        self.donor_network = world.network(identity("donor"))
        self.asker = world.network(identity("asker"))
        path = folder / "file"
        path.write_bytes(FILE)
        self.log = Log(folder / "run", RULES, GENESIS)
        self.library = library(
            RunFiles(b"the manifest", GENESIS, {hash_of(FILE): path, hash_of(b""): folder / "empty"}),
            self.log,
            folder / "snapshots",
            wait_past=self.never,
            head_age_seconds=lambda: 1.5,
        )
        (folder / "empty").write_bytes(b"")

    async def never(self, _round: int) -> None:
        await asyncio.Event().wait()

    async def open(self) -> "Shelf":
        await self.donor_network.serve(library_protocol(RULES.run_id), self.library.serve)
        return self

    def ask(self, network: SimulatedNetwork | None = None) -> Donor:
        return Donor(network or self.asker, self.donor_network.peer, RULES.run_id)

    def write_snapshot(self, round_: int, theta: torch.Tensor) -> None:
        write_snapshot(
            self.folder / "snapshots" / str(round_),
            run=RULES.run_id,
            round_=round_,
            digest=hash_of(b"d"),
            theta=theta,
            momentum=torch.zeros_like(theta),
            applied=[round_],
        )


def play(tmp_path: Path, scenario: Any, library: type[Library] = Library) -> None:
    async def in_world(world: SimulatedWorld) -> None:
        await scenario(await Shelf(world, tmp_path, library).open())

    run_virtual(in_world, seed=1, limit_seconds=2000)


def test_what_is_there_is_given_and_what_is_not_is_said_so(tmp_path: Path) -> None:
    async def scenario(shelf: Shelf) -> None:
        async with shelf.ask() as donor:
            assert await donor.manifest() == b"the manifest"
            assert await donor.genesis() == GENESIS
            assert await donor.head() == (shelf.log.head, 1.5)
            assert await donor.headers(0) == [GENESIS]
            assert await donor.headers(1) == []
            assert await donor.snapshots() == []
            part_hash = shelf.log.parts.hold(b"a part")
            assert [part async for part in donor.parts([hash_of(b"not there"), part_hash])] == [b"a part"]
            with pytest.raises(DataError, match="cannot give it"):
                await donor.snapshot_index(3)
            with pytest.raises(DataError, match="cannot give it"):
                await donor.file(hash_of(b"another file"), 5, tmp_path / "got")
            assert await donor.manifest() == b"the manifest"  # the stream is still good

    play(tmp_path, scenario)


HOSTILE: dict[str, list[Any]] = {
    "not a record": [b"\xc1"],
    "no fields": [pack([])],
    "another version": [pack([2, "head"])],
    "nothing known": [pack([1, "everything"])],
    "no arguments": [pack([1, what]) for what in ("file", "headers", "part", "snapshot index", "snapshot chunk")],
    "wrong kinds": [pack([1, "headers", b"x"]), pack([1, "part", 5]), pack([1, "snapshot chunk", "a", "b"])],
    "past every file": [pack([1, "file", hash_of(FILE), 2**63 - 1]), pack([1, "file", hash_of(FILE), 2**47])],
    "past every chunk": [pack([1, "snapshot chunk", 0, 2**63 - 1]), pack([1, "snapshot chunk", 0, 2**40])],
    "past every round": [pack([1, "headers", 2**63 - 1]), pack([1, "snapshot index", 2**63 - 1])],
    "a long request": [pack([1, "part", b"x" * 2000])],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_request_is_refused_and_others_are_still_served(tmp_path: Path, what: str) -> None:
    """An error of any other kind in the handler would come out of run_virtual."""

    async def scenario(shelf: Shelf) -> None:
        shelf.write_snapshot(0, first_state()[0])
        for request in HOSTILE[what]:
            stream = await shelf.asker.dial(shelf.donor_network.peer, library_protocol(RULES.run_id), timeout_seconds=5)
            await stream.send(request, timeout_seconds=5)
            try:
                answer = await stream.receive(timeout_seconds=5)
                assert len(answer) < 1000
            except StreamLost:
                pass
            await stream.close()
        async with shelf.ask() as donor:
            assert await donor.manifest() == b"the manifest"

    play(tmp_path, scenario)


def test_streams_are_bounded_and_come_free_again(tmp_path: Path) -> None:
    async def scenario(shelf: Shelf) -> None:
        donors = [shelf.ask() for _ in range(MAX_STREAMS)]
        for donor in donors:
            await donor.__aenter__()
            await donor.manifest()
        async with shelf.ask() as one_too_many:
            with pytest.raises(NetworkError):
                await one_too_many.manifest()
        await donors[0].__aexit__(None, None, None)
        await asyncio.sleep(1)
        async with shelf.ask() as donor:
            assert await donor.manifest() == b"the manifest"
        await asyncio.sleep(200)  # idle ones are let go
        for _ in range(MAX_STREAMS):
            async with shelf.ask() as donor:
                await donor.manifest()

    play(tmp_path, scenario)


def test_any_number_of_followers_keeps_no_joiner_out(tmp_path: Path) -> None:
    async def scenario(shelf: Shelf) -> None:
        following = [asyncio.create_task(follow(shelf)) for _ in range(MAX_FEEDS)]
        await asyncio.sleep(1)
        with pytest.raises(StreamLost):
            await follow(shelf)  # it goes to another donor
        async with shelf.ask() as donor:
            assert await donor.genesis() == GENESIS
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    async def follow(shelf: Shelf) -> None:
        async with shelf.ask() as donor:
            async for _ in donor.follow(0):
                pass

    play(tmp_path, scenario)


def test_an_interrupted_file_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async def scenario(shelf: Shelf) -> None:
        into = tmp_path / "got" / "file"
        progress: list[int] = []

        def stop_after_one(num_bytes: int) -> None:
            progress.append(num_bytes)
            if len(progress) == 1:
                raise StreamLost("the line broke")

        async with shelf.ask() as donor:
            with pytest.raises(StreamLost):
                await donor.file(hash_of(FILE), len(FILE), into, stop_after_one)
        assert not into.exists()
        async with shelf.ask() as donor:
            await donor.file(hash_of(FILE), len(FILE), into, stop_after_one)
        assert into.read_bytes() == FILE
        assert progress == [FILE_CHUNK_BYTES, 2 * FILE_CHUNK_BYTES, len(FILE)]
        async with shelf.ask() as donor:
            await donor.file(hash_of(b""), 0, tmp_path / "got" / "empty")
        assert (tmp_path / "got" / "empty").read_bytes() == b""

    play(tmp_path, scenario)


class Tampering(Library):
    def _file_chunk(self, file_hash: bytes, offset: int) -> bytes:
        chunk = super()._file_chunk(file_hash, offset)
        return chunk[:-1] + b"x" if offset else chunk


class Short(Library):
    def _file_chunk(self, file_hash: bytes, offset: int) -> bytes:
        return b"" if offset else super()._file_chunk(file_hash, offset)


class Endless(Library):
    def _file_chunk(self, file_hash: bytes, offset: int) -> bytes:
        return super()._file_chunk(file_hash, 0) * 4


@pytest.mark.parametrize("library", [Tampering, Short, Endless])
def test_a_file_that_is_not_the_named_one_is_not_kept_and_an_honest_donor_gives_it(
    tmp_path: Path, library: type[Library]
) -> None:
    async def scenario(shelf: Shelf) -> None:
        into = tmp_path / "got" / "file"
        async with shelf.ask() as donor:
            with pytest.raises((RecordError, DataError)):
                await donor.file(hash_of(FILE), len(FILE), into)
        assert not into.exists()
        honest_folder = tmp_path / "honest"
        honest_folder.mkdir()
        honest = shelf.world.network(identity("honest"))
        path = honest_folder / "file"
        path.write_bytes(FILE)
        files = Library(
            RunFiles(b"", GENESIS, {hash_of(FILE): path}),
            shelf.log,
            honest_folder,
            wait_past=shelf.never,
            head_age_seconds=lambda: 0.0,
        )
        await honest.serve(library_protocol(RULES.run_id), files.serve)
        async with Donor(shelf.asker, honest.peer, RULES.run_id) as donor:
            await donor.file(hash_of(FILE), len(FILE), into)
        assert into.read_bytes() == FILE

    play(tmp_path, scenario, library)


def test_a_donor_that_falls_silent_is_left(tmp_path: Path) -> None:
    async def scenario(shelf: Shelf) -> None:
        async with shelf.ask() as donor:
            await donor.manifest()
            shelf.world.freeze(shelf.donor_network.peer)
            with pytest.raises(StreamTimeout):
                await donor.manifest()
        shelf.world.thaw(shelf.donor_network.peer)

    play(tmp_path, scenario)


# --- snapshots


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """40 kB of state in chunks of 4 kB."""
    for module in (snapshot_module, transfer):
        monkeypatch.setattr(module, "CHUNK_BYTES", 4096)
    return 4096


def test_an_interrupted_snapshot_goes_on_where_it_stopped(tmp_path: Path, small_chunks: int) -> None:
    async def scenario(shelf: Shelf) -> None:
        shelf.write_snapshot(4, normal_values(4))
        folder = tmp_path / "got" / "4"
        shelf.asker.link = LinkSettings(down_bytes_per_second=4 * small_chunks)
        fetching = asyncio.create_task(fetch(shelf, folder))
        await asyncio.sleep(1.5)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        assert not folder.exists()
        before = shelf.asker.received_bytes
        shelf.asker.link = LinkSettings()
        await fetch(shelf, folder)
        assert shelf.asker.received_bytes - before < NUM_VALUES * 8 - 2 * small_chunks
        replica = Replica(RULES, torch.zeros(NUM_VALUES), torch.zeros(NUM_VALUES))
        load_snapshot(folder, replica)
        assert torch.equal(replica.theta, normal_values(4))

    play(tmp_path, scenario)


async def fetch(shelf: Shelf, folder: Path) -> None:
    async with shelf.ask() as donor:
        await fetch_snapshot(donor, int(folder.name), folder, RULES)


def test_a_chunk_of_an_earlier_try_that_is_damaged_is_fetched_again(tmp_path: Path, small_chunks: int) -> None:
    async def scenario(shelf: Shelf) -> None:
        shelf.write_snapshot(4, normal_values(4))
        folder = tmp_path / "got" / "4"
        right = (tmp_path / "snapshots" / "4" / "state.safetensors").read_bytes()
        aside = folder.parent / f".fetching-4-{hash_of(b'd').hex()[:8]}"
        aside.mkdir(parents=True)
        (aside / "state.safetensors").write_bytes(
            right[: 2 * small_chunks] + b"x" + right[2 * small_chunks + 1 :] + b"more"
        )
        stale = folder.parent / ".fetching-4-another"
        stale.mkdir()
        await fetch(shelf, folder)
        assert (folder / "state.safetensors").read_bytes() == right
        assert not stale.exists()  # no pile of what other donors began

    play(tmp_path, scenario)


def test_wrong_snapshots_are_refused(tmp_path: Path, small_chunks: int) -> None:
    async def scenario(shelf: Shelf) -> None:
        shelf.write_snapshot(4, normal_values(4))
        stored = tmp_path / "snapshots" / "4"
        state = (stored / "state.safetensors").read_bytes()
        folder = tmp_path / "got" / "4"
        for wrong in (state[:-1] + b"x", state[: 3 * small_chunks], b"x" * len(state)):
            (stored / "state.safetensors").write_bytes(wrong)
            with pytest.raises((RecordError, DataError)):
                await fetch(shelf, folder)
            assert not folder.exists()
        (stored / "state.safetensors").write_bytes(state)
        (tmp_path / "snapshots" / "8").mkdir()
        for name in ("index", "state.safetensors"):
            (tmp_path / "snapshots" / "8" / name).write_bytes((stored / name).read_bytes())
        with pytest.raises(RecordError, match="another run or round"):
            await fetch(shelf, tmp_path / "got" / "8")
        shelf.write_snapshot(12, torch.zeros(3 * NUM_VALUES + 10_000))
        with pytest.raises(RecordError, match="more than the model has"):
            await fetch(shelf, tmp_path / "got" / "12")
        await fetch(shelf, folder)

    play(tmp_path, scenario)
    assert ParameterLayout.of([("weight", (NUM_VALUES,))]) == RULES.layout
