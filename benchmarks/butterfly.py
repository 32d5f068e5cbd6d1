"""This project's exchange of parts beside hivemind's averager and gloo's all-reduce, on one machine.

    python benchmarks/butterfly.py > benchmarks/results/butterfly.md           all of it, under 10 minutes
    python benchmarks/butterfly.py --systems butterfly averager --peers 4 --values 10 --codecs float32

Each peer is a process; the peers of a row begin at a word, the averager's once their group stands. Nothing else should
run on the machine. Needs Linux and iproute2's `ss`.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import codec_speed
import large_group
import psutil
from exchange_table import CODECS, HEAD, LEGEND, Measured, Row, line, summary
from process_cost import cpu_seconds, peak_bytes, reset_peak, resident_bytes, tcp_bytes

PROGRAM = Path(__file__).with_name("exchange_peer.py")
SYSTEMS = ("butterfly", "averager", "gloo")
OTHERS_CODECS = ("float32", "float16")  # hivemind's 8-bit codecs fail on numpy 2.4, gloo has none
MAX_PEERS_AT_50M = 4
LIMIT_SECONDS = 60.0
PART_VALUES = 262_144
WARM_UP_VALUES = 300_000


LARGEST_ROW = Row(system="butterfly", num_peers=16, num_values=10_000_000, codec="e3m0/int8")


@dataclass
class PeerProcess:
    process: asyncio.subprocess.Process
    about: dict[str, Any] = field(default_factory=dict)

    async def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        async with asyncio.timeout(2 * LIMIT_SECONDS):
            line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a peer ended at {command}")
        answer: dict[str, Any] = json.loads(line)
        self.about |= answer
        return answer


class Swarm:
    """The peers of one system: `async with Swarm(…) as swarm`. Nothing of them is left afterwards."""

    def __init__(self, system: str, num_peers: int, part_values: int) -> None:
        self._system, self._num_peers, self._part_values = system, num_peers, part_values
        self._peers: list[PeerProcess] = []
        self._idle: dict[int, int] = {}  # process id -> resident bytes before its first vector
        self._row_numbers = itertools.count()

    async def __aenter__(self) -> "Swarm":
        self._folder = tempfile.TemporaryDirectory()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        for index in range(self._num_peers):
            arguments = [str(PROGRAM), self._system, str(index), str(self._num_peers), self._folder.name]
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdin=pipe, stdout=pipe, env=environment
            )
            self._peers.append(PeerProcess(process))
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _start(self) -> None:
        if self._system == "gloo":
            await self._all(do="start")
        else:
            await self._peers[0].ask(do="start", initial=[])
            initial = self._peers[0].about["addresses"][:1]
            await asyncio.gather(*(peer.ask(do="start", initial=initial) for peer in self._peers[1:]))
        if self._system == "butterfly":
            await self._all(do="connect", addresses=[peer.about["addresses"][0] for peer in self._peers])
        if self._system != "averager":  # whose own process begins with each row
            self._note_idle()
        await self.measure(
            Row(system=self._system, num_peers=self._num_peers, num_values=WARM_UP_VALUES, codec="float32"), 1
        )

    async def __aexit__(self, *_: object) -> None:
        started = [process for peer in self._peers for process in _family(peer.process.pid)]
        try:
            async with asyncio.timeout(10):
                await self._all(do="stop")
        except (TimeoutError, RuntimeError, OSError):
            pass
        for process in started:  # the averager leaves children behind
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await asyncio.gather(*(peer.process.wait() for peer in self._peers))
        self._folder.cleanup()

    async def _all(self, **command: Any) -> list[dict[str, Any]]:
        return await asyncio.gather(*(peer.ask(**command) for peer in self._peers))

    async def measure(self, row: Row, repeats: int) -> list[Measured]:
        number, repeated = next(self._row_numbers), []
        for repeat in range(repeats):
            await self._all(do="prepare", row=number, repeat=repeat, **self._asked(row))
            repeated.append(await self._one(last=repeat == repeats - 1))
        return repeated

    def _asked(self, row: Row) -> dict[str, Any]:
        upload, download = CODECS[row.codec]
        parts = {"part_values": self._part_values, "limit_seconds": LIMIT_SECONDS}
        return {"values": row.num_values, "upload": upload, "download": download, **parts}

    async def _one(self, *, last: bool) -> Measured:
        memory = self._note_idle()
        for pid in memory:
            reset_peak(pid)
        python = [pid for peer in self._peers for pid in peer.about["python"]]
        p2pd = [pid for peer in self._peers for pid in peer.about["p2pd"]]
        tcp = [peer.about["tcp"] for peer in self._peers]
        tcp_before, cpu_before, p2pd_before = tcp_bytes(tcp), cpu_seconds(python), cpu_seconds(p2pd)
        began_at = time.monotonic()
        answers = await self._all(do="go")
        await self._all(do="take")
        seconds = time.monotonic() - began_at
        cpu_after, p2pd_after, tcp_after = cpu_seconds(python), cpu_seconds(p2pd), tcp_bytes(tcp)
        peaks = [peak_bytes(pid) - self._idle[pid] for pid in memory]
        checks = await self._all(do="check", last=last)
        tcp_sent, tcp_received = tcp_after.since(tcp_before)
        return Measured(
            seconds=seconds,
            python_seconds=cpu_after - cpu_before,
            p2pd_seconds=p2pd_after - p2pd_before,
            memory_bytes=statistics.mean(peaks),
            sent_bytes=_mean([check["sent"] for check in checks if "sent" in check]),
            received_bytes=_mean([check["received"] for check in checks if "received" in check]),
            tcp_sent_bytes=tcp_sent / len(self._peers),
            tcp_received_bytes=tcp_received / len(self._peers),
            is_equal=len({check["hash"] for check in checks}) == 1,
            error=max(check["error"] for check in checks),
            group=min(answer.get("group", self._num_peers) for answer in answers),
        )

    def _note_idle(self) -> list[int]:
        """The processes whose memory counts; one that is new has had no vector yet."""
        pids = [int(peer.about["memory"]) for peer in self._peers]
        for pid in pids:
            self._idle.setdefault(pid, resident_bytes(pid))
        return pids


def _mean(values: list[float]) -> float | None:
    return statistics.mean(values) if values else None


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Results go to the output as Markdown.")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--peers", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--values", nargs="+", type=float, default=[10, 50], help="millions")
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=list(CODECS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part-values", type=int, default=PART_VALUES)
    parser.add_argument("--only-rows", action="store_true", help="leave out the codecs and the larger groups")
    return parser.parse_args()


def rows_of(options: argparse.Namespace) -> list[Row]:
    rows = [
        Row(system=system, num_peers=num_peers, num_values=round(values * 1e6), codec=name)
        for num_peers, system, values, name in itertools.product(
            options.peers, options.systems, options.values, options.codecs
        )
        if system == "butterfly" or name in OTHERS_CODECS
        if num_peers <= MAX_PEERS_AT_50M or values <= 10
    ]
    return rows if options.only_rows else [*rows, LARGEST_ROW]


async def measured(options: argparse.Namespace) -> dict[Row, list[Measured]]:
    """All rows, printed as they come."""
    results: dict[Row, list[Measured]] = {}
    for (num_peers, system), rows in itertools.groupby(rows_of(options), lambda row: (row.num_peers, row.system)):
        left = list(rows)
        while left:
            try:
                async with Swarm(system, num_peers, options.part_values) as swarm:
                    while left:
                        results[left[0]] = await swarm.measure(left[0], options.repeats)
                        print(line(left[0], results[left[0]]), flush=True)
                        del left[0]
            except (RuntimeError, TimeoutError) as error:  # the averager may find no whole group
                print(f"left out: {left.pop(0)}: {error!r}", file=sys.stderr, flush=True)
    return results


def main(options: argparse.Namespace) -> None:
    print("# The exchange of parts beside hivemind's averager and gloo\n")
    print(f"Made by `python benchmarks/butterfly.py`; {os.cpu_count()} cores, all peers on them and on loopback; load")
    print(f"before the start {os.getloadavg()[0]:.1f}; {options.repeats} repeats, medians; parts of", end=" ")
    print(f"{options.part_values:,} values.\n\n{HEAD}", flush=True)
    results = asyncio.run(measured(options))
    print(LEGEND, "\n## Aims\n", *summary(results), sep="\n", flush=True)
    if not options.only_rows:
        print("\n## Codecs\n", *codec_speed.report(options.part_values), sep="\n", flush=True)
        print("\n## A group of 64\n", *large_group.report(), sep="\n")


if __name__ == "__main__":
    main(parsed())
