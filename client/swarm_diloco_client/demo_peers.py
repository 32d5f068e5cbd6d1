"""The demonstration's processes: each peer a real program with a home of its own, started, watched and ended here."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from swarm_diloco.errors import SwarmDilocoError
from swarm_diloco.invite import PREFIX
from swarm_diloco.network import launcher

LEAVE_SECONDS = 20.0  # from SIGTERM to the end of a peer that has a checkpoint to write on a busy machine
LAST_LINES = 5  # of a failed peer's output that are shown
# One thread a peer: two that spin on a shared core made training five times slower.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}


class PeerProcess:
    """One program in a session of its own, so that a terminal's Ctrl-C reaches the demonstration alone.

    It dies with the demonstration. Its output goes to a file, and line by line to whoever listens.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.killed = False
        self._process = process
        self._log = log
        self._listeners: list[Callable[[str], None]] = []
        self._family: set[psutil.Process] = set()  # every process that hung on this one
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], *, log: Path, sockets: Path) -> "PeerProcess":
        """Run `swarm-diloco ARGUMENT…`: its output goes to the file `log`, its sockets into the folder `sockets`."""
        command = [sys.executable, "-m", "swarm_diloco_client", *arguments]
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *command],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=environment(os.environ, sockets),
        )
        return cls(name, process, log)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("ab", buffering=0) as log:
            while line := await self._process.stdout.readline():
                log.write(line)
                for listener in self._listeners:
                    listener(line.decode(errors="replace"))

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def exit_status(self) -> int | None:
        """None while it runs; −N: ended by signal N."""
        return self._process.returncode

    async def first_match(self, find: Callable[[str], str | None], *, timeout_seconds: float) -> str:
        """What `find` makes of the first line of output in which it finds something.

        Raises DemoError if the program ends before, or is silent too long.
        """
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def listen(line: str) -> None:
            if not found.done() and (value := find(line)) is not None:
                found.set_result(value)

        self._listeners.append(listen)
        try:
            waiting: set[asyncio.Future[Any]] = {found, self._reading}
            await asyncio.wait(waiting, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not found.done():
                raise DemoError(f"{self.name} did not start:\n{self.last_lines()}")
            return found.result()
        finally:
            self._listeners.remove(listen)

    def last_lines(self) -> str:
        """The end of its output."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(f"  {line}" for line in lines[-LAST_LINES:] or ["(it printed nothing)"])

    def kill(self) -> None:
        """SIGKILL to the client process alone: what hangs on it must notice by itself."""
        self.killed = True
        self._process.kill()

    async def wait(self, *, timeout_seconds: float | None = None) -> int:
        """Its exit status. Raises TimeoutError."""
        async with asyncio.timeout(timeout_seconds):
            await self._reading
            return await self._process.wait()

    def note_family(self) -> None:
        """Remember which processes hang on it now, for `survivors`."""
        with suppress(psutil.Error):
            self._family.update(psutil.Process(self._process.pid).children(recursive=True))

    def survivors(self) -> list[str]:
        """Those of its family that run although it has ended."""
        return [f"{self.name}'s {_describe(process)}" for process in self._family if _is_alive(process)]

    async def end(self) -> bool:
        """SIGTERM, and SIGKILL when that does not end it in time. Whether it left by itself."""
        if self.is_running:
            self.note_family()
            self._process.terminate()
        try:
            await self.wait(timeout_seconds=LEAVE_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            return False
        return True


def _is_alive(process: psutil.Process) -> bool:
    try:
        return (
            bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
        )  # a container's init may not reap
    except psutil.Error:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.name()} (process {process.pid})"
    except psutil.Error:
        return f"process {process.pid}"


def find_invite(line: str) -> str | None:
    """The invite in a line of the bootstrap peer's output."""
    return next((word for word in line.split() if word.startswith(PREFIX)), None)


class DemoError(SwarmDilocoError):
    """The demonstration could not go on; the message says which peer and what it said last."""


def environment(own: Mapping[str, str], sockets: Path) -> dict[str, str]:
    """A peer's environment: ours without this program's own variables, which would reach every peer."""
    kept = {name: value for name, value in own.items() if not name.startswith("SWARM_DILOCO_")}
    return kept | ENVIRONMENT | {"XDG_RUNTIME_DIR": str(sockets)}
