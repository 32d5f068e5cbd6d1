"""How long a round takes over home links: four real peers in the network laboratory, beside the bytes' floor.

    python benchmarks/round_wan.py > benchmarks/results/round_wan.md        (as root, about an hour)
    python benchmarks/round_wan.py home loss --details                      (some of SCENARIOS; all stations on stderr)

The peers are tests/rounds/peer_program.py: the real engine over hivemind, made-up pseudo-gradients, the default codecs.
All four train, boot founds the run. The first state comes at full speed; then the links become what they are to be.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "rounds"))

from laboratory import Counters, Laboratory, Link
from process_swarm import CommandOn, PeerProcess, ProcessSwarm
from small_swarm import identity
from swarm_diloco.diloco.codec import CodecSettings, codec

NAMES = ["boot", "ann", "ben", "cleo"]
HOME = Link(up_megabits=50, down_megabits=50, delay_seconds=0.02)  # two of them: a round trip of 80 ms
SLOW = replace(HOME, up_megabits=1, down_megabits=1)
FULL_VALUES = 54_525_952  # 208 parts; their floor at HOME's rate is 10 s
AIM_RATIO, AIM_SLOWER = 1.25, 1.05
SAMPLE_SECONDS = 0.5
STATIONS = ["formed", "encoded", "planned", "first_part", "last_part", "durable", "decided", "applied"]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    values: int = FULL_VALUES
    part_values: int = 262_144
    period_seconds: float = 15.0
    warm_rounds: int = 2  # before those that are measured
    rounds: int = 5
    slow: str | None = None  # whose link is SLOW; then the others are measured
    loss_fraction: float = 0.0  # of a path
    congestion: str = "cubic"
    compared_with: str | None = None  # a scenario: the aim is its time and 5 %; None: the aim is the floor and 25 %

    def link(self, name: str) -> Link:
        return replace(SLOW if name == self.slow else HOME, loss_fraction=self.loss_fraction / 2)

    @property
    def measured(self) -> list[str]:
        return [name for name in NAMES if name != self.slow]

    @property
    def floor_seconds(self) -> float:
        """What each of M equal peers must send of a round, (M−1)/M of all uploads and results, at HOME's rate."""
        settings = CodecSettings()
        sizes = [min(self.part_values, self.values - start) for start in range(0, self.values, self.part_values)]
        both = [codec(name, settings.block_values) for name in (settings.upload, settings.download)]
        total = sum(coded.encoded_bytes(size) for size in sizes for coded in both)
        assert HOME.up_megabits is not None
        return total * (len(NAMES) - 1) / len(NAMES) * 8 / (HOME.up_megabits * 1e6)


