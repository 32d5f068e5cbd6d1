"""Keeping a DHT table whole: whoever is spoken with belongs in it, and once a minute old acquaintances are asked.

hivemind forgets a peer that did not answer once, and never dials it again. So after a cut both sides stay apart unless
somebody remembers the others' addresses and asks.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence

from swarm_diloco.errors import NetworkError
from swarm_diloco.network.dialling import Dialler
from swarm_diloco.network.directory import Directory

UPKEEP_SECONDS = 60.0
MEET_SECONDS = 8.0  # for one peer: to connect and to answer
MAX_NOTED_PEERS = 4096


class Upkeep:
    """Use `run` as a task; `spoke_with` may be called at any time until `close`."""

    def __init__(
        self, dialler: Dialler, directory: Directory, initial: Sequence[str], interval_seconds: float = UPKEEP_SECONDS
    ) -> None:
        """`initial`: the peers whom we were told of when we started, one of whom is always asked."""
        self._dialler, self._directory, self._initial = dialler, directory, list(dict.fromkeys(initial))
        self._interval_seconds = interval_seconds
        self._noted: dict[str, float] = {}  # peer -> not before: a client is never in a table, however often it is met
        self._meetings: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            await self.once()

    async def once(self) -> None:
        """Meet one initial and two remembered peers, one a stranger to the table; then search for neighbours."""
        chosen = random.sample(self._initial, min(1, len(self._initial)))
        others = [peer for peer in self._dialler.known if peer not in chosen]
        strangers = [peer for peer in others if not self._directory.knows(peer)]
        for candidates in (strangers, others):
            chosen += random.sample(candidates, min(1, len(candidates)))
        await asyncio.gather(*map(self._meet, dict.fromkeys(chosen)))
        await self._directory.refresh()

    def spoke_with(self, peer: str) -> None:
        """There is a connection to this peer: meet it soon, if the table does not hold it."""
        now = asyncio.get_running_loop().time()
        if self._directory.knows(peer) or now < self._noted.get(peer, now):
            return
        self._noted.pop(peer, None)
        self._noted[peer] = now + self._interval_seconds
        if len(self._noted) > MAX_NOTED_PEERS:
            del self._noted[next(iter(self._noted))]
        task = asyncio.get_running_loop().create_task(self._meet(peer))
        self._meetings.add(task)
        task.add_done_callback(self._meetings.discard)

    async def _meet(self, peer: str) -> None:
        with contextlib.suppress(TimeoutError, NetworkError):
            async with asyncio.timeout(MEET_SECONDS):
                with contextlib.suppress(NetworkError):  # without an address, there may be a connection all the same
                    await self._dialler.connect(peer)
                await self._directory.meet(peer)

    def close(self) -> None:
        for task in self._meetings:
            task.cancel()
