"""Connections to peers whose addresses are known, made although p2pd puts them off."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from swarm_diloco.errors import PeerUnreachable
from swarm_diloco.network.addresses import parse, usable
from swarm_diloco.network.door import door_to
from swarm_diloco.network.p2p_daemon import Daemon
from swarm_diloco.network.probing import why_silent

MAX_REMEMBERED_PEERS = 4096
PROBE_SECONDS = 3.0  # for one address to take a plain TCP connection
GONE_SECONDS = 2.0  # for p2pd to notice that a connection of its own has ended
LOOK_SECONDS = 0.01  # between two questions whether it has


class Dialler:
    """Remembers addresses and connects to them."""

    def __init__(self, daemon: Daemon, own_peer: str) -> None:
        self._daemon, self._own_peer = daemon, own_peer
        self._places: dict[str, tuple[str, ...]] = {}

    @property
    def known(self) -> Mapping[str, Sequence[str]]:
        """Addresses by peer, the longest known first."""
        return MappingProxyType(self._places)

    def remember(self, peer: str, addresses: Sequence[str]) -> None:
        """Addresses that cannot be parsed are left out; of too many peers the longest known is forgotten."""
        places = tuple(address.place for address in usable(addresses))
        if peer == self._own_peer:
            return
        self._places.pop(peer, None)
        if places:
            self._places[peer] = places
        if len(self._places) > MAX_REMEMBERED_PEERS:
            del self._places[next(iter(self._places))]

    async def connect(self, peer: str) -> None:
        """Open a connection to a remembered peer, unless there is one. Raises PeerUnreachable, also without addresses.

        The caller bounds the wait.
        """
        places = self._places.get(peer, ())
        if not places:
            raise PeerUnreachable(f"no address of {peer} is known")
        try:
            await self._daemon.connect(peer, places)
        except PeerUnreachable:
            answering = await self._answering(places)
            if answering is None:
                raise
            await self._connect_anew(peer, answering)

    async def _answering(self, places: Sequence[str]) -> str | None:
        """The first place that takes a TCP connection."""
        silences = await asyncio.gather(*(why_silent(parse(place), timeout_seconds=PROBE_SECONDS) for place in places))
        return next((place for place, silence in zip(places, silences, strict=True) if silence is None), None)

    async def _connect_anew(self, peer: str, place: str) -> None:
        """By an address that p2pd has not failed at, and then, the delay being cleared, by the real one."""
        async with door_to(parse(place)) as door:
            await self._daemon.connect(peer, [door.place])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GONE_SECONDS):
                while door.place in await self._daemon.connections(peer):  # noqa: ASYNC110 - p2pd gives no event
                    await asyncio.sleep(LOOK_SECONDS)
        await self._daemon.connect(peer, [place])
