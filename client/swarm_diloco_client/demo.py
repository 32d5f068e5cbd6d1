"""The demonstration: a whole swarm on this machine, from nothing to a checked and exported model.

A bootstrap peer and some workers, each a process of its own over real hivemind on loopback, train a small model on the
built-in text. One worker is killed mid run, a new one joins. Read `Demo.run`; demo_report.py says what must hold.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swarm_diloco.disk import write_durably
from swarm_diloco.errors import DiskError
from swarm_diloco.invite import Invite
from swarm_diloco.run_folder import RunFolder
from swarm_diloco_bootstrap.operator_folder import OperatorFolder
from swarm_diloco_bootstrap.status_file import PeerStatus, read_status
from swarm_diloco_client.demo_peers import DemoError, PeerProcess, find_invite
from swarm_diloco_client.demo_report import Agreement
from swarm_diloco_client.demo_view import KILLED, SERVING, STARTING, TRAINING, DemoView, PeerRow

MARK = "made-by-swarm-diloco-demo"  # a file: this folder may be replaced by the next demonstration
BOOTSTRAP = "bootstrap"
KILL_AT, JOIN_AT = 0.4, 0.5  # fractions of the training
POLL_SECONDS = 0.2  # of the peers' status files: shorter than any round
START_SECONDS = 120.0  # for a peer to import everything on a busy machine and meet the others
AGREE_SECONDS = 60.0  # after the training, for all live peers to be seen at one round
GONE_SECONDS = 5.0  # after the peers, for what hung on them to end


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    folder: Path
    num_workers: int  # at least 2: one is killed
    training_seconds: float


class Demo:
    """One demonstration. `show` is told each change, `say` what cannot be seen in the view."""

    def __init__(self, settings: DemoSettings, *, show: Callable[[DemoView], None], say: Callable[[str], None]) -> None:
        self.settings = settings
        self.agreement = Agreement()
        self.processes: dict[str, PeerProcess] = {}
        self.statuses: dict[str, PeerStatus] = {}
        self.killed_at_round = 0
        self.left_behind: list[str] = []
        self._show = show
        self._say = say
        self._started_at = time.monotonic()
        self._trains_until: float | None = None
        self._invite: Invite | None = None
        self._sockets = Path()  # for the peers' sockets, while they run

    # --- names and places

    @property
    def operator(self) -> RunFolder:
        return RunFolder(self.settings.folder / BOOTSTRAP)

    @property
    def workers(self) -> list[str]:
        return [f"worker-{number}" for number in range(1, self.settings.num_workers + 1)]

    @property
    def killed(self) -> str:
        """Who is killed: the first shows what a whole run's worth of bytes is."""
        return self.workers[1]

    @property
    def joined(self) -> str:
        return f"worker-{self.settings.num_workers + 1}"

    @property
    def live(self) -> list[str]:
        """Who runs to the end."""
        return [name for name, process in self.processes.items() if not process.killed]

    def run_folder(self, name: str) -> RunFolder:
        """A peer's folder of the run, once there is an invite."""
        if name == BOOTSTRAP:
            return self.operator
        assert self._invite is not None
        return RunFolder.of_run(self.settings.folder / name, self._invite.run_id)

    # --- the course of it

    async def run(self) -> None:
        """From an empty folder to a trained swarm whose processes have ended. Raises DemoError, DiskError."""
        prepare_folder(self.settings.folder)
        with tempfile.TemporaryDirectory(prefix="swarm-diloco-") as sockets:
            self._sockets = Path(sockets)
            try:
                await self._train()
            finally:
                await self._end_all()

    async def _train(self) -> None:
        await self._make_run()
        await self._start_bootstrap()
        for name in self.workers:
            await self._start_worker(name)
        await self._until(lambda: self._have_trained(self.workers), START_SECONDS, "all workers in the log")
        started_at = time.monotonic()
        self._trains_until = started_at + self.settings.training_seconds
        await self._until_time(started_at + KILL_AT * self.settings.training_seconds)
        self._kill_one()
        await self._until_time(started_at + JOIN_AT * self.settings.training_seconds)
        self._say(f"{self.joined} joins")
        await self._start_worker(self.joined)
        await self._until_time(self._trains_until)
        await self._until(lambda: self._have_trained([self.joined]), START_SECONDS, f"{self.joined} in the log")
        await self._until(self._are_at_one_round, AGREE_SECONDS, "all live peers at one round")

    async def _make_run(self) -> None:
        self._say("making the run: text, tokenizer, model")
        options = ["--preset", "tiny", "--data", "builtin", "--name", "demo", "--purpose", "a swarm on one machine"]
        process = await self._start("init", ["init", str(self.operator.path), *options])
        if await process.wait() != 0:
            raise DemoError(f"init failed:\n{process.last_lines()}")
        del self.processes["init"]

    async def _start_bootstrap(self) -> None:
        port = OperatorFolder(self.operator.path).read_settings().port
        process = await self._start(BOOTSTRAP, ["bootstrap", str(self.operator.path), "--listen", _loopback(port)])
        invite = await process.first_match(find_invite, timeout_seconds=START_SECONDS)
        self._invite = Invite.decode(invite)
        self._say(f"swarm-diloco join {invite}")

    async def _start_worker(self, name: str) -> None:
        assert self._invite is not None
        home = str(self.settings.folder / name)
        options = ["--threads", "1", "--device", "cpu", "--listen", _loopback(0)]
        await self._start(name, ["--home", home, "join", self._invite.encode(), *options])

    async def _start(self, name: str, arguments: list[str]) -> PeerProcess:
        log = self.settings.folder / "logs" / f"{name}.txt"
        process = await PeerProcess.start(name, arguments, log=log, sockets=self._sockets)
        self.processes[name] = process
        return process

    def _kill_one(self) -> None:
        self.processes[self.killed].note_family()
        self.processes[self.killed].kill()
        self.killed_at_round = max(status.round for status in self.statuses.values())
        self._say(f"{self.killed} is killed (SIGKILL) after round {self.killed_at_round}")

    # --- looking

    def _have_trained(self, names: list[str]) -> bool:
        return all(name in self.statuses and self.statuses[name].own_tokens > 0 for name in names)

    def _are_at_one_round(self) -> bool:
        return len({self.statuses[name].round for name in self.live}) == 1

    async def _until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Look until the condition holds. Raises DemoError if it does not in time."""
        deadline = time.monotonic() + seconds
        while True:
            self._look()
            if condition():
                return
            if time.monotonic() > deadline:
                raise DemoError(f"waited {seconds:.0f} s in vain for {what}; see {self.settings.folder / 'logs'}")
            await asyncio.sleep(POLL_SECONDS)

    async def _until_time(self, moment: float) -> None:
        while time.monotonic() < moment:
            self._look()
            await asyncio.sleep(POLL_SECONDS)

    def _look(self) -> None:
        """Read what every peer says of itself, and show it. Raises DemoError if one has ended that should not have."""
        for name, process in self.processes.items():
            if not process.is_running and not process.killed:
                raise DemoError(f"{name} ended with status {process.exit_status}:\n{process.last_lines()}")
            try:
                status = read_status(self.run_folder(name).path)
            except DiskError:
                continue  # it has not written one yet
            self.statuses[name] = status
            self.agreement.add(name, status)
        self._show(self.view())

    def view(self) -> DemoView:
        now = time.monotonic()
        remaining = self.settings.training_seconds if self._trains_until is None else self._trains_until - now
        return DemoView(
            elapsed_seconds=now - self._started_at,
            remaining_seconds=remaining,
            rows=[
                PeerRow(name=name, state=self._state(name), status=self.statuses.get(name)) for name in self.processes
            ],
            num_differing=len(self.agreement.differing),
        )

    def _state(self, name: str) -> str:
        if self.processes[name].killed:
            return KILLED
        if name not in self.statuses:
            return STARTING
        return SERVING if name == BOOTSTRAP else TRAINING

    # --- the end

    async def _end_all(self) -> None:
        """End every process, workers first, and note what is still there afterwards."""
        ending = [name for name in self.processes if name != BOOTSTRAP]
        for names in (ending, [BOOTSTRAP] if BOOTSTRAP in self.processes else []):
            left = await asyncio.gather(*(self.processes[name].end() for name in names))
            self.left_behind += [
                f"{name} had to be killed" for name, by_itself in zip(names, left, strict=True) if not by_itself
            ]
        deadline = time.monotonic() + GONE_SECONDS
        while True:
            survivors = [text for process in self.processes.values() for text in process.survivors()]
            if not survivors or time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_SECONDS)
        self.left_behind += survivors
        self.left_behind += [f"the socket folder {path.name}" for path in self._sockets.glob("*/*")]


def prepare_folder(folder: Path) -> None:
    """An empty folder for the demonstration; what an earlier one left is removed. Raises DiskError for any other."""
    if folder.exists() and not (folder / MARK).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise DiskError(f"{folder} holds something that no demonstration made; name another folder with --dir")
    try:
        if folder.exists():
            shutil.rmtree(folder)
        (folder / "logs").mkdir(parents=True)
    except OSError as error:
        raise DiskError(f"cannot use {folder}: {error.strerror or error}") from error
    write_durably(folder / MARK, b"")


def _loopback(port: int) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}"
