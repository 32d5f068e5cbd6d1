"""PROTOCOL's schedules that are to run over hivemind: real processes on this machine, and what came of each.

    python benchmarks/schedules_hivemind.py > benchmarks/results/schedules_hivemind.md       (an hour and a half)
    python benchmarks/schedules_hivemind.py deciding --only SIGSTOP --only sealed --rows rows.jsonl

With --rows every result is kept in that file, and the report shows all that it holds: a run again adds a line, it
replaces none. The peers are tests/rounds/struck_peer.py: the real engine, made-up pseudo-gradients.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "rounds"))

import dht_cut

import lone_schedules as lone
from fault_stages import COORDINATOR_STAGES, REDUCER_STAGES
from judged_swarm import Verdict
from laboratory import why_not
from long_schedules import EIGHT, SLOW, SLOWEST, Sizes, on_unlike_machines, over_lines
from process_schedules import FIVE, STOPPED_SECONDS, Struck, strike_one
from small_swarm import FAST
from swarm_diloco.rounds.session import RETRY_SECONDS
from test_engine_hivemind import MACHINES

Row = dict[str, Any]
SLEEP_SECONDS = 180.0
SLOWER = 1.05  # that rounds may be with a slow line among them
NUM_ROUNDS = 1500
CUT_SECONDS, JOINED_SECONDS = 600.0, 120.0


def judged(verdict: Verdict) -> Row:
    return {"rounds": verdict.words, "tokens": verdict.tokens, "is_right": verdict.is_right}


async def deciding(number: signal.Signals, stage: str, folder: Path) -> Row:
    struck: Struck = await strike_one(folder, stage, number)
    return {
        "happened": struck.happened + ("" if struck.is_back else "; THE VICTIM IS NOT BACK"),
        "seconds": struck.seconds,
        "gap": struck.longest_gap,
        "bound": struck.bound,
        "missing": struck.missing,
        **judged(struck.verdict),
    }


def seen(schedule: Callable[[Path], Awaitable[lone.Seen]]) -> Callable[[Path], Awaitable[Row]]:
    async def cell(folder: Path) -> Row:
        result = await schedule(folder)
        return {
            "happened": result.happened,
            "what": result.what,
            "seconds": result.seconds,
            "bound": result.bound,
            **judged(result.verdict),
        }

    return cell


async def waiting(folder: Path) -> Row:
    if (reason := why_not()) is not None:
        raise AssertionError(reason)
    sizes = Sizes()
    (folder / "equal").mkdir()
    (folder / "slow").mkdir()
    equal = await over_lines(folder / "equal", slow=False, sizes=sizes)
    slow = await over_lines(folder / "slow", slow=True, sizes=sizes)
    shares = " ".join(f"{share:.0%}" for share in slow.shares)
    longest = {
        name: " ".join(f"{max(round_):.1f}" for round_ in lines.seconds)
        for name, lines in (("equal", equal), ("slow", slow))
    }
    ratio = slow.median / equal.median
    return {
        "happened": f"median round {equal.median:.2f} s with equal lines (at the last peer: {longest['equal']}), "
        f"{slow.median:.2f} s with one of {SLOW.up_megabits} Mbit/s ({longest['slow']}): × {ratio:.3f}; the slow one's "
        f"share of the parts, by rounds: {shares}",
        "shown": [equal.shown, slow.shown],
        "is_met": ratio <= SLOWER and min(slow.shares) > 0 and equal.is_one_log and slow.is_one_log,
    }


async def bits(folder: Path) -> Row:
    found = await on_unlike_machines(folder, MACHINES, num_rounds=NUM_ROUNDS)
    return {
        "happened": f"{found.num_rounds} rounds that all have reported; {found.verdict.words}; of the momentum's "
        f"values {found.num_zeros} were zero at the end, the least of the others {found.least:.1e}; "
        f"tokens {found.verdict.tokens}",
        "is_met": found.verdict.is_right and found.num_rounds == NUM_ROUNDS,
    }


async def dht(folder: Path) -> Row:
    if (reason := why_not()) is not None:
        raise AssertionError(reason)
    joined = await dht_cut.cut_in_halves(folder, seconds=CUT_SECONDS)
    return {
        "happened": f"at the cut's end a peer found at most {joined.found_in_halves} of {len(dht_cut.NAMES)}; mended, "
        f"each had found all {len(dht_cut.NAMES)} after {joined.seconds:.0f} s",
        "is_met": joined.seconds <= JOINED_SECONDS,
    }


def cells() -> dict[str, dict[str, Callable[[Path], Awaitable[Row]]]]:
    """Group -> schedule -> what runs it in a folder."""

    def strike(number: signal.Signals, stage: str) -> Callable[[Path], Awaitable[Row]]:
        return lambda folder: deciding(number, stage, folder)

    return {
        "deciding": {
            f"{number.name} | {who} | {stage}": strike(number, stage)
            for number in (signal.SIGKILL, signal.SIGSTOP)
            for who, stages in (("coordinator", COORDINATOR_STAGES), ("reducer", REDUCER_STAGES))
            for stage in stages
        },
        "alone": {
            "a laptop sleeps": seen(lambda folder: lone.laptop_sleeps(folder, seconds=SLEEP_SECONDS)),
            "all start at once": seen(lone.all_start_at_once),
            "the bootstrap peer dies, one worker goes on": seen(lone.bootstrap_returns),
            "the worker is gone for good, another comes": seen(lone.new_worker_comes),
        },
        "waiting": {"one line of 1 Mbit/s among eight": waiting},
        "bits": {"unlike machines": bits},
        "dht": {"cut in halves for 10 min": dht},
    }


# --- the report

HEADS = {
    "deciding": (
        "| fault | who | when | that round | seconds | longest gap | bound | contributions missing "
        "| rounds | trained = credited + orphaned + pending | load | commit |"
    ),
    "alone": "| schedule | what happened | seconds | from when to when | bound | rounds | tokens | load | commit |",
    "waiting": "| schedule | what was seen | met | load | commit |",
    "bits": "| schedule | what was seen | met | load | commit |",
    "dht": "| schedule | what was seen | met | load | commit |",
}
SIZES = Sizes()
ABOUT = {
    "deciding": f"""\
{len(FIVE)} peers, one of them a bootstrap peer. The victim strikes itself at the very point: a coordinator
in its ballot 0, a reducer (which does not coordinate) in its first attempt. SIGSTOP lasts {STOPPED_SECONDS:.0f} s; the
victim's network daemon runs on. *Seconds*: from the strike to that round's decision at the last survivor. *Longest
gap*: between two decisions at any survivor, from the strike to the end, the victim's return included. *Contributions
missing*: of survivors, not whole in that round (they stay pending and come in the next). *Bound*, from the settings:
silence {FAST.silence_seconds:.0f} + retry {RETRY_SECONDS:.0f} + opening {FAST.opening_seconds:.0f} + deadline
{FAST.deadline_seconds:.0f} s. Tokens are those of the workers that were not killed: what another knew died with it.""",
    "alone": f"""\
