"""Our own program as a process: started, read line by line, signalled, and looked after when it ends."""

import asyncio
import os
import re
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

GONE_SECONDS = 10.0  # for processes of one that was killed to be gone too
ENDING_SECONDS = 60.0  # a bound for the test; it takes a few seconds


@dataclass
class App:
    """`python -m swarm_diloco_client ARGUMENTS`. Everything it printed, both streams together, is in `lines`."""

    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None
    _more: asyncio.Condition = field(default_factory=asyncio.Condition)
    _reading: "asyncio.Task[None] | None" = None
    _is_over: bool = False

    async def start(self) -> "App":
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "swarm_diloco_client",
            *self.arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | self.environment,
            limit=2**20,
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._more:
                self.lines.append(line.decode().rstrip())
                self._more.notify_all()
        async with self._more:
            self._is_over = True
            self._more.notify_all()

    async def wait_for(self, pattern: str, *, after: int = 0) -> re.Match[str]:
        """The first of the lines from number `after` on that matches. Fails if it ends without one."""
        next_line = after
        async with self._more:
            while True:
                while next_line < len(self.lines):
                    found = re.search(pattern, self.lines[next_line])
                    if found:
                        return found
                    next_line += 1
                assert not self._is_over, f"no {pattern!r} in the output:\n{self.output}"
                await self._more.wait()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def rounds(self) -> list[int]:
        return [int(found[1]) for line in self.lines if (found := re.match(r"round (\d+) ", line))]

    def children(self, what: str = "") -> list[psutil.Process]:
        """Its running child processes whose command line has `what` in it."""
        assert self.process is not None
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in found if what in " ".join(child.cmdline())]

    async def wait(self) -> int:
        """Its exit status, once all that it printed is here."""
        assert self.process is not None
        assert self._reading is not None
        status = await self.process.wait()
        await self._reading
        return status

    async def end(self, number: signal.Signals) -> int:
        """Send a signal; returns the exit status once it and all its processes are gone. Fails if one is left."""
        assert self.process is not None
        children = self.children()
        self.process.send_signal(number)
        async with asyncio.timeout(ENDING_SECONDS):
            status = await self.wait()
        _, left = await asyncio.to_thread(psutil.wait_procs, children, GONE_SECONDS)
        alive = [child for child in left if child.status() != psutil.STATUS_ZOMBIE]
        assert not alive, f"left behind: {[child.cmdline() for child in alive]}"
        return status

    async def kill(self) -> None:
        """For the end of a test, however it went."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.wait()


def unfinished_files(folder: Path) -> list[Path]:
    """What a write or a fetch that was interrupted would leave."""
    return [path for path in folder.rglob(".*") if path.name.startswith((".writing-", ".fetching-"))]
