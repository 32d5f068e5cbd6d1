"""A small swarm of real processes over hivemind on loopback: started, read line by line, killed, started again."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from small_swarm import identity, rules_for
from swarm_diloco.diloco.ledger import Member
from swarm_diloco.rounds.council import council_of

PROGRAM = Path(__file__).with_name("peer_program.py")


def here(_name: str, *command: str) -> list[str]:
    return list(command)


CommandOn = Callable[..., list[str]]  # a peer's name, its command: how that is started; see Laboratory.command


@dataclass
class PeerProcess:
    name: str
    folder: Path
    environment: dict[str, str]
    command_on: "CommandOn"
    process: asyncio.subprocess.Process | None = None
    address: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    _more: asyncio.Condition = field(default_factory=asyncio.Condition)
    _reading: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self, *arguments: str) -> None:
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, str(PROGRAM), self.name, str(self.folder / self.name), *arguments]
        self.process = await asyncio.create_subprocess_exec(
            *self.command_on(self.name, *command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)} | self.environment,
        )
        self._reading = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for data in self.process.stdout:
            line = json.loads(data)
            async with self._more:
                if "address" in line:
                    self.address = line["address"]
                else:
                    self.lines.append(line)
                self._more.notify_all()
        await self.process.wait()  # its output ends before it does: whoever waits is to find its status
        async with self._more:
            self._more.notify_all()

    async def _read_errors(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        self.error += (await self.process.stderr.read()).decode()

    async def until(self, what: str = "address", round_: int = 0) -> None:
        """Until the peer has said its address, or has applied a round."""
        async with self._more:
            while not (self.address if what == "address" else any(line["round"] >= round_ for line in self.lines)):
                assert self.process is not None
                if self.process.returncode is not None:
                    raise AssertionError(f"{self.name} ended with {self.process.returncode}: {self.error[-2000:]}")
                await self._more.wait()

    async def ended(self) -> int:
        assert self.process is not None
        status = await self.process.wait()
        await asyncio.gather(*self._reading)
        return status

    @property
    def states(self) -> dict[int, tuple[str, str]]:
        return {line["round"]: (line["digest"], line["state"]) for line in self.lines}


@dataclass
class ProcessSwarm:
    """`async with ProcessSwarm(folder) as swarm`: whatever it started is gone afterwards."""

    folder: Path
    peers: dict[str, PeerProcess] = field(default_factory=dict)
    command_on: CommandOn = here

    async def __aenter__(self) -> "ProcessSwarm":
        return self

    async def __aexit__(self, *_: object) -> None:
        for peer in self.peers.values():
            if peer.process is not None and peer.process.returncode is None:
                peer.process.send_signal(signal.SIGKILL)
        for peer in self.peers.values():
            await peer.ended()

    def go(self) -> None:
        """Workers begin to train."""
        (self.folder / "go").touch()

    async def start(self, name: str, *arguments: str, **environment: str) -> PeerProcess:
        """Start a peer that knows all addresses known by now, and wait until it has its state and listens."""
        peer = self.peers.setdefault(name, PeerProcess(name, self.folder, environment, self.command_on))
        others = [other.address for other in self.peers.values() if other.address and other is not peer]
        if others:
            arguments = (*arguments, "--bootstrap", *others)
        await peer.start(*arguments)
        await peer.until("address")
        return peer


async def all_until(peers: Sequence[PeerProcess], round_: int) -> None:
    """Until all have applied the round; the first that ends before raises here."""
    await asyncio.gather(*(peer.until("round", round_) for peer in peers))


def candidate_of(round_: int, names: list[str]) -> str:
    """Whose round it is to coordinate first, when all these are in the commit before it."""
    members = [Member(identity(name).peer, 0, 0, 0, True, (), bytes(32)) for name in names]
    first = council_of(rules_for().run_id, round_, members).candidates[0]
    return next(name for name in names if identity(name).peer == first)