Settings stand for longer ones: degraded after {FAST.degraded_seconds:.0f} s (60 by default), deadlines up to
{FAST.deadline_ceiling_seconds:.0f} s (300), a worker alone after {FAST.alone_seconds:.0f} s (600). The laptop sleeps
{SLEEP_SECONDS:.0f} s, longer than all of them, by SIGSTOP of the program and its network daemon; unlike in a real sleep
its clock goes on.""",
    "waiting": f"""\
{len(EIGHT)} peers, all training, in the network laboratory: lines of {SIZES.megabits:.0f} Mbit/s, round trips of 80 ms;
{SLOWEST}'s is {SLOW.up_megabits} Mbit/s both ways in the second swarm. {SIZES.num_values:,} values in parts of
{SIZES.part_values:,}, a round every {SIZES.period_seconds:.0f} s (results must fit through the slow line),
{SIZES.measured_rounds} rounds measured after {SIZES.warm_rounds}. A round: from a knock to the decision, at the peers
with usual lines. Aim: at most × {SLOWER}, and the slow one in some parts.""",
    "bits": """\
Four peers: ATEN_CPU_CAPABILITY default, avx2 and avx512, one and two threads, flush-to-zero on and off. Half of the
values are trained in round 1 alone. In `make test` the same for 44 rounds with a momentum that fades faster, and beside
it the same swarm with torch's own SGD, which parts within those.""",
    "dht": f"""\
{len(dht_cut.NAMES)} peers in the network laboratory, round trips of 80 ms, records announced every
{dht_cut.ANNOUNCE_SECONDS:.0f} s and kept for {dht_cut.LIFETIME_SECONDS:.0f} s, as the apps do; one half has the only
peer that everybody was told of. A partition of the two halves for {CUT_SECONDS:.0f} s. Aim: all find all within
{JOINED_SECONDS:.0f} s.""",
}


