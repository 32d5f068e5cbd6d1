"""`init`, `bootstrap` and `join` as people have them: real processes, real hivemind, a tiny model."""

import json
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app_process import App, unfinished_files
from small_init import DOCUMENTS, MODEL
from swarm_diloco_bootstrap.status_file import PeerStatus, read_status
from swarm_diloco_client.cli import run

pytestmark = [pytest.mark.swarm]

SETTINGS = {
    "schedule.inner_steps": 3,
    "inner.sequence_length": 32,
    "inner.batch_sequences": 2,
    "inner.warmup_tokens": 1000,
    "data.shards": 4,
    "evaluation.tokens": 256,
    "evaluation.every_rounds": 2,
    "rounds.part_values": 1024,
    "rounds.snapshot_interval": 2,
    "rounds.opening_seconds": 3,  # how long a peer that vanished is waited for
    "rounds.deadline_seconds": 6,
    "rounds.deadline_floor_seconds": 3,
}


class Swarm:
    """One run, and whoever takes part in it from this machine."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        self.runtime = runtime
        self.run = folder / "run"
        self.apps: list[App] = []

    def init(self, **settings: int) -> None:
        text, config = self.folder / "text.jsonl", self.folder / "config.json"
        text.write_text("".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS))
        config.write_text(json.dumps(MODEL))
        chosen = SETTINGS | {name.replace("__", "."): value for name, value in settings.items()}
        arguments = ["init", str(self.run), "--model", str(config), "--from-scratch", "--data", str(text)]
        arguments += ["--tokenizer", "byte"]
        assert run([*arguments, *(f"--set={name}={value}" for name, value in chosen.items())]) == 0

    async def start(self, *arguments: str) -> App:
        app = await App(arguments, {"XDG_RUNTIME_DIR": str(self.runtime)}).start()
        self.apps.append(app)
        return app

    async def bootstrap(self, *options: str) -> tuple[App, str]:
        """The bootstrap peer, and the invite that it printed."""
        app = await self.start("bootstrap", str(self.run), *options)
        return app, (await app.wait_for(r"swarm-diloco join (sd1\S+)"))[1]

    async def join(self, invite: str, name: str, *options: str) -> App:
        options = ("--threads", "1", "--device", "cpu", *options)
        return await self.start("--home", str(self.home(name)), "join", invite, *options)

    def home(self, name: str) -> Path:
        return self.folder / name

    def status(self, name: str) -> PeerStatus:
        (folder,) = (self.home(name) / "runs").iterdir()
        return read_status(folder)

    @property
    def sockets(self) -> list[Path]:
        """Folders of sockets that are there."""
        return list(self.runtime.rglob("p2p-*"))


@pytest.fixture
def runtime() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sd-"))  # short: a socket's path has 108 bytes
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def swarm(tmp_path: Path, runtime: Path) -> AsyncIterator[Swarm]:
    made = Swarm(tmp_path, runtime)
    yield made
    for app in made.apps:
        await app.kill()


async def test_two_workers_and_the_bootstrap_peer_agree_and_resume(swarm: Swarm):
    swarm.init(rounds__minimum_workers=2)
    first_peers: set[str] = set()
    for last_round in (3, 6):  # the second time everybody comes back from disk
        bootstrap, invite = await swarm.bootstrap("--max-rounds", "3")
        workers = [await swarm.join(invite, name, "--max-rounds", "3") for name in "ab"]
        assert [await app.wait() for app in (bootstrap, *workers)] == [0, 0, 0], workers[0].output
        statuses = [read_status(swarm.run), swarm.status("a"), swarm.status("b")]
        # The two workers may decide one round more while they leave, and begin from there the next time.
        assert {status.round for status in statuses} <= {last_round, last_round + 1}
        states = {(status.round, status.digest, status.state_hash) for status in statuses}
        assert len(states) == len({status.round for status in statuses}), "one state a round"
        assert sorted(statuses[0].workers) == sorted(status.peer for status in statuses[1:])
        assert "held-out" in statuses[0].losses
        peers = {status.peer for status in statuses}
        assert peers == (first_peers or peers)
        first_peers = peers
    assert not swarm.sockets
    assert not unfinished_files(swarm.folder)


async def test_told_to_stop_a_peer_ends_with_its_processes_and_leaves_nothing(swarm: Swarm):
    swarm.init()
    bootstrap, invite = await swarm.bootstrap()
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)):
        worker = await swarm.join(invite, "a")
        await worker.wait_for(r"^round .*own loss")
        assert len(worker.children()) == 2  # trainer and p2pd
        assert await worker.end(number) == status
        assert "Traceback" not in worker.output
        assert not unfinished_files(swarm.home("a"))
        assert len(swarm.sockets) == 1  # the bootstrap peer's
    assert await bootstrap.end(signal.SIGTERM) == 0
    assert not swarm.sockets


async def test_told_to_stop_before_it_trains_a_peer_ends_too(swarm: Swarm):
    swarm.init()
    bootstrap, invite = await swarm.bootstrap()
    worker = await swarm.join(invite, "a")
    await worker.wait_for("this peer is")
    assert await worker.end(signal.SIGTERM) == 0
    assert await bootstrap.end(signal.SIGINT) == 130
    assert not swarm.sockets


async def test_a_killed_client_takes_its_processes_along_and_comes_back(swarm: Swarm):
    swarm.init()
    bootstrap, invite = await swarm.bootstrap()
    worker = await swarm.join(invite, "a")
    await worker.wait_for(r"^round 2 ")
    assert await worker.end(signal.SIGKILL) == -signal.SIGKILL
    again = await swarm.join(invite, "a")
    await again.wait_for(r"^round .*own loss")
    assert again.lines[0] == worker.lines[0]  # the same identity
    assert again.rounds[0] > 2
    assert len(swarm.sockets) == 2  # the dead one's are gone
    assert await again.end(signal.SIGTERM) == 0
    assert await bootstrap.end(signal.SIGTERM) == 0


async def test_a_killed_trainer_is_replaced_and_contributes_again(swarm: Swarm):
    swarm.init()
    _, invite = await swarm.bootstrap()
    worker = await swarm.join(invite, "a")
    await worker.wait_for(r"^round .*own loss")
    (trainer,) = worker.children("swarm_diloco_client.trainer")
    trainer.kill()
    await worker.wait_for("the trainer ended: killed by the kernel, likely out of memory. It starts again in 1 s")
    await worker.wait_for(r"^round .*own loss", after=len(worker.lines))
    assert await worker.end(signal.SIGTERM) == 0


async def test_a_dead_network_process_is_noticed(swarm: Swarm):
    swarm.init()
    _, invite = await swarm.bootstrap()
    worker = await swarm.join(invite, "a")
    await worker.wait_for(r"^round 1 ")
    (p2pd,) = worker.children("p2pd")
    p2pd.kill()
    assert await worker.wait() == 20
    assert worker.lines[-1] == "error: p2pd, the network's own process, has ended; start again"


async def test_one_identity_is_for_one_process(swarm: Swarm):
    swarm.init()
    _, invite = await swarm.bootstrap()
    worker = await swarm.join(invite, "a")
    await worker.wait_for("starting to train")
    second = await swarm.join(invite, "a")
    assert await second.wait() == 12
    assert len(second.lines) == 1
    assert "in use by another process" in second.lines[0]


async def test_a_restarted_bootstrap_peer_has_the_same_invite_and_the_swarm_goes_on(swarm: Swarm):
    swarm.init(schedule__inner_steps=200)  # rounds that leave time for a knock to arrive
    bootstrap, invite = await swarm.bootstrap()
    worker = await swarm.join(invite, "a")
    await worker.wait_for(r"^round 2 ")
    assert await bootstrap.end(signal.SIGTERM) == 0
    bootstrap, again = await swarm.bootstrap()
    assert again == invite
    await worker.wait_for(r"^round .* 2 members", after=len(worker.lines))
    await bootstrap.wait_for(r"^round .* 2 members")


async def test_a_worker_goes_on_alone_when_the_bootstrap_peer_is_gone_also_after_a_restart(swarm: Swarm):
    swarm.init(rounds__degraded_seconds=3, rounds__greeting_seconds=3)
    bootstrap, invite = await swarm.bootstrap()
    worker = await swarm.join(invite, "a")
    await worker.wait_for(r"^round 2 ")
    await bootstrap.end(signal.SIGKILL)
    await worker.wait_for(r"^round .* 1 member", after=len(worker.lines))
    await worker.end(signal.SIGTERM)
    worker = await swarm.join(invite, "a")
    await worker.wait_for(r"going on from what is on this disk")
    await worker.wait_for(r"^round .* 1 member")
    bootstrap, _ = await swarm.bootstrap()
    await worker.wait_for(r"^round .* 2 members", after=len(worker.lines))


async def test_nobody_there_is_said_in_one_line_an_address(swarm: Swarm):
    swarm.init()
    bootstrap, invite = await swarm.bootstrap()
    await bootstrap.end(signal.SIGTERM)
    worker = await swarm.join(invite, "a")
    assert await worker.wait() == 21
    assert "error: no peer of this run answers:" in worker.lines
    assert all("refused (nothing listens at that port)" in line for line in worker.lines if line.startswith("  /ip"))
    assert "Traceback" not in worker.output


async def test_an_edited_contract_is_refused(swarm: Swarm):
    swarm.init()
    contract = swarm.run / "run.toml"
    contract.write_bytes(contract.read_bytes() + b"# a comment\n")
    bootstrap = await swarm.start("bootstrap", str(swarm.run))
    assert await bootstrap.wait() == 10
    assert f"swarm-diloco init --config {contract} NEW_DIR" in bootstrap.lines[-1]
