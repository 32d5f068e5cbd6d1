"""A process swarm under faults, and what must hold after each of the protocol's schedules: read from what the peers'
disks and notes say, not from what they print.
"""

import asyncio
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from how_decided import how_decided
from process_swarm import PeerProcess, ProcessSwarm
from small_swarm import FAST, identity
from swarm_diloco.diloco.ledger import Header, Kind
from swarm_diloco.rounds.session import RETRY_SECONDS
from swarm_diloco.rounds.settings import RoundSettings

PROGRAM = Path(__file__).with_name("struck_peer.py")
POLL_SECONDS = 0.01


def struck_command(_name: str, *command: str) -> list[str]:
    """peer_program's command, with the program that can be struck in its place."""
    return [command[0], str(PROGRAM), *command[2:]]


def stated_bound_seconds(rounds: RoundSettings = FAST) -> float:
    """The council's next ballot after a fault: it is noticed, the next candidate waits for the missing one, decides."""
    return rounds.silence_seconds + RETRY_SECONDS + rounds.opening_seconds + rounds.deadline_seconds


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """PROTOCOL's four conditions, but for the waits, which each schedule measures."""

    num_rounds: int
    is_one_log: bool  # no two peers hold different digests for one round, nor different states
    num_forks: int  # in anybody's records
    trained: int  # tokens, of all workers that were never killed
    credited: int
    pending: int

    @property
    def lost(self) -> int:
        return self.trained - self.credited - self.pending

    @property
    def is_right(self) -> bool:
        return self.is_one_log and not self.num_forks and not self.lost

    @property
    def words(self) -> str:
        log = f"{self.num_rounds}, one log" if self.is_one_log else f"{self.num_rounds}, NOT ONE LOG"
        forks = f", {self.num_forks} forks" if self.num_forks else ""
        return log + forks

    @property
    def tokens(self) -> str:
        sign = "=" if not self.lost else "≠"
        return f"{self.trained} {sign} {self.credited} + 0 + {self.pending}"


