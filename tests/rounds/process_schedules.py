"""PROTOCOL's schedules that run as real processes over hivemind: each a small swarm, a fault, and what came of it.

The tests take one of each group, benchmarks/schedules_hivemind.py all of them.
"""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fault_stages import COORDINATOR_STAGES
from judged_swarm import JudgedSwarm, Verdict, now, stated_bound_seconds, until
from process_swarm import candidate_of
from swarm_diloco.diloco.ledger import Header

FIVE = ("boot", "ann", "ben", "cleo", "dan")
STOPPED_SECONDS = 20.0
LIMIT_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Struck:
    """One peer struck at one stage of a round."""

    round: int
    seconds: float  # from the strike to that round at the last survivor
    longest_gap: float  # between two rounds at any survivor, from the strike on
    bound: float
    happened: str
    missing: int  # survivors' contributions that are not in the round
    is_back: bool  # the victim is in a later round's commit
    verdict: Verdict


async def strike_one(
    folder: Path,
    stage: str,
    number: signal.Signals,
    *,
    first_round: int = 6,
    names: Sequence[str] = FIVE,
    stopped_seconds: float = STOPPED_SECONDS,
) -> Struck:
    """The peer that coordinates the first round past `first_round` whose candidate is a worker, or a reducer of it."""
    round_ = next(r for r in range(first_round, first_round + 100) if candidate_of(r, list(names)) != "boot")
    coordinator = candidate_of(round_, list(names))
    is_coordinators = stage in COORDINATOR_STAGES
    victim = coordinator if is_coordinators else next(n for n in names if n not in (coordinator, "boot"))
    others = [name for name in names if name != victim]
    async with JudgedSwarm(folder) as swarm:
        await swarm.start("boot", "--rounds", "100000")
        fate = ["--strike", number.name, str(round_), stage, "--members", str(len(names))]
        await asyncio.gather(
            *(swarm.start(name, "--rounds", "100000", *(fate if name == victim else ())) for name in names[1:])
        )
        swarm.go()
        note = await swarm.struck(victim)
        survivors = [swarm.peers[name] for name in others]
        await until(survivors, note["round"], limit_seconds=LIMIT_SECONDS)
        if number is signal.SIGSTOP:
            await asyncio.sleep(max(0.0, note["at"] + stopped_seconds - now()))
            process = swarm.peers[victim].process
            assert process is not None
            process.send_signal(signal.SIGCONT)
        else:
            await swarm.peers[victim].ended()
            swarm.peers[victim].address = ""
            await swarm.start(victim, "--rounds", "100000")
        returned = max(map(swarm.head, others))
        await until(list(swarm.peers.values()), returned + 4, limit_seconds=LIMIT_SECONDS)
        is_back = await is_listed_again(swarm, victim, others[0], returned)
        workers = [name for name in others if name != "boot"]
        if number is signal.SIGSTOP:
            workers.append(victim)
        gaps = [swarm.longest_gap_seconds(name, note["at"]) for name in others]
        struck = note["round"]
        return Struck(
            round=struck,
            seconds=max(0.0, *(swarm.applied_at(name, struck) - note["at"] for name in others)),
            longest_gap=max(gaps),
            bound=stated_bound_seconds(),
            happened=swarm.happened(others[0], struck) + fate_of(note["proposed"], swarm.header(others[0], struck)),
            missing=swarm.missing(others[0], struck, [name for name in others if name != "boot"]),
            is_back=is_back,
            verdict=swarm.judge(workers),
        )


def fate_of(proposed: str | None, decided: Header) -> str:
    """Of the commit that a struck coordinator had proposed."""
    if proposed is None:
        return ""
    return ", the victim's commit" if decided.digest.hex() == proposed else ", another commit than the victim's"


async def is_listed_again(swarm: JudgedSwarm, victim: str, other: str, since: int) -> bool:
    """Whether the victim's work is in one of the rounds that follow."""
    for later in range(since + 1, since + 30):
        await until([swarm.peers[other]], later, limit_seconds=LIMIT_SECONDS)
        if not swarm.missing(other, later, [victim]):
            return True
    return False
