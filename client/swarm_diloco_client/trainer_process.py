"""One trainer process as the client sees it: started, spoken to, stopped, and why it died."""

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swarm_diloco.network import launcher
from swarm_diloco.training.channel import (
    HEADER_BYTES,
    Failed,
    FromClient,
    FromTrainer,
    Ready,
    Stop,
    Stopped,
    decode,
    encode,
    payload_bytes,
)

STOP_SECONDS = 10.0  # for a step to end and a checkpoint to be written
LAST_LINES = 20  # of what it wrote to stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What the volunteer decides about it."""

    device: str | None = None  # "cpu", "cuda", …; None: the fastest that is there
    threads: int = 1  # of the processor
    micro_batch: int | None = None  # sequences at once; None: what fits

    def arguments(self) -> list[str]:
        chosen = {"--device": self.device, "--threads": self.threads, "--micro-batch": self.micro_batch}
        return [text for name, value in chosen.items() if value is not None for text in (name, str(value))]

    def environment(self) -> dict[str, str]:
        """Libraries read these when they are imported. A waiting thread sleeps: the machine has an owner."""
        return {
            **os.environ,
            "OMP_NUM_THREADS": str(self.threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
        }


class TrainerProcess:
    """A running trainer. It dies with this process, and a terminal's Ctrl-C does not reach it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._reading = asyncio.create_task(self._read_lines())
        self._failure: str | None = None  # what it said itself
        self._is_ready = False  # it has a model, and something to lose

    @classmethod
    async def start(
        cls,
        settings: TrainerSettings,
        *,
        memory: int,
        folder: Path,
        module: str = "swarm_diloco_client.trainer",
    ) -> "TrainerProcess":
        """Start one on a run's folder and the shared memory behind the descriptor `memory`."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(launcher.__file__), str(os.getpid()),
                sys.executable, "-P", "-m", module,
                str(theirs.fileno()), str(memory), str(folder), *settings.arguments(),
                pass_fds=(theirs.fileno(), memory),
                env=settings.environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: FromClient) -> None:
        """Hand a message over; one that has died meanwhile is noticed by `messages`."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def messages(self) -> AsyncIterator[FromTrainer]:
        """What it says, until it is gone."""
        try:
            while True:
                header = await self._reader.readexactly(HEADER_BYTES)
                message = decode(await self._reader.readexactly(payload_bytes(header)))
                match message:
                    case Failed(reason=reason):
                        self._failure = reason
                    case Stopped():
                        pass  # its end follows
                    case _:
                        self._is_ready = self._is_ready or isinstance(message, Ready)
                        yield message  # type: ignore[misc]  # what only the client sends does not come from there
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        except ValueError as error:
            self._failure = f"it said what no trainer says ({error})"
            self.kill()

    async def _read_lines(self) -> None:
        assert self._process.stderr is not None
        with suppress(ValueError):  # a line longer than the reader's limit
            async for line in self._process.stderr:
                self._last_lines.append(line.decode(errors="replace").rstrip()[:500])

    async def why_ended(self) -> str:
        """After its last message: wait for its end and say in plain words what happened."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        self.kill()
        status = await self._process.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._reading
        if self._failure is not None:
            return self._failure
        last = self._last_lines[-1] if self._last_lines else "it said nothing"
        if status == -signal.SIGKILL:
            return "killed by the kernel, likely out of memory"
        if status < 0:
            return f"ended by the signal {signal.Signals(-status).name}; its last words: {last}"
        return f"exit status {status}; its last words: {last}"

    async def stop(self) -> None:
        """Let it write a checkpoint and end, in STOP_SECONDS; then kill it. Nothing of it is left."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS if self._is_ready else 0.0):
                    self.send(Stop())
                    async for _ in self.messages():
                        pass
                    await self._process.wait()
        finally:
            self.kill()
            self._writer.close()
            await self._process.wait()
            self._reading.cancel()

    def kill(self) -> None:
        """At once, if it is still there."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