class JudgedSwarm(ProcessSwarm):
    """A ProcessSwarm of struck_peer.py."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, command_on=struck_command)

    async def start_together(self, names: Sequence[str], *arguments: str) -> None:
        """They know the addresses of those that run already."""
        await asyncio.gather(*(self.start(name, *arguments) for name in names))

    # --- what they have written

    def notes(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name / "notes"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []  # the last may be half written
        return [json.loads(line) for line in lines]

    def header(self, name: str, round_: int) -> Header:
        return Header.decode((self.folder / name / "log" / str(round_)).read_bytes())

    def applied_at(self, name: str, round_: int) -> float:
        return min(note["at"] for note in self.notes(name) if note.get("applied") == round_)

    def head(self, name: str) -> int:
        return max(int(path.name) for path in (self.folder / name / "log").iterdir() if path.name.isdigit())

    def longest_gap_seconds(self, name: str, since: float) -> float:
        """Between two rounds at a peer that ran all the time."""
        at = [note["at"] for note in self.notes(name) if "applied" in note and note["at"] >= since]
        return max((later - earlier for earlier, later in zip([since, *at], at, strict=False)), default=0.0)

    def happened(self, name: str, round_: int) -> str:
        """How a round was decided, in words."""
        return how_decided(self.header(name, round_))

    def missing(self, name: str, round_: int, workers: Sequence[str]) -> int:
        """How many of the workers' contributions are not, or not whole, in the round."""
        commit = self.header(name, round_).commit()
        numbers = {member.peer: number for number, member in enumerate(commit.members)}
        return sum(
            commit.kind is not Kind.NORMAL
            or (number := numbers.get(identity(worker).peer)) is None
            or not all(part.lists(number) for part in commit.parts)
            for worker in workers
        )

    def judge(self, workers: Sequence[str]) -> Verdict:
        """`workers` are those that were never killed: what the others knew died with them."""
        digests: dict[int, set[str]] = defaultdict(set)
        states: dict[int, set[str]] = defaultdict(set)
        for name, peer in self.peers.items():
            for round_ in range(1, self.head(name) + 1):
                digests[round_].add(self.header(name, round_).digest.hex())
            for line in peer.lines:
                digests[line["round"]].add(line["digest"])
                states[line["round"]].add(line["state"])
        newest = max(self.peers, key=self.head)
        tokens = [self._tokens(worker, newest) for worker in workers]
        trained, credited, pending = (sum(column) for column in zip(*tokens, strict=True))
        return Verdict(
            num_rounds=len(digests),
            is_one_log=all(len(found) == 1 for found in [*digests.values(), *states.values()]),
            num_forks=sum(len(list((self.folder / name / "forks").glob("*"))) for name in self.peers),
            trained=trained,
            credited=credited,
            pending=pending,
        )

    def _tokens(self, worker: str, newest: str) -> tuple[int, int, int]:
        """Trained, credited, pending at the contribution where they differ most, else at the last one."""
        credited = self._credited(worker, newest)
        lines = [note for note in self.notes(worker) if "base_round" in note and note["base_round"] < len(credited)]
        rows = [(line["trained"], credited[line["base_round"]], line["pending"]) for line in lines]
        return max(reversed(rows), key=lambda row: abs(row[0] - row[1] - row[2]), default=(0, 0, 0))

    def _credited(self, worker: str, newest: str) -> list[int]:
        """After each round, as the log says."""
        totals = [0]
        for round_ in range(1, self.head(newest) + 1):
            entry = self.header(newest, round_).commit().member(identity(worker).peer)
            totals.append(totals[-1] + (entry.tokens if entry is not None else 0))
        return totals

    # --- faults

    async def struck(self, name: str, *, limit_seconds: float = 120.0) -> dict[str, Any]:
        """When and in which round the peer has struck itself, once it has. Raises TimeoutError."""
        peer, note, started = self.peers[name], self.folder / name / "struck", now()
        assert peer.process is not None
        while not (note.exists() and (peer.process.returncode is not None or state(peer.process.pid) == "T")):
            if peer.process.returncode not in (None, -signal.SIGKILL):
                raise AssertionError(f"{name} ended with {peer.process.returncode}: {peer.error[-2000:]}")
            if now() > started + limit_seconds:
                raise TimeoutError(f"{name} did not come to its stage in {limit_seconds:.0f} s")
            await asyncio.sleep(POLL_SECONDS)
        found: dict[str, Any] = json.loads(note.read_text())
        return found

    def kill(self, name: str) -> None:
        """Its network daemon dies with it."""
        peer = self.peers[name]
        assert peer.process is not None
        peer.process.send_signal(signal.SIGKILL)
        peer.address = ""

    def freeze(self, name: str) -> None:
        """The program and its network daemon, as when a machine sleeps; but its clock goes on."""
        self._signal_all(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._signal_all(name, signal.SIGCONT)

    def _signal_all(self, name: str, number: signal.Signals) -> None:
        process = self.peers[name].process
        assert process is not None
        for process_id in (process.pid, *children(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(process_id, number)


def state(process_id: int) -> str:
    """R, S, T …, or - without such a process."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "-"


def children(process_id: int) -> list[int]:
    """Of one process, of all its threads."""
    found = []
    for path in Path(f"/proc/{process_id}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(text) for text in path.read_text().split()]
    return found


async def until(peers: Sequence[PeerProcess], round_: int, *, limit_seconds: float) -> None:
    """Until all have applied the round. Raises TimeoutError naming who has not."""
    try:
        async with asyncio.timeout(limit_seconds):
            await asyncio.gather(*(peer.until("round", round_) for peer in peers))
    except TimeoutError:
        newest = {peer.name: max((line["round"] for line in peer.lines), default=0) for peer in peers}
        raise TimeoutError(f"round {round_} not reached in {limit_seconds:.0f} s: {newest}") from None


def now() -> float:
    return time.monotonic()
