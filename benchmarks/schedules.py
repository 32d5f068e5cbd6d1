"""PROTOCOL's schedules on the simulated network, each with many seeds: what happened, how long it took, what held.

    python benchmarks/schedules.py --seeds 20         writes benchmarks/results/schedules.md  (an hour on 2 cores)
    python benchmarks/schedules.py --only 'deciding/voter restarts/promised' --seed 7     one run, with its events' hash

All seconds are virtual, but for the last section's. The real engine, made-up pseudo-gradients (tests/rounds/schedules).
"""

import argparse
import asyncio
import os
import platform
import resource
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "rounds"))

import torch

from schedules.catalogue import ALL, by_id
from schedules.runner import ALSO, PROPERTIES, Result, run
from schedules.schedule import Schedule
from small_swarm import SmallPeer, assert_one_log, genesis_of, identity, rules_for
from swarm_diloco.network.simulated_network import SimulatedWorld, run_virtual

OUT = Path(__file__).parent / "results" / "schedules.md"
SIZES = ((64, 5), (64, 64))  # peers, parts
SIZED_ROUNDS = 20
PART_VALUES = 1024


def play(job: tuple[str, int]) -> Result:
    torch.set_num_threads(1)
    id_, seed = job
    return run(by_id(id_), seed, is_short=False)


def jobs_of(schedules: Iterable[Schedule], seeds: Sequence[int]) -> list[tuple[str, int]]:
    return [(each.id, seed) for each in schedules for seed in seeds[: each.most_seeds]]


def report(results: dict[str, list[Result]], bounds: dict[str, str]) -> Iterable[str]:
    yield (
        "| schedule | stage | seeds | the struck round was decided (runs) | s median | s max | bound | longest wait "
        "| steps lost | dropped | " + " | ".join(PROPERTIES[:3]) + " | waits |"
    )
    yield "|---" * 14 + "|"
    for schedule in ALL:
        if found := results.get(schedule.id):
            yield row(schedule, found, bounds)


def row(schedule: Schedule, found: list[Result], bounds: dict[str, str]) -> str:
    happened = Counter(result.happened or "no fault" for result in found)
    words = "; ".join(f"{what} ({count})" if len(happened) > 1 else what for what, count in happened.most_common())
    seconds = [result.seconds for result in found]
    held = [_held(found, name) for name in PROPERTIES]
    others = [result for result in found if any(result.wrong[name] for name in ALSO)]
    number = bounds[schedule.bound.why]
    return (
        f"| {schedule.group}: {schedule.name} | {schedule.stage} | {len(found)} | {words} "
        f"| {median(seconds):.1f} | {max(seconds):.1f} | {schedule.bound.seconds:.0f} {number} "
        f"| {max(result.longest_wait for result in found):.1f} | {sum(result.steps_lost for result in found):g}"
        f"{' **did not end**' * any(result.wrong['it ended'] for result in others)} "
        f"| {sum(result.dropped for result in found)} | {' | '.join(held)} |"
    )


def _held(found: list[Result], name: str) -> str:
    broken = sum(bool(result.wrong[name]) for result in found)
    return f"**{broken} broken**" if broken else "yes"


def bound_numbers(ids: Collection[str]) -> dict[str, str]:
    numbers: dict[str, str] = {}
    for schedule in ALL:
        if schedule.id in ids:
            numbers.setdefault(schedule.bound.why, f"({len(numbers) + 1})")
    return numbers


# --- many peers


