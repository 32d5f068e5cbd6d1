"""Real networks on loopback for tests, and a peer in a process of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Network

WAIT_SECONDS = 60.0
PEER_PROGRAM = """
import asyncio, sys
from pathlib import Path
from swarm_diloco.network.hivemind_network import HivemindNetwork
from swarm_diloco.network.identity import Identity

async def mute(stream):
    await asyncio.Event().wait()

async def main():
    path = Path(sys.argv[1])
    async with HivemindNetwork.start(
        Identity.load(path / "key"), path / "key", run_id=bytes(32), runtime_folder=path / "run",
        listen=["/ip4/127.0.0.1/tcp/0"], client_mode=False,
    ) as network:
        await network.serve("mute", mute)
        print(f"{network.addresses()[0]}/p2p/{network.peer}", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def network_in(folder: Path, **settings: Any) -> AsyncIterator[Any]:
    """A network with a new identity, listening at any port of loopback unless told otherwise."""
    from swarm_diloco.network.hivemind_network import HivemindNetwork

    identity = Identity.generate()
    identity.save(folder / f"{identity.peer}.key")
    settings = {"listen": ["/ip4/127.0.0.1/tcp/0"], "client_mode": False, "run_id": bytes(32)} | settings
    settings.setdefault("runtime_folder", folder / "run")
    async with HivemindNetwork.start(identity, folder / f"{identity.peer}.key", **settings) as network:
        yield network


def address_of(network: Network) -> str:
    return f"{network.addresses()[0]}/p2p/{network.peer}"


def daemons() -> list[psutil.Process]:
    """Our p2pd processes that run."""
    return [child for child in psutil.Process().children(recursive=True) if child.name() == "p2pd"]