def line_of(group: str, row: Row) -> str:
    load = f"{row['load']:.0f} | {row['commit']}"
    if "failed" in row:
        return f"| {row['name']} | FAILED: {row['failed']} | {load} |"
    if "is_met" in row:
        return f"| {row['name']} | {row['happened']} | {'yes' if row['is_met'] else 'NO'} | {load} |"
    end = f"{row['bound']:.0f} | "
    over = " **over**" if row["seconds"] > row["bound"] else ""
    if group == "deciding":
        return (
            f"| {row['name']} | {row['happened']} | {row['seconds']:.1f}{over} | {row['gap']:.1f} | {end}"
            f"{row['missing']} | {row['rounds']} | {row['tokens']} | {load} |"
        )
    return (
        f"| {row['name']} | {row['happened']} | {row['seconds']:.1f}{over} | {row['what']} | {end}"
        f"{row['rounds']} | {row['tokens']} | {load} |"
    )


def table(group: str, head: str, rows: list[Row]) -> list[str]:
    return [head, "|---" * (head.count("|") - 1) + "|", *(line_of(group, row) for row in rows)]


def report(rows: list[Row]) -> str:
    lines = [
        "# The protocol's schedules over hivemind",
        "",
        "Made by `python benchmarks/schedules_hivemind.py`: real processes over hivemind on one machine's loopback,",
        f"{machine()}. Other programs ran on it at the same time: *load* is the machine's",
        "load average as a schedule began. Of a schedule that was run again, each run is shown.",
    ]
    for group, head in HEADS.items():
        own = [row for row in rows if row["group"] == group]
        newest = {row["name"]: row for row in own}
        earlier = [row for row in own if row is not newest[row["name"]]]
        if own:
            lines += ["", f"## {group.capitalize()}", "", ABOUT[group], "", *table(group, head, list(newest.values()))]
        if earlier:
            lines += ["", "Earlier runs:", "", *table(group, head, earlier)]
    return "\n".join(lines)


def machine() -> str:
    names = [
        text.split(":")[1].strip() for text in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in text
    ]
    return f"{os.cpu_count()} cores ({names[0] if names else platform.machine()}), {platform.system()}"


# --- the command


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(HEADS))
    parser.add_argument("--only", action="append", default=[], help="schedules whose name holds all of these words")
    parser.add_argument("--rows", type=Path, help="a file that keeps all results")
    parser.add_argument("--just-report", action="store_true", help="run nothing")
    return parser.parse_args()


async def main(options: argparse.Namespace) -> None:
    rows: list[Row] = []
    if options.rows and options.rows.exists():
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    for group, schedules in {} if options.just_report else cells().items():
        if options.groups and group not in options.groups:
            continue
        for name, run in schedules.items():
            if all(word in name for word in options.only):
                rows.append(await one(group, name, run))
                print(line_of(group, rows[-1]), file=sys.stderr, flush=True)
                if options.rows:
                    with options.rows.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    print(report(rows))


def commit() -> str:
    """Of the program that runs; ? outside of its repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() or "?"


async def one(group: str, name: str, run: Callable[[Path], Awaitable[Row]]) -> Row:
    row: Row = {"group": group, "name": name, "load": os.getloadavg()[0], "commit": commit()}
    with tempfile.TemporaryDirectory() as folder:
        try:
            return row | await run(Path(folder))
        except (AssertionError, TimeoutError) as error:
            return row | {"failed": str(error).replace("\n", " ")[:500] or "it took too long"}


if __name__ == "__main__":
    asyncio.run(main(parsed()))
