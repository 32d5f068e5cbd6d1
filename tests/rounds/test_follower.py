"""A follower takes what the log proves, from whoever has it, and nothing else."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from small_swarm import NUM_VALUES, QUICK, SmallPeer, genesis_of, identity, normal_values, played, rules_for
from swarm_diloco.diloco.ledger import Head, Header, Vote, vote_message
from swarm_diloco.errors import DataError, RecordError
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.simulated_network import SimulatedNetwork, SimulatedWorld, run_virtual
from swarm_diloco.rounds.follower import Applied, Follower
from swarm_diloco.rounds.library import Donor, Library, RunFiles, library_protocol
from swarm_diloco.rounds.replica import Replica
from swarm_diloco.rounds.snapshot import write_snapshot

RULES = rules_for()
GENESIS = genesis_of(RULES, [identity("boot").peer])
NUM_ROUNDS = 10


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> list[SmallPeer]:
    return played(tmp_path_factory.mktemp("run"), NUM_ROUNDS)


def follower_at(world: SimulatedWorld, name: str, folder: Path, *, keeps_all: bool = False) -> Follower:
    replica = Replica(RULES, torch.zeros(NUM_VALUES), torch.zeros(NUM_VALUES))
    network = world.network(identity(name))
    return Follower(network, RULES, RunFiles(b"manifest", GENESIS, {}), folder, replica, keeps_all=keeps_all)


async def donor_at(world: SimulatedWorld, name: str, folder: Path) -> Follower:
    donor = follower_at(world, name, folder)
    assert await donor.load()
    await donor.serve()
    return donor


def copy_of(run: list[SmallPeer], folder: Path) -> Path:
    shutil.copytree(run[0].folder, folder)
    return folder


def test_a_joiner_takes_a_snapshot_and_replays_the_rest(run: list[SmallPeer], tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        donor = await donor_at(world, "boot", copy_of(run, tmp_path / "boot"))
        await donor.apply_recorded([])
        joiner = follower_at(world, "joiner", tmp_path / "joiner")
        applied: list[Applied] = []
        joiner.subscribe(applied.append)
        await joiner.catch_up([donor.network.peer])
        assert joiner.is_current
        assert joiner.log.head == donor.log.head
        assert joiner.replica.state_hash() == donor.replica.state_hash()
        assert [one.commit.round for one in applied] == [9, 10]
        assert {one.commit.round: (one.digest, one.state_hash) for one in applied} == {
            round_: run[0].states[round_] for round_ in (9, 10)
        }

    run_virtual(scenario, seed=1, limit_seconds=100)


def test_a_follower_that_restarts_goes_on_from_its_own_snapshot(run: list[SmallPeer], tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        follower = follower_at(world, "boot", copy_of(run, tmp_path / "boot"))
        assert await follower.load()
        assert follower.replica.round == 8
        await follower.apply_recorded([])
        assert follower.replica.base(0) == run[0].states[NUM_ROUNDS][1]

    run_virtual(scenario, seed=1, limit_seconds=100)


def test_a_damaged_own_snapshot_is_passed_over(run: list[SmallPeer], tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        folder = copy_of(run, tmp_path / "boot")
        (folder / "snapshots" / "8" / "state.safetensors").write_bytes(b"rubbish")
        follower = follower_at(world, "boot", folder)
        assert await follower.load()
        assert follower.replica.round == 4

    run_virtual(scenario, seed=1, limit_seconds=100)


@pytest.mark.parametrize("lie", ["another state", "wrong number of results", "of another round"])
def test_a_snapshot_that_the_log_does_not_name_is_refused_and_the_next_donor_asked(
    run: list[SmallPeer], tmp_path: Path, lie: str
) -> None:
    """All its chunks have their hashes: only the log can tell."""

    async def scenario(world: SimulatedWorld) -> None:
        honest = await donor_at(world, "boot", copy_of(run, tmp_path / "boot"))
        await honest.apply_recorded([])
        liar = await donor_at(world, "liar", copy_of(run, tmp_path / "liar"))
        right = Replica(RULES, torch.zeros(NUM_VALUES), torch.zeros(NUM_VALUES))
        right.load(liar.replica.theta, liar.replica.momentum, round_=8, applied=[8])
        write_snapshot(
            tmp_path / "liar" / "snapshots" / "8",
            run=RULES.run_id,
            round_=8,
            digest=liar.log.digest(8),
            theta=normal_values(1) if lie == "another state" else right.theta,
            momentum=right.momentum,
            applied=[5 if lie == "wrong number of results" else 8],
        )
        if lie == "of another round":
            shutil.rmtree(tmp_path / "liar" / "snapshots" / "8")
            shutil.copytree(tmp_path / "liar" / "snapshots" / "4", tmp_path / "liar" / "snapshots" / "8")
        joiner = follower_at(world, "joiner", tmp_path / "joiner")
        await joiner.catch_up([liar.network.peer, honest.network.peer])
        assert joiner.replica.state_hash() == honest.replica.state_hash()
        alone = follower_at(world, "alone", tmp_path / "alone")
        with pytest.raises(DataError, match="nobody could give the run's state"):
            await alone.catch_up([liar.network.peer])
        assert alone.replica.round == -1
        assert not list((tmp_path / "alone" / "snapshots").glob("[0-9]*"))

    run_virtual(scenario, seed=1, limit_seconds=200)


def test_a_donor_that_always_gives_the_same_headers_is_left(run: list[SmallPeer], tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        honest = await donor_at(world, "boot", copy_of(run, tmp_path / "boot"))
        liar = world.network(identity("liar"))

        class SameHeaders(Library):
            def _headers(self, first: int) -> bytes:
                return super()._headers(1)

        library = SameHeaders(
            RunFiles(b"", GENESIS, {}), honest.log, tmp_path, wait_past=honest.wait_past, head_age_seconds=lambda: 0.0
        )
        await liar.serve(library_protocol(RULES.run_id), library.serve)
        joiner = follower_at(world, "joiner", tmp_path / "joiner")
        await joiner.catch_up([liar.peer, honest.network.peer])
        assert joiner.is_current

    run_virtual(scenario, seed=1, limit_seconds=200)


def test_a_commit_without_a_majoritys_votes_is_not_recorded(run: list[SmallPeer], tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        folder = copy_of(run, tmp_path / "boot")
        headers = {path.name: path.read_bytes() for path in (folder / "log").iterdir()}
        for round_ in range(6, NUM_ROUNDS + 1):
            (folder / "log" / str(round_)).unlink()
        follower = follower_at(world, "boot", folder)
        right = Header.decode(headers["6"])
        changed = replace(right.commit(), wall_ms=1).encode()
        ann = identity("ann")
        forged = Vote(ann.peer, ann.sign(vote_message(RULES.run_id, 6, 0, Header(changed, 0, ()).digest)))
        for wrong in (
            replace(right, votes=()),
            replace(right, commit_bytes=changed),
            replace(right, ballot=right.ballot + 1),
            Header(changed, 0, (forged, Vote(ann.peer[:-1], forged.signature))),
            replace(right, votes=tuple(replace(vote, signature=bytes(64)) for vote in right.votes)),
            replace(right, degraded=(ann.peer,)),
        ):
            with pytest.raises(RecordError):
                await follower.learn(wrong, [])
            assert follower.log.head.round == 5
        await follower.learn(right, [])
        assert follower.log.head.round == 6

    run_virtual(scenario, seed=1, limit_seconds=100)


def test_a_fork_is_noted_when_its_certificate_is_right_and_not_on_anybodys_word(
    run: list[SmallPeer], tmp_path: Path
) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        follower = follower_at(world, "boot", copy_of(run, tmp_path / "boot"))
        mine = Header.decode(follower.log.header_bytes(5))
        other = replace(mine.commit(), wall_ms=1).encode()
        await follower.learn(Header(other, 0, mine.votes), [])
        assert not follower.forks.all()
        digest = Header(other, 0, ()).digest
        message = vote_message(RULES.run_id, 5, 0, digest)
        votes = tuple(Vote(p.peer, p.sign(message)) for p in (identity("ann"), identity("boot")))
        await follower.learn(Header(other, 0, votes), [])
        (fork,) = follower.forks.all()
        assert (fork.common_round, fork.head) == (4, Head(5, digest))
        assert follower.log.digest(5) == mine.digest

    run_virtual(scenario, seed=1, limit_seconds=100)


def test_a_log_that_moves_on_while_it_is_compared_shows_no_fork(
    run: list[SmallPeer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The donor is ahead, and this peer learns of its rounds by another stream at the same time."""

    async def scenario(world: SimulatedWorld) -> None:
        donor = await donor_at(world, "boot", copy_of(run, tmp_path / "boot"))
        late = follower_at(world, "late", tmp_path / "late")
        header = [Header.decode(donor.log.header_bytes(round_)) for round_ in range(NUM_ROUNDS + 1)]
        for round_ in (1, 2, 3):
            late.log.append(header[round_])
        ask = Donor.headers

        async def moving(asked: Donor, first: int) -> list[bytes]:
            found = await ask(asked, first)
            if late.log.head.round < NUM_ROUNDS:
                late.log.append(header[late.log.head.round + 1])
            return found

        monkeypatch.setattr(Donor, "headers", moving)
        assert not await late.compare(donor.network.peer)
        assert late.log.head.round > 3, "it did not move"
        assert not late.forks.all()

    run_virtual(scenario, seed=1, limit_seconds=100)


