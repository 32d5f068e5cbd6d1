"""The real deciding module in random order: runs by the hundred thousand, and how soon a broken rule shows.

    python benchmarks/interleavings.py --runs 100000 --processes 2 > benchmarks/results/interleavings.md
    python benchmarks/interleavings.py --seed 4711                        # one run again
    python benchmarks/interleavings.py --seed 4711 --mutant "no promise"

Signatures are a keyed hash here (tests/rounds/interleavings/signing.py says what else is left out for speed);
`--real-signatures` takes Ed25519, as tests/rounds/test_decision_interleavings.py does.
"""

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "rounds"))

from interleavings.mutants import MUTANTS
from interleavings.runs import Caught, Sum, first_caught, run_all
from interleavings.scenario import EVERYTHING, WEATHERS, scenario_of
from interleavings.signing import cheap_signatures
from interleavings.witness import SPLIT

BLOCK = 500
MUTANT_RUNS = 2000


def signatures(are_real: bool) -> AbstractContextManager[None]:
    return nullcontext() if are_real else cheap_signatures()


def block(first: int, count: int, are_real: bool) -> Sum:
    with signatures(are_real):
        return run_all(range(first, first + count))


def hunt(name: str, limit: int, are_real: bool) -> tuple[Caught | None, Caught | None]:
    with signatures(are_real):
        mutant, seeds = MUTANTS[name], range(limit)
        return first_caught(mutant, seeds), first_caught(mutant, seeds, (SPLIT,))


def all_runs(options: argparse.Namespace) -> int:
    started = time.monotonic()
    total = Sum()
    firsts = range(options.first_seed, options.first_seed + options.runs, BLOCK)
    with ProcessPoolExecutor(options.processes) as pool:
        end = options.first_seed + options.runs
        done = finished(options.resume)
        blocks = {
            first: pool.submit(block, first, min(BLOCK, end - first), options.real_signatures)
            for first in firsts
            if first not in done
        }
        hunts = {name: pool.submit(hunt, name, options.mutant_runs, options.real_signatures) for name in MUTANTS}
        for first in firsts:
            total.add(done[first] if first in done else blocks[first].result())
            if first in blocks:
                keep(options.resume, first, blocks[first].result())
            minutes = (time.monotonic() - started) / 60
            print(f"{total.num_runs} runs, {len(total.caught)} failed, {minutes:.1f} min", file=sys.stderr)
        report(options, total)
        are_caught = report_mutants(options, {name: found.result() for name, found in hunts.items()})
    return 0 if are_caught and not total.caught else 1


def finished(path: Path | None) -> dict[int, Sum]:
    """The blocks that an earlier start of the same command has done."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        line["first"]: Sum(line["num_runs"], Counter(line["counts"]), [Caught(*caught) for caught in line["caught"]])
        for line in lines
    }


def keep(path: Path | None, first: int, done: Sum) -> None:
    if path is not None:
        caught = [[caught.seed, caught.kind, caught.text] for caught in done.caught]
        line = {"first": first, "num_runs": done.num_runs, "counts": done.counts, "caught": caught}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def report(options: argparse.Namespace, total: Sum) -> None:
    signed = "Ed25519" if options.real_signatures else "a keyed hash in place of Ed25519"
    print("# The deciding module in random order\n")
    print(
        f"Made by `python benchmarks/interleavings.py --runs {options.runs} --processes {options.processes}`; signed by"
    )
    print(f"{signed}. {total.num_runs:,} runs, seeds from {options.first_seed}. Each is a")
    print("swarm of 1 to 9 peers that hold the real Voter, Ballot, DegradedBallot and checks; W = 1, 2 or 3, peers")
    print("behind NAT, archives, degraded ballots and a liar in some, in one of these weathers:")
    print(f"{', '.join(WEATHERS)}.\n")
    print(f"**Failed: {len(total.caught)}.**\n")
    for caught in total.caught:
        print(f"- `--seed {caught.seed}`: {caught.text}")
    print("| what happened | in all | a run |\n|---|---:|---:|")
    for what, count in arranged(total):
        print(f"| {what} | {count:,} | {count / total.num_runs:.3g} |")
    print(flush=True)


def arranged(total: Sum) -> list[tuple[str, int]]:
    """Details, which begin with dots, after what they are details of; what is new at the end."""
    names = """
        messages / messages lost / messages doubled / cuts of the network / crashes / headers damaged
        peers that went away / knocks at rounds further on / knocks refused / ballots proposed / ... past ballot 0
        ... degraded / ... adopting a vote / ... without a report that nobody can prove / proposals refused
        ... that pass over a vote / votes withheld / false reports / decisions refused / rounds decided / ... void
        ... decided past ballot 0 / ... decided degraded / ... decided by one alone / forks / ... of two plans apart
        ... of two plans with a peer in both / ... of two plans with a peer that votes in both
        ... ... and hides its first vote / ... of a plan and a council's majority / quiet ends with a decision
        runs without a quiet end
    """
    ordered = [name.strip() for name in names.strip().replace("\n", "/").split("/")]
    return [(name, total.counts[name]) for name in [*ordered, *sorted(total.counts.keys() - set(ordered))]]


def report_mutants(options: argparse.Namespace, found: dict[str, tuple[Caught | None, Caught | None]]) -> bool:
    print("## Rules broken on purpose\n")
    print(f"Up to {options.mutant_runs} runs each: until anything wrong is seen, and until two decisions of one round")
    print("are (no degraded ballot excusing them), with nothing else looked for.\n")
    print("| mutant | what is broken | caught in run | by | two decisions in run |\n|---|---|---:|---|---:|")
    for name, (first, split) in found.items():
        run, kind = (str(first.seed + 1), first.kind) if first else ("not", "")
        print(f"| {name} | {MUTANTS[name].broken_rule} | {run} | {kind} | {split.seed + 1 if split else 'not'} |")
    return all(first is not None for first, _ in found.values())


def one_run(options: argparse.Namespace) -> int:
    mutant = MUTANTS[options.mutant] if options.mutant else None
    print(scenario_of(options.seed, mutant.focus if mutant else EVERYTHING))
    with signatures(options.real_signatures):
        if mutant is not None:
            caught = first_caught(mutant, [options.seed])
            print(caught.text if caught else "nothing wrong is seen")
            return caught is not None
        total = run_all([options.seed])
    for name, count in arranged(total):
        print(f"{count:8,} {name}")
    for caught in total.caught:
        print(caught.text)
    return bool(total.caught)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--mutant-runs", type=int, default=MUTANT_RUNS)
    parser.add_argument("--real-signatures", action="store_true")
    parser.add_argument("--resume", type=Path, help="a file in which finished runs are kept; start again with the same")
    parser.add_argument("--seed", type=int, help="do one run again")
    parser.add_argument("--mutant", choices=list(MUTANTS), help="with --seed: with this rule broken")
    options = parser.parse_args()
    return one_run(options) if options.seed is not None else all_runs(options)


if __name__ == "__main__":
    sys.exit(main())
