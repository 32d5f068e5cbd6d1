"""A whole swarm's network in one process and in virtual time: latency, bandwidth, loss, NAT, crashes, cuts.

    async def scenario(world: SimulatedWorld) -> None:
        alice = world.network(Identity.generate(), LinkSettings(latency_seconds=0.03))
        ...

    run_virtual(scenario, seed=1)

Everything follows from the seed and the order of calls. What a peer's *program* does is the caller's business: a crash
or a freeze stops only what the peer does on the network.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from swarm_diloco.errors import PeerUnreachable
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.simulated_peer import LinkSettings, SimulatedNetwork
from swarm_diloco.network.simulated_stream import Direction
from swarm_diloco.network.virtual_time import VirtualTimeLoop

__all__ = ["LinkSettings", "SimulatedNetwork", "SimulatedWorld", "VirtualTimeLoop", "run_virtual"]

T = TypeVar("T")

RETRANSMISSION_SECONDS = 0.2  # Linux's least retransmission timeout
CUT_BREAKS_SECONDS = 40.0  # yamux sends a keep-alive each 30 s and gives up after 10 s
HEAL_SECONDS = 1.0  # within which a healed path's senders have tried again
DEFAULT_LINK = LinkSettings()


class SimulatedWorld:
    """All peers and the paths between them. Use it on a VirtualTimeLoop, within `run_virtual`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a simulation's chance is to be repeated
        self.networks: dict[str, SimulatedNetwork] = {}
        self.discovery_works = True  # False: nothing is published or found
        self._dark: dict[str, None] = {}  # crashed without a word: dials get no answer
        self._groups: dict[str, int] = {}
        self._num_cuts = 0
        self._records: dict[str, tuple[SimulatedNetwork, bytes, float]] = {}  # author, record, until
        self._changed = asyncio.Event()

    def network(self, identity: Identity, link: LinkSettings = DEFAULT_LINK) -> SimulatedNetwork:
        """A new peer, reachable at once. Its `link` may be replaced later."""
        if identity.peer in self.networks:
            raise ValueError(f"{identity.peer} is there already")
        return self._start(identity.peer, link)

    def _start(self, peer: str, link: LinkSettings) -> SimulatedNetwork:
        network = SimulatedNetwork(self, peer, link, len(self.networks) + 1)
        self.networks[peer] = network
        return network

    def crash(self, peer: str, *, silently: bool = False, flushes: bool = False) -> None:
        """The peer's process is gone: what it sent last is lost, its streams break, dials are refused.

        `silently`: its machine is gone. Streams do not end, and dials get no answer.
        `flushes`: what its machine has taken from it still goes out, and then the streams' end.
        """
        if silently:
            self._dark[peer] = None
        self.networks[peer].stop(silently=silently, drop=not flushes)

    def restart(self, peer: str) -> SimulatedNetwork:
        """A new network of a peer that crashed or closed; the old one stays closed."""
        old = self.networks[peer]
        if not old.closed:
            raise ValueError(f"{peer} is running")
        self._dark.pop(peer, None)
        network = self._start(peer, old.link)
        self._change()
        return network

    def freeze(self, peer: str) -> None:
        """The peer's process is stopped (SIGSTOP, sleep): it reads and sends nothing, and its deadlines run on."""
        self.networks[peer].freeze()

    def thaw(self, peer: str) -> None:
        self.networks[peer].thaw()
        self._change()

    def partition(self, *groups: Collection[str]) -> None:
        """Cut all paths between groups; peers named in none form one more. Bytes wait, streams break after 40 s."""
        self._groups = {peer: number for number, group in enumerate(groups) for peer in group}
        self._num_cuts += 1
        asyncio.get_running_loop().call_later(CUT_BREAKS_SECONDS, self._break_cut_streams, self._num_cuts)
        self._resume_healed_streams()

    def heal(self) -> None:
        self._groups = {}
        self._num_cuts += 1
        self._resume_healed_streams()

    def _break_cut_streams(self, cut: int) -> None:
        if cut != self._num_cuts:
            return
        for network in self.networks.values():
            for other in self.networks.values():
                if not self._connected(network, other):
                    network.disconnect(other)
            for stream, there in network.streams():
                if not self._connected(network, there):
                    stream.break_("nothing came through any more", drop=True, silently=True)

    def _resume_healed_streams(self) -> None:
        loop = asyncio.get_running_loop()
        for network in self.networks.values():
            for stream, there in network.streams():
                if stream.outgoing.held and self._connected(network, there):
                    wait_seconds = self.random.uniform(0, HEAL_SECONDS)
                    loop.call_later(wait_seconds, self._land_held, network, there, stream.outgoing)
        self._change()

    def _land_held(self, here: SimulatedNetwork, there: SimulatedNetwork, way: Direction) -> None:
        while way.held and self._connected(here, there):
            way.held.popleft()()

    def _connected(self, here: SimulatedNetwork, there: SimulatedNetwork) -> bool:
        return self._groups.get(here.peer) == self._groups.get(there.peer)

    def _change(self) -> None:
        self._changed.set()

    async def travel(self, here: SimulatedNetwork, peer: str, legs: int) -> SimulatedNetwork:
        """Be on the way to `peer` for so many one-way trips, and while it cannot answer. Raises PeerUnreachable."""
        there = self.networks.get(peer)
        if there is None:
            await asyncio.sleep(legs * here.link.latency_seconds)
            raise PeerUnreachable(f"nobody knows {peer}")
        await asyncio.sleep(sum(self.delay(here, there) for _ in range(legs)))
        while True:
            there = self.networks[peer]
            if there.closed and peer not in self._dark:
                raise PeerUnreachable(f"{peer} refused the connection")
            if self._connected(here, there) and not there.closed and not there.frozen:
                return there
            self._changed.clear()
            await self._changed.wait()

    def delay(self, here: SimulatedNetwork, there: SimulatedNetwork) -> float:
        seconds = here.link.latency_seconds + there.link.latency_seconds
        jitter_seconds = here.link.jitter_seconds + there.link.jitter_seconds
        if jitter_seconds:
            seconds += self.random.uniform(0, jitter_seconds)
        loss_fraction = max(here.link.loss_fraction, there.link.loss_fraction)
        wait_seconds = RETRANSMISSION_SECONDS
        while loss_fraction and self.random.random() < loss_fraction:
            seconds += wait_seconds
            wait_seconds *= 2
        return seconds

    def reach(self, here: SimulatedNetwork, there: SimulatedNetwork, way: Direction, land: Callable[[], None]) -> None:
        if way.held or not self._connected(here, there):
            way.held.append(land)
        else:
            land()

    async def publish(self, here: SimulatedNetwork, record: bytes, lifetime_seconds: float) -> None:
        await asyncio.sleep(4 * here.link.latency_seconds)
        if self.discovery_works:
            self._records[here.peer] = (here, record, asyncio.get_running_loop().time() + lifetime_seconds)

    async def published(self, here: SimulatedNetwork) -> Mapping[str, bytes]:
        await asyncio.sleep(4 * here.link.latency_seconds)
        now = asyncio.get_running_loop().time()
        if not self.discovery_works:
            return {}
        return {
            author.peer: record
            for author, record, until in self._records.values()
            if until > now and self._connected(here, author)
        }


def run_virtual(
    scenario: Callable[[SimulatedWorld], Coroutine[Any, Any, T]], seed: int, *, limit_seconds: float = 30 * 86400
) -> T:
    """Run `scenario` in a new world, and return its result. Tasks that it leaves are cancelled.

    Raises what the scenario raises; TimeoutError when it takes more virtual time than `limit_seconds`, RuntimeError
    when nothing can go on; and else the first error in a handler or a forgotten task that is our own mistake.
    """
    failures: list[BaseException] = []

    def note_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(context.get("exception") or RuntimeError(context["message"]))

    async def in_new_world() -> T:
        return await scenario(SimulatedWorld(seed))

    with asyncio.Runner(loop_factory=partial(VirtualTimeLoop, limit_seconds)) as runner:
        runner.get_loop().set_exception_handler(note_failure)
        result = runner.run(in_new_world())
    if failures:
        raise failures[0]
    return result