def swarm_seconds(num_peers: int, num_parts: int, num_rounds: int) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and virtual seconds of so many rounds; all are in each."""
    rules = rules_for(num_values=num_parts * PART_VALUES)
    genesis = genesis_of(rules, [identity("boot").peer])
    began = time.perf_counter(), _processor_seconds()
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync", lambda _descriptor: None):
        names = ["boot", *(f"worker{number}" for number in range(num_peers - 1))]
        peers = [SmallPeer(name, Path(folder) / name, rules, genesis) for name in names]
        peers[0].trains = False
        peers[0].has_first_state()

        async def scenario(world: SimulatedWorld) -> float:
            go = asyncio.Event()
            for peer in peers:
                peer.may_train, peer.donors = go, [peers[0].peer] if peer.trains else []
                await peer.start(world.network(peer.identity))
            go.set()
            began_at = asyncio.get_running_loop().time()
            for peer in peers:
                await peer.reached(num_rounds)
            took = asyncio.get_running_loop().time() - began_at
            for peer in peers:
                await peer.stop()
            return took

        virtual = run_virtual(scenario, seed=1, limit_seconds=3600)
        assert_one_log(peers)
        assert peers[0].follower is not None
        log = peers[0].follower.log
        assert all(len(log.commit(round_).members) == num_peers for round_ in range(1, num_rounds + 1))
    return time.perf_counter() - began[0], _processor_seconds() - began[1], virtual


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def size_lines() -> Iterable[str]:
    yield ""
    yield "## How fast the simulation is"
    yield ""
    yield "Wall and processor seconds of one core for 20 rounds of 64 whole engines; every peer is in every round."
    yield ""
    yield "| peers | parts | rounds | wall s | processor s | virtual s |"
    yield "|---|---|---|---|---|---|"
    for num_peers, num_parts in SIZES:
        wall, processor, virtual = swarm_seconds(num_peers, num_parts, SIZED_ROUNDS)
        yield f"| {num_peers} | {num_parts} | {SIZED_ROUNDS} | {wall:.0f} | {processor:.0f} | {virtual:.0f} |"


# --- the command


def once(id_: str, seed: int) -> int:
    result = run(by_id(id_), seed)
    print(result)
    print(f"{result.happened}; {result.seconds:.2f} s of at most {result.bound.seconds:g} ({result.bound.why})")
    print(f"longest wait {result.longest_wait:.2f} s, {result.num_rounds} rounds in {result.virtual_seconds:.2f} s")
    print(f"{result.num_events} events, {result.events}", *result.notes, sep="\n")
    return 0 if result.is_right else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 1 to N of each schedule (default: 5)")
    parser.add_argument("--only", default="", metavar="TEXT", help="schedules whose name holds this")
    parser.add_argument("--seed", type=int, metavar="S", help="play the one schedule that --only names with this seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help="the report (default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.seed is not None:
        return once(options.only, options.seed)
    jobs = jobs_of([each for each in ALL if options.only in each.id], range(1, options.seeds + 1))
    results: dict[str, list[Result]] = defaultdict(list)
    began = time.perf_counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, result in enumerate(pool.map(play, jobs), 1):
            results[result.id].append(result)
            if not result.is_right:
                print(f"{result}\n    again: {result.command}", flush=True)
            if number % 100 == 0:
                print(f"{number} of {len(jobs)} runs", file=sys.stderr, flush=True)
    lines = [*head(len(jobs), time.perf_counter() - began), *report(results, bound_numbers(results)), *foot(results)]
    if not options.only:
        lines += size_lines()
    options.out.write_text("\n".join(lines) + "\n")
    print(f"{options.out}: {len(jobs)} runs")
    return int(any(not result.is_right for found in results.values() for result in found))


def head(num_runs: int, seconds: float) -> Iterable[str]:
    yield "# The protocol's schedules on the simulated network"
    yield ""
    yield (
        f"Made by `{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}`: {num_runs} runs in {seconds / 60:.0f} min on "
        f"{os.cpu_count()} cores, Python {platform.python_version()}. The real engine, made-up pseudo-gradients. "
        "Seconds are virtual: of what the schedule measures (the fault to the decision of that round at the last "
        "survivor, if its bound below says nothing else), beside what the settings state; the longest wait is any "
        "survivor's contribution for its decision. Steps lost are of those who were there all the time; dropped are "
        "tokens of a Δ that 8 commits did not list, by those who were away."
    )
    yield ""


def foot(results: dict[str, list[Result]]) -> Iterable[str]:
    yield ""
    yield "## Bounds"
    yield ""
    measured: dict[str, set[str]] = defaultdict(set)
    for schedule in ALL:
        if schedule.id in results:
            measured[schedule.bound.why].add(schedule.measured)
    for why, number in bound_numbers(results).items():
        yield f"- {number} {why}: of {'; '.join(sorted(measured[why]))}"
    noted = {id_: result.notes for id_, found in results.items() for result in found[:1] if result.notes}
    yield ""
    yield "## In words, of seed 1"
    yield ""
    for id_, notes in noted.items():
        yield f"- {id_}: {'; '.join(notes)}"
    failures = [result for found in results.values() for result in found if not result.is_right]
    yield ""
    yield f"## Runs in which something did not hold: {len(failures)}"
    yield ""
    for result in failures:
        yield f"- {result}. Again: `{result.command}`"


if __name__ == "__main__":
    sys.exit(main())
