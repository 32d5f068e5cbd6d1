"""A DHT that was cut in two, in the network laboratory: how long until everybody finds everybody again.

python dht_cut.py NAME FOLDER LISTEN [INITIAL]        one peer, as announcing apps do it: prints whom it finds
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "rounds"))

from laboratory import HostProcess, Laboratory, Link
from small_swarm import identity
from swarm_diloco.network.hivemind_network import HivemindNetwork

ANNOUNCE_SECONDS = 60.0  # as in the apps
LIFETIME_SECONDS = 180.0
LOOK_UP_SECONDS = 5.0
PORT = 4001
HALVES = (("boot", "ann", "ben", "cleo"), ("dan", "eve", "finn", "gil"))
NAMES = HALVES[0] + HALVES[1]
START_SECONDS, JOIN_SECONDS = 180.0, 600.0


# --- one peer


async def announce(name: str, folder: Path, listen: str, initial: Sequence[str]) -> None:
    folder.mkdir()
    own = identity(name)
    own.save(folder / "identity.key")
    async with HivemindNetwork.start(
        own,
        folder / "identity.key",
        run_id=bytes(32),
        runtime_folder=folder / "run",
        listen=[listen],
        initial_peers=initial,
        client_mode=False,
    ) as network:
        record = json.dumps({"name": name, "addresses": list(network.addresses())}).encode()
        announced_at = float("-inf")
        while True:
            if time.monotonic() >= announced_at + ANNOUNCE_SECONDS:
                announced_at = time.monotonic()
                await network.announce(record, lifetime_seconds=LIFETIME_SECONDS)
            found = {peer: json.loads(data) for peer, data in (await network.discover()).items()}
            for peer, told in found.items():
                network.remember(peer, told["addresses"])
            names = sorted(told["name"] for told in found.values())
            print(json.dumps({"at": time.monotonic(), "found": names}), flush=True)
            await asyncio.sleep(LOOK_UP_SECONDS)


# --- the schedule


@dataclass(frozen=True, kw_only=True)
class Joined:
    found_in_halves: int  # whom a peer found at the end of the cut, at most
    seconds: float  # from the mending until every peer has found every other


async def cut_in_halves(folder: Path, *, seconds: float) -> Joined:
    first = f"/ip4/{{}}/tcp/{PORT}/p2p/{identity(NAMES[0]).peer}"
    with Laboratory({name: Link(delay_seconds=0.02) for name in NAMES}, folder=folder) as laboratory:
        processes: dict[str, HostProcess] = {}
        for name in NAMES:
            listen = f"/ip4/{laboratory.address(name)}/tcp/{PORT}"
            initial = [first.format(laboratory.address(NAMES[0]))] if processes else []
            program = [sys.executable, str(Path(__file__)), name, str(folder / name), listen, *initial]
            processes[name] = laboratory.start(name, *program, OMP_NUM_THREADS="1")
            await until_all_find(processes, len(processes), since=0.0, limit_seconds=START_SECONDS)
        laboratory.partition(*HALVES)
        await asyncio.sleep(seconds)
        mended_at = time.monotonic()
        in_halves = max(len(found(process)[-1]["found"]) for process in processes.values())
        laboratory.partition()
        await until_all_find(processes, len(NAMES), since=mended_at, limit_seconds=JOIN_SECONDS)
        return Joined(found_in_halves=in_halves, seconds=time.monotonic() - mended_at)


def found(process: HostProcess) -> list[dict[str, object]]:
    lines = process.text().split("\n")[:-1]
    with contextlib.suppress(ValueError):  # what is no look-up is a traceback
        return [json.loads(line) for line in lines if line.startswith("{")]
    return []


async def until_all_find(processes: dict[str, HostProcess], count: int, *, since: float, limit_seconds: float) -> None:
    """Every peer, all of `count`, in a look-up of its own that ended after `since`."""
    async with asyncio.timeout(limit_seconds):
        for name, process in processes.items():
            while not any(line["at"] > since and len(line["found"]) == count for line in found(process)):  # type: ignore[operator, arg-type]
                if process.status is not None:
                    raise AssertionError(f"{name} ended with {process.status}: {process.text()[-1000:]}")
                await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(announce(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