def test_a_stop_in_the_middle_of_applying_leaves_the_replica_before_or_after_a_round(
    run: list[SmallPeer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be stopped: whoever cancels waits for it, and the next to come finds the round applied once."""

    async def slowly(self: SimulatedNetwork, function: object, *args: object) -> object:
        await asyncio.sleep(0.5)
        result = function(*args)  # type: ignore[operator]
        await asyncio.sleep(0.5)  # done in the thread; the event loop has not heard of it yet
        return result

    async def scenario(world: SimulatedWorld) -> None:
        follower = follower_at(world, "boot", copy_of(run, tmp_path / "boot"))
        assert await follower.load()
        heard: list[int] = []
        follower.subscribe(lambda applied: heard.append(applied.commit.round))
        monkeypatch.setattr(SimulatedNetwork, "run_blocking", slowly)
        for _ in range(6):
            applying = asyncio.create_task(follower.apply_recorded([]))
            await asyncio.sleep(0.7)
            applying.cancel()
            await asyncio.gather(applying, return_exceptions=True)
            assert heard == list(range(9, follower.replica.round + 1))
        assert follower.is_current
        assert follower.replica.base(0) == run[0].states[NUM_ROUNDS][1]

    run_virtual(scenario, seed=1, limit_seconds=100)


def test_an_observer_that_slept_until_the_parts_were_gone_comes_back_by_a_snapshot(tmp_path: Path) -> None:
    rules = rules_for(QUICK)
    genesis = genesis_of(rules, [identity("boot").peer])
    peers = [SmallPeer(name, tmp_path / name, rules, genesis) for name in ("boot", "ann", "watcher")]
    boot, ann, watcher = peers
    boot.has_first_state()
    boot.trains = watcher.trains = False
    ann.donors = [boot.peer]

    async def scenario(world: SimulatedWorld) -> None:
        for peer in (boot, ann):
            await peer.start(world.network(peer.identity))
        follower = follower_at(world, "watcher", tmp_path / "watcher")
        await follower.catch_up([boot.peer])
        following = asyncio.create_task(follower.follow(lambda: [boot.peer]))
        await asyncio.sleep(3)
        world.freeze(watcher.peer)
        await boot.reached(25)
        world.thaw(watcher.peer)
        await boot.reached(30)
        await follower.wait_past(29)
        await asyncio.sleep(5)
        assert boot.follower is not None
        assert follower.replica.round >= 30
        following.cancel()
        for peer in (boot, ann):
            await peer.stop()
        await asyncio.gather(following, return_exceptions=True)

    run_virtual(scenario, seed=1, limit_seconds=400)


async def _never(_stream: Stream) -> None:
    await asyncio.Event().wait()


def test_nobody_who_answers_is_a_plain_error(tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        silent = world.network(identity("silent"))
        await silent.serve(library_protocol(RULES.run_id), _never)
        follower = follower_at(world, "joiner", tmp_path / "joiner")
        with pytest.raises(DataError, match="nobody could give the run's state"):
            await follower.catch_up([silent.peer, identity("nobody").peer])

    run_virtual(scenario, seed=1, limit_seconds=300)
