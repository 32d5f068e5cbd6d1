"""What a death or a freeze in mid round costs the others: real processes over hivemind on loopback.

    python benchmarks/round_faults.py > benchmarks/results/round_faults.md

Each line is one swarm of a bootstrap peer and three workers (tests/rounds/peer_program.py: the real engine, made-up
pseudo-gradients). The victim kills or stops itself when its own session is in the phase; the seconds run from that
moment to the decision of the same round at the last survivor, beside the bound that the settings state for it.
"""

import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "rounds"))

from process_swarm import PeerProcess, ProcessSwarm, all_until, candidate_of
from small_swarm import FAST, identity

NAMES = ["boot", "ann", "ben", "cleo"]
FATAL = 6  # the round in which it happens
PHASES = ["knocked", "exchanging", "voting"]
STOPPED_SECONDS = 20.0
LIMIT_SECONDS = 120.0


def stated_bound_seconds() -> float:
    """A silent coordinator is noticed after `silence`; the next one may use a whole deadline."""
    return FAST.silence_seconds + FAST.opening_seconds + FAST.deadline_seconds


async def one(role: str, phase: str, fault: str) -> str:
    coordinator = candidate_of(FATAL, NAMES)
    reducer = next(name for name in NAMES if name not in (coordinator, "boot"))
    victim = {"coordinator": coordinator, "reducer": reducer, "boot": "boot"}[role]
    with tempfile.TemporaryDirectory() as folder:
        async with ProcessSwarm(Path(folder)) as swarm, asyncio.timeout(LIMIT_SECONDS):
            for name in NAMES:
                fatal = ["--die" if fault == "SIGKILL" else "--stop", str(FATAL), phase] if name == victim else []
                await swarm.start(name, "--rounds", "1000", *fatal)
            swarm.go()
            struck_at = await _moment(swarm.peers[victim], fault)
            others = [swarm.peers[name] for name in NAMES if name != victim]
            await all_until(others, FATAL)
            seconds = time.monotonic() - struck_at
            if fault == "SIGSTOP":
                await asyncio.sleep(max(0.0, struck_at + STOPPED_SECONDS - time.monotonic()))
                swarm.peers[victim].process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
            else:
                swarm.peers[victim].address = ""
                await swarm.start(victim, "--rounds", "1000")
            await all_until(list(swarm.peers.values()), max(peer.lines[-1]["round"] for peer in others) + 2)
            line = next(line for line in others[0].lines if line["round"] == FATAL)
            workers = {identity(peer.name).peer for peer in others} - {identity("boot").peer}
            lost = len(workers - set(line["listed"]))
            states: dict[int, set[tuple[str, str]]] = {}
            for peer in swarm.peers.values():
                for round_, state in peer.states.items():
                    states.setdefault(round_, set()).add(state)
            is_one_log = all(len(found) == 1 for found in states.values())
    return (
        f"| {fault} | {role} | {phase} | {seconds:.1f} | {stated_bound_seconds():.0f} | {line['kind'].lower()} "
        f"| {lost} | {'yes' if is_one_log else 'NO'} |"
    )


async def _moment(peer: PeerProcess, fault: str) -> float:
    if fault == "SIGKILL":
        await peer.ended()
        return time.monotonic()
    while True:
        status = Path(f"/proc/{peer.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]  # type: ignore[union-attr]
        if status == "T":
            return time.monotonic()
        await asyncio.sleep(0.01)


async def main() -> None:
    print("# What a fault in mid round costs\n")
    print(
        "Made by `python benchmarks/round_faults.py`: a bootstrap peer and three workers as processes over hivemind on"
    )
    print("loopback, 2 cores. Seconds from the fault to the decision of that same round at the last survivor.\n")
    print("| fault | who | phase | seconds | stated bound | round | survivors' contributions lost | one log |")
    print("|---|---|---|---|---|---|---|---|")
    for fault in ("SIGKILL", "SIGSTOP"):
        for role in ("coordinator", "reducer", "boot"):
            for phase in PHASES:
                try:
                    print(await one(role, phase, fault), flush=True)
                except TimeoutError:
                    print(f"| {fault} | {role} | {phase} | over {LIMIT_SECONDS:.0f} | - | - | - | - |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