# At 1 Mbit/s a full result takes 440 s: for the slow peer to be back by the next round, a quarter and a longer period.
QUARTER = Scenario(name="a quarter of it", values=FULL_VALUES // 4, part_values=65_536)
SCENARIOS = {
    "home": Scenario(name="50/50 Mbit/s, 80 ms"),
    "home-bbr": Scenario(name="the same, TCP bbr", congestion="bbr"),
    "loss-bbr": Scenario(name="0.5 % loss, TCP bbr", loss_fraction=0.005, congestion="bbr"),
    "loss": Scenario(name="0.5 % loss", loss_fraction=0.005, warm_rounds=1, rounds=2),
    "slow": Scenario(name="one peer 1/1 Mbit/s", slow="cleo", warm_rounds=4, rounds=3, compared_with="home"),
    "quarter": QUARTER,
    "quarter-slow": replace(
        QUARTER,
        name="a quarter, one 1/1, every 130 s",
        slow="cleo",
        period_seconds=130,
        warm_rounds=4,
        rounds=4,
        compared_with="quarter",
    ),
}


@dataclass(kw_only=True)
class Measured:
    """What the measured rounds of one scenario showed."""

    lines: list[dict[str, Any]]  # of a peer and a round, at the peers whose links are HOME
    counted: dict[str, tuple[Counters, Counters]]  # before and after
    without_core: float = 0.0  # seconds a peer and a round in which threads of its were ready and had no core
    samples: list[tuple[float, dict[str, Counters]]] = field(default_factory=list)

    def spans(self, start: str, *ends: str) -> list[float]:
        """Seconds from one station to the last of some others."""
        passed = [line["at"] for line in self.lines if {start, *ends} <= line["at"].keys()]
        return [max(at[end] for end in ends) - at[start] for at in passed]

    def listed(self, name: str) -> float:
        """In how much of all values the peer's contributions are, of 1."""
        values = [line["values_listed"].get(identity(name).peer, 0.0) for line in self.lines]
        return statistics.mean(values) if values else 0.0

    def megabytes(self, name: str, num_rounds: int) -> tuple[float, float]:
        """Sent and received a round, with all that is around the payload."""
        before, after = self.counted[name]
        sent, received = after.sent_bytes - before.sent_bytes, after.received_bytes - before.received_bytes
        return sent / num_rounds / 1e6, received / num_rounds / 1e6


def favoured(laboratory: Laboratory) -> CommandOn:
    """What else runs on this machine is not a part of the four machines that are played here."""
    return lambda name, *command: ["nice", "-n", "-10", *laboratory.command(name, *command)]


async def measure(scenario: Scenario, *, limit_seconds: float, details: bool) -> Measured:
    """Raises TimeoutError if the rounds are not there in time."""
    free = {name: Link(delay_seconds=HOME.delay_seconds) for name in NAMES}
    measured = Measured(lines=[], counted={})
    with (
        tempfile.TemporaryDirectory() as folder,
        Laboratory(free, congestion=scenario.congestion) as laboratory,
    ):
        async with ProcessSwarm(Path(folder), command_on=favoured(laboratory)) as swarm:
            await start_all(swarm, scenario, laboratory)
            for name in NAMES:
                link = scenario.link(name)
                rates = {"up_megabits": link.up_megabits, "down_megabits": link.down_megabits}
                laboratory.change(name, **rates, loss_fraction=link.loss_fraction)
            swarm.go()
            watching = asyncio.create_task(watch(laboratory, swarm, measured)) if details else None
            first, last = scenario.warm_rounds + 1, scenario.warm_rounds + scenario.rounds
            peers = [swarm.peers[name] for name in scenario.measured]
            try:
                async with asyncio.timeout(limit_seconds):
                    await until_all(peers, first - 1)
                    before = {name: laboratory.counters(name) for name in NAMES}
                    waited = seconds_without_core(laboratory)
                    await until_all(peers, last)
            finally:
                if watching is not None:
                    watching.cancel()
            measured.counted = {name: (before[name], laboratory.counters(name)) for name in NAMES}
            waited = seconds_without_core(laboratory) - waited
            measured.without_core = waited / len(NAMES) / scenario.rounds
            lines = [line | {"name": peer.name} for peer in peers for line in peer.lines]
    measured.lines = [line for line in lines if first <= line["round"] <= last]
    if details:
        show_uplinks(measured)
    return measured


def seconds_without_core(laboratory: Laboratory) -> float:
    """In which threads of the peers and of their p2pd were ready to run and did not."""
    nanoseconds = 0
    for process in (process for name in NAMES for process in laboratory.inhabitants(name)):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):  # it ends meanwhile
                nanoseconds += int((thread / "schedstat").read_text().split()[1])
    return nanoseconds * 1e-9


async def start_all(swarm: ProcessSwarm, scenario: Scenario, laboratory: Laboratory) -> None:
    values = ["--values", str(scenario.values), "--part-values", str(scenario.part_values)]
    for name in NAMES:
        own = ["--listen", laboratory.address(name), "--founds", "--rounds", "1000000"]
        await swarm.start(name, *values, "--period", str(scenario.period_seconds), *own)


async def until_all(peers: list[PeerProcess], round_: int) -> None:
    await asyncio.gather(*(peer.until("round", round_) for peer in peers))


# --- for reading: stations and uplinks, on stderr


async def watch(laboratory: Laboratory, swarm: ProcessSwarm, measured: Measured) -> None:
    shown: dict[str, int] = dict.fromkeys(NAMES, 0)
    while True:
        measured.samples.append((time.monotonic(), {name: laboratory.counters(name) for name in NAMES}))
        for name, peer in swarm.peers.items():
            for line in peer.lines[shown[name] :]:
                show_stations(name, line)
            shown[name] = len(peer.lines)
        await asyncio.sleep(SAMPLE_SECONDS)


def show_stations(name: str, line: dict[str, Any]) -> None:
    """When the peer passed each station, seconds after its knock."""
    at = line["at"]
    start = at.get("encoded", at["decided"] if "decided" in at else at["applied"])
    times = "  ".join(f"{station} {at[station] - start:6.2f}" for station in STATIONS if station in at)
    facts = f"{line['kind']:7} reduces {line['reduces']:3}, {line['upload_kilobits']} kbit/s"
    print(f"{line['round']:3} {name:5} {facts}  {times}", file=sys.stderr, flush=True)


