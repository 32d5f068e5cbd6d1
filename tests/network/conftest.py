"""Three connected peers, once in virtual time and once over hivemind on loopback, for the contract that both keep."""

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from network.hivemind_peers import daemons
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Network
from swarm_diloco.network.simulated_network import SimulatedWorld, run_virtual

PROTOCOL_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Swarm:
    """Alice, Bob and Carol know each other; `protocol` is a name that nobody serves yet."""

    alice: Network
    bob: Network
    carol: Network
    protocol: str


Scenario = Callable[[Swarm], Awaitable[Any]]


@pytest.fixture(params=["simulated", pytest.param("hivemind", marks=pytest.mark.swarm)])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], Any]:
    """Runs a scenario over one of the two implementations, and returns its result."""
    protocol = f"test.{next(PROTOCOL_NUMBERS)}"
    if request.param == "simulated":

        async def in_world(world: SimulatedWorld, scenario: Scenario) -> Any:
            return await scenario(Swarm(*(world.network(Identity.generate()) for _ in range(3)), protocol))

        return lambda scenario: run_virtual(lambda world: in_world(world, scenario), seed=1)
    runner, networks = request.getfixturevalue("hivemind_peers")
    return lambda scenario: runner.run(scenario(Swarm(*networks, protocol)))


@pytest.fixture(scope="session")
def hivemind_peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, list[Network]]]:
    """Three real networks that live as long as the session, and the loop on which they run."""
    from contextlib import AsyncExitStack

    from swarm_diloco.network.hivemind_network import HivemindNetwork

    folder = tmp_path_factory.mktemp("peers")

    async def start(stack: AsyncExitStack) -> list[Network]:
        networks: list[Network] = []
        known: list[str] = []
        for name in ("alice", "bob", "carol"):
            identity = Identity.generate()
            identity.save(folder / f"{name}.key")
            network = await stack.enter_async_context(
                HivemindNetwork.start(
                    identity,
                    folder / f"{name}.key",
                    run_id=bytes(32),
                    runtime_folder=Path(folder / name),
                    listen=["/ip4/127.0.0.1/tcp/0"],
                    initial_peers=known,
                    client_mode=False,
                )
            )
            networks.append(network)
            known = [f"{address}/p2p/{networks[0].peer}" for address in networks[0].addresses()]
        return networks

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        networks = runner.run(start(stack))
        try:
            yield runner, networks
        finally:
            runner.run(stack.aclose())


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """After the test no p2pd more than before runs, and no socket lies in the runtime folder."""
    before = {child.pid for child in daemons()}
    yield
    assert {child.pid for child in daemons()} <= before
    assert list((tmp_path / "run").glob("*")) == []


@pytest.fixture
def refusing_port() -> Iterator[int]:
    """A port that is ours and at which nothing listens."""
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        yield owner.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
