"""PROTOCOL's schedules *Alone and late* as real processes over hivemind: who sleeps, comes at once, is left alone."""

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path

from judged_swarm import JudgedSwarm, Verdict, now, stated_bound_seconds, until
from small_swarm import FAST, identity
from swarm_diloco.rounds.settings import RoundSettings

FOR_EVER = ("--rounds", "1000000")
LIMIT_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One schedule: how long something took, how long it may take, and what happened."""

    what: str  # that took so long
    seconds: float
    bound: float
    happened: str
    verdict: Verdict


def lone_bound_seconds(rounds: RoundSettings) -> float:
    """A council is gone: who is left may decide without it after `degraded_seconds`, and then as after any fault."""
    return rounds.degraded_seconds + stated_bound_seconds(rounds)


async def laptop_sleeps(folder: Path, *, seconds: float) -> Seen:
    """A worker and its daemon are stopped for longer than every deadline, and come back to rounds that went on."""
    async with JudgedSwarm(folder) as swarm:
        await swarm.start("boot", *FOR_EVER)
        await swarm.start_together(["ann", "ben", "cleo"], *FOR_EVER)
        swarm.go()
        await until(list(swarm.peers.values()), 6, limit_seconds=LIMIT_SECONDS)
        slept_at, slept_from = now(), swarm.head("ann")
        swarm.freeze("cleo")
        await asyncio.sleep(seconds)
        woken_at, woken_from = now(), swarm.head("ann")
        swarm.thaw("cleo")
        gap = swarm.longest_gap_seconds("ann", slept_at)
        await until([swarm.peers["cleo"]], woken_from + 1, limit_seconds=LIMIT_SECONDS)
        listed = await first_with(swarm, "cleo", seen_by="ann", since=woken_from, is_worker=True)
        return Seen(
            what="from its waking to its work in a commit",
            seconds=swarm.applied_at("ann", listed) - woken_at,
            bound=FAST.deadline_ceiling_seconds + stated_bound_seconds(),
            happened=f"asleep for rounds {slept_from + 1} to {woken_from}, the others' longest gap {gap:.1f} s",
            verdict=swarm.judge(["ann", "ben", "cleo"]),
        )


async def all_start_at_once(folder: Path) -> Seen:
    """A bootstrap peer and three workers are started together, the workers training from the first moment."""
    port = free_port()
    address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{identity('boot').peer}"
    workers = ["ann", "ben", "cleo"]
    async with JudgedSwarm(folder) as swarm:
        swarm.go()
        started = now()
        starting = [asyncio.create_task(swarm.start("boot", "--port", str(port), *FOR_EVER))]
        starting += [asyncio.create_task(swarm.start(n, "--bootstrap", address, *FOR_EVER)) for n in workers]
        while not all(peer.process for peer in swarm.peers.values()) or len(swarm.peers) < 4:
            await asyncio.sleep(0.001)
        spread = now() - started
        await asyncio.gather(*starting)
        begun = now()
        peers = list(swarm.peers.values())
        await until(peers, 10, limit_seconds=LIMIT_SECONDS)
        rounds = [await first_with(swarm, name, seen_by="boot", since=0, is_worker=True) for name in workers]
        return Seen(
            what="from the last one's start to all three workers in commits",
            seconds=max(0.0, swarm.applied_at("boot", max(rounds)) - begun),
            bound=2 * stated_bound_seconds(),
            happened=f"processes started within {spread * 1000:.0f} ms; first in commits {sorted(rounds)}",
            verdict=swarm.judge(workers),
        )


async def bootstrap_returns(folder: Path, *, rounds: RoundSettings = FAST) -> Seen:
    """The only bootstrap peer dies as the tie-breaker of a council of two; the worker goes on alone; it comes back."""
    async with JudgedSwarm(folder) as swarm:
        settings = bounds_of(rounds)
        fate = ["--strike", "SIGKILL", "4", "before plan", "--members", "2"]
        await swarm.start("boot", *FOR_EVER, *settings, *fate)
        await swarm.start("ann", *FOR_EVER, *settings)
        swarm.go()
        note = await swarm.struck("boot")
        await swarm.peers["boot"].ended()
        swarm.peers["boot"].address = ""
        await until([swarm.peers["ann"]], note["round"] + 10, limit_seconds=LIMIT_SECONDS)
        seconds = swarm.applied_at("ann", note["round"]) - note["at"]
        await swarm.start("boot", *FOR_EVER, *settings)
        back_at, since = now(), swarm.head("ann")
        member = await first_with(swarm, "boot", seen_by="ann", since=since)
        await until(list(swarm.peers.values()), member + 3, limit_seconds=LIMIT_SECONDS)
        return Seen(
            what="from the death to the worker's next commit",
            seconds=seconds,
            bound=lone_bound_seconds(rounds),
            happened=f"round {note['round']} {swarm.happened('ann', note['round'])}, "
            f"{num_degraded(swarm, 'ann')} degraded in all; back from its disk, it was a member after "
            f"{swarm.applied_at('ann', member) - back_at:.1f} s",
            verdict=swarm.judge(["ann"]),
        )


async def new_worker_comes(folder: Path, *, rounds: RoundSettings = FAST) -> Seen:
    """The only worker dies for good as the tie-breaker of a council of two; a new one comes to the bootstrap peer."""
    async with JudgedSwarm(folder) as swarm:
        settings = bounds_of(rounds)
        fate = ["--strike", "SIGKILL", "4", "before plan", "--members", "2"]
        await swarm.start("boot", *FOR_EVER, *settings)
        await swarm.start("ann", *FOR_EVER, *settings, *fate)
        swarm.go()
        note = await swarm.struck("ann")
        await swarm.peers["ann"].ended()
        swarm.peers["ann"].address = ""
        await swarm.start("cid", *FOR_EVER, *settings)
        come_at = now()
        await until([swarm.peers["boot"], swarm.peers["cid"]], note["round"] + 10, limit_seconds=LIMIT_SECONDS)
        first = await first_with(swarm, "cid", seen_by="boot", since=0, is_worker=True)
        return Seen(
            what="from the new worker's start to its first commit",
            seconds=swarm.applied_at("boot", first) - come_at,
            bound=lone_bound_seconds(rounds),
            happened=f"round {note['round']} {swarm.happened('boot', note['round'])}, "
            f"{num_degraded(swarm, 'boot')} degraded in all, then {swarm.happened('boot', note['round'] + 10)}",
            verdict=swarm.judge(["cid"]),
        )


async def first_with(swarm: JudgedSwarm, name: str, *, seen_by: str, since: int, is_worker: bool = False) -> int:
    """The first round past `since` that lists the peer, with its work if `is_worker`."""
    round_ = since
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            round_ += 1
            await until([swarm.peers[seen_by]], round_, limit_seconds=LIMIT_SECONDS)
            is_member = swarm.header(seen_by, round_).commit().member(identity(name).peer) is not None
            if is_member and not (is_worker and swarm.missing(seen_by, round_, [name])):
                return round_


def num_degraded(swarm: JudgedSwarm, name: str) -> int:
    return sum(bool(swarm.header(name, round_).degraded) for round_ in range(1, swarm.head(name) + 1))


def bounds_of(rounds: RoundSettings) -> list[str]:
    """struck_peer.py's arguments for settings that differ from FAST in these."""
    names = ("degraded_seconds", "alone_seconds")
    return [word for name in names for word in ("--bound", name, str(getattr(rounds, name)))]


def free_port() -> int:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
        return port