def show_uplinks(measured: Measured) -> None:
    """How full the lines were in each measured round, from its plan to its decision."""
    for round_ in sorted({line["round"] for line in measured.lines}):
        stations = [line["at"] for line in measured.lines if line["round"] == round_ and "planned" in line["at"]]
        if not stations:
            continue
        start, end = min(at["planned"] for at in stations), max(at["applied"] for at in stations)
        print(f"round {round_}: Mbit/s up, then down, each {SAMPLE_SECONDS} s from the plan", file=sys.stderr)
        for name in NAMES:
            used = [(at, counters[name]) for at, counters in measured.samples if start - SAMPLE_SECONDS <= at <= end]
            for way in ("sent_bytes", "received_bytes"):
                rates = [
                    (getattr(after, way) - getattr(before, way)) * 8e-6 / (until - since)
                    for (since, before), (until, after) in pairwise(used)
                ]
                print(f"  {name:5}", " ".join(f"{rate:3.0f}" for rate in rates), file=sys.stderr)


# --- the table


def median_and_range(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def row(scenario: Scenario, measured: Measured, medians: dict[str, float]) -> str:
    seconds = measured.spans("encoded", "decided")
    median, floor = statistics.median(seconds), scenario.floor_seconds
    if scenario.compared_with is None:
        aim, is_met = f"≤ {AIM_RATIO} floors", median <= floor * AIM_RATIO
    elif scenario.compared_with in medians:
        usual = medians[scenario.compared_with]
        aim, is_met = f"≤ {AIM_SLOWER * usual:.2f} s", median <= usual * AIM_SLOWER
    else:
        aim, is_met = "-", False
    traffic = [measured.megabytes(name, scenario.rounds) for name in scenario.measured]
    up, down = (statistics.mean(way) for way in zip(*traffic, strict=True))
    listed = "/".join(f"{100 * measured.listed(name):.0f}" for name in NAMES)
    return (
        f"| {scenario.name} | {scenario.congestion} | {floor:.2f} | {median_and_range(seconds)} "
        f"| {statistics.median(measured.spans('planned', 'decided')):.2f} "
        f"| {statistics.median(measured.spans('encoded', 'decided', 'last_part')):.2f} | {median / floor:.2f} "
        f"| {up:.1f} / {down:.1f} | {listed} | {measured.without_core:.1f} | {aim}: {'yes' if is_met else 'NO'} |"
    )


HEAD = """# A round over home links

Made by `python benchmarks/round_wan.py`: four training peers as processes over hivemind in the network laboratory,
all on {cores} cores that other work shares. {values:,} values in parts of 262,144, e3m0 up, int8 down; a quarter of
that has parts of 65,536. Floor: the payload that each of four equal peers must send, over 50 Mbit/s. Seconds are
medians over peers and rounds (those of the peer whose link is 1/1 left out), the round's with its range: from a
peer's knock, when its Δ is encoded, to the decision there. From plan: from the coordinator's plan to the decision.
With result: from the knock until the decision and all parts of the result are there. MB: mean a peer and a round on
the wire, with TCP, TLS and acknowledgements. Listed: per cent of the values that the contributions of
boot/ann/ben/cleo are in. No core: in so many seconds a peer and a round were threads of a peer ready to run and no
core free, which four machines would not know.

| scenario | TCP | floor | round | from plan | with result | round ÷ floor | MB up / down | listed | no core | aim |
|---|---|---|---|---|---|---|---|---|---|---|"""


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenarios", nargs="*", metavar="|".join(SCENARIOS))
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for one scenario")
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args()
    print(HEAD.format(cores=os.cpu_count(), values=FULL_VALUES), flush=True)
    medians: dict[str, float] = {}
    for key in options.scenarios or SCENARIOS:
        scenario = SCENARIOS[key]
        try:
            measured = await measure(scenario, limit_seconds=options.limit, details=options.details)
        except (TimeoutError, AssertionError) as error:  # too slow, or a peer ended
            print(error, file=sys.stderr)
            what = f"not within {options.limit:.0f} s" if isinstance(error, TimeoutError) else "a peer ended"
            print(f"| {scenario.name} | {scenario.congestion} | {scenario.floor_seconds:.2f} | {what} |", flush=True)
            continue
        medians[key] = statistics.median(measured.spans("encoded", "decided"))
        print(row(scenario, measured, medians), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
