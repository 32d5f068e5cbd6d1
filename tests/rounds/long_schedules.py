"""PROTOCOL's schedules *Waiting* and *Bits* as real processes over hivemind: one slow line, unlike machines."""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from judged_swarm import JudgedSwarm, Verdict, until
from laboratory import Laboratory, Link
from process_swarm import ProcessSwarm
from small_swarm import identity
from swarm_diloco.diloco.ledger import Header
from swarm_diloco.rounds.snapshot import STATE_FILE, stored_rounds

# --- a slow line

EIGHT = ("boot", "ann", "ben", "cleo", "dan", "eve", "finn", "gil")
SLOWEST = "gil"
SLOW = Link(up_megabits=1, down_megabits=1, delay_seconds=0.02)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Results must fit through a line of 1 Mbit/s within a period, or its owner can never be in step."""

    names: tuple[str, ...] = EIGHT
    num_values: int = 2**22
    part_values: int = 2**16
    period_seconds: float = 60.0
    megabits: float = 20.0  # of the others' lines
    warm_rounds: int = 9  # until lines are known
    measured_rounds: int = 8

    @property
    def link(self) -> Link:
        return Link(up_megabits=self.megabits, down_megabits=self.megabits, delay_seconds=0.02)


@dataclass(frozen=True, kw_only=True)
class Lines:
    """What the measured rounds showed."""

    seconds: tuple[tuple[float, ...], ...]  # of each round: knock to decision, at each peer with a usual line
    shown: tuple[dict[str, dict[str, float]], ...]  # of each round, when each such peer passed its stations
    shares: tuple[float, ...]  # of the parts that list the peer with the slowest line, in each round
    is_one_log: bool

    @property
    def median(self) -> float:
        return statistics.median(second for round_ in self.seconds for second in round_)


async def over_lines(folder: Path, *, slow: bool, sizes: Sizes) -> Lines:
    """Rounds with equal lines, or with one of 1 Mbit/s among them."""
    links = {name: Link(delay_seconds=0.02) for name in sizes.names}
    common = ["--values", sizes.num_values, "--part-values", sizes.part_values, "--period", sizes.period_seconds]
    usual = [name for name in sizes.names if name != SLOWEST]
    last = sizes.warm_rounds + sizes.measured_rounds
    limit = (last + 5) * (sizes.period_seconds + 60)
    with Laboratory(links) as laboratory:

        def command_on(name: str, *command: str) -> list[str]:
            """Other programs of this machine are none of the eight machines that are played here."""
            return ["nice", "-n", "-10" if os.geteuid() == 0 else "0", *laboratory.command(name, *command)]

        async with ProcessSwarm(folder, command_on=command_on) as swarm:
            for name in sizes.names:  # the first state comes at full speed
                own = ["--listen", laboratory.address(name), "--founds", "--rounds", 10**6]
                await swarm.start(name, *map(str, [*common, *own]))
            for name in sizes.names:
                link = SLOW if slow and name == SLOWEST else sizes.link
                laboratory.change(name, up_megabits=link.up_megabits, down_megabits=link.down_megabits)
            swarm.go()
            await until([swarm.peers[name] for name in usual], last, limit_seconds=limit)
            lines = [line for name in usual for line in swarm.peers[name].lines]
            rounds = range(sizes.warm_rounds + 1, last + 1)
            shown = [
                {name: line["at"] for name in usual for line in swarm.peers[name].lines if line["round"] == round_}
                for round_ in rounds
            ]
            states = {round_: {line["digest"] for line in lines if line["round"] == round_} for round_ in rounds}
            return Lines(
                seconds=tuple(
                    tuple(at["decided"] - at["encoded"] for at in round_.values() if "encoded" in at)
                    for round_ in shown
                ),
                shown=tuple(shown),
                shares=tuple(share_of(folder / usual[0] / "log" / str(round_), SLOWEST) for round_ in rounds),
                is_one_log=all(len(found) == 1 for found in states.values()),
            )


def share_of(path: Path, name: str) -> float:
    """Of a commit's parts, those that list the peer."""
    commit = Header.decode(path.read_bytes()).commit()
    numbers = [number for number, member in enumerate(commit.members) if member.peer == identity(name).peer]
    return sum(part.lists(number) for part in commit.parts for number in numbers) / max(1, len(commit.parts))


# --- unlike machines


@dataclass(frozen=True, kw_only=True)
class Bits:
    """Rounds of machines that compute unlike each other."""

    num_rounds: int  # that all have reported
    num_zeros: int  # values of the momentum that are zero at the end
    least: float  # magnitude of the others
    verdict: Verdict


async def on_unlike_machines(
    folder: Path, machines: Mapping[str, tuple[Mapping[str, str], Sequence[str]]], *, num_rounds: int
) -> Bits:
    """Rows trained once, then never: their momentum fades until it would be denormal, were it not set to zero."""
    async with JudgedSwarm(folder) as swarm:
        for name, (environment, own) in machines.items():
            await swarm.start(name, "--rounds", "1000000", "--step", "0.05", "--sparse", *own, **environment)
        swarm.go()
        await until(list(swarm.peers.values()), num_rounds, limit_seconds=60 + 5 * num_rounds)
        reported = [set(peer.states) for peer in swarm.peers.values()]
        newest = max(stored_rounds(folder / "boot" / "snapshots"))
        momentum = load_file(folder / "boot" / "snapshots" / str(newest) / STATE_FILE)["momentum"].abs()
        return Bits(
            num_rounds=len(set.intersection(*reported) & set(range(1, num_rounds + 1))),
            num_zeros=int((momentum == 0).sum()),
            least=float(momentum[momentum > 0].min()),
            verdict=swarm.judge([name for name in machines if name != "boot"]),
        )
