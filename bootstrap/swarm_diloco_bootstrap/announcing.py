"""Being found, and finding: this peer's record in the DHT, and the others' records, once a minute."""

import asyncio
from contextlib import suppress
from importlib.metadata import version

from swarm_diloco.errors import DiskError
from swarm_diloco.network.addresses import invite_addresses
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Network
from swarm_diloco.network.peer_record import PeerRecord, Role
from swarm_diloco.rounds.follower import Applied, Follower
from swarm_diloco_bootstrap.address_book import AddressBook

ANNOUNCE_SECONDS = 60.0
LOOK_UP_SECONDS = 5.0  # at least, between two look-ups
LIFETIME_SECONDS = 180.0  # two announcements may be lost
FAREWELL_SECONDS = 2.0


class Announcer:
    """Publishes until cancelled. Rounds do not depend on it: with the DHT dead, they go on."""

    def __init__(
        self,
        network: Network,
        identity: Identity,
        follower: Follower,
        book: AddressBook,
        *,
        role: Role,
        is_reachable: bool,
    ) -> None:
        self._network, self._identity, self._log, self._book = network, identity, follower.log, book
        self._role, self._is_reachable = role, is_reachable
        self._stranger_came = asyncio.Event()
        follower.subscribe(self._on_applied)

    async def run(self) -> None:
        while True:
            await self._network.announce(self._record(is_leaving=False), lifetime_seconds=LIFETIME_SECONDS)
            await self._look_up()
            with suppress(TimeoutError):
                async with asyncio.timeout(ANNOUNCE_SECONDS):
                    while True:
                        await asyncio.sleep(LOOK_UP_SECONDS)
                        await self._stranger_came.wait()
                        await self._look_up()

    async def _look_up(self) -> None:
        """Learn the others' addresses, and keep them: after a restart this peer may be the one that has to dial."""
        self._stranger_came.clear()
        found = await self._network.discover()
        with suppress(DiskError):
            self._book.add(data for peer, data in found.items() if peer != self._network.peer)
        self._book.make_known(self._network)

    def _on_applied(self, applied: Applied) -> None:
        """A member that can be dialled and whose address is not known yet is looked up soon."""
        members = {member.peer for member in applied.commit.members if member.reachable}
        if members - self._book.records.keys() - {self._network.peer}:
            self._stranger_came.set()

    async def leave(self) -> None:
        """Say that we leave on purpose, if it can be said quickly."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._network.announce(self._record(is_leaving=True), lifetime_seconds=LIFETIME_SECONDS)

    def _record(self, *, is_leaving: bool) -> bytes:
        addresses = invite_addresses(self._network.addresses()) if self._is_reachable else []
        return PeerRecord(
            run_id=self._log.rules.run_id,
            peer=self._identity.peer,
            role=self._role,
            is_leaving=is_leaving,
            round=self._log.head.round,
            digest=self._log.head.digest,
            addresses=tuple(addresses),
            client_version=version("swarm-diloco"),
            issued_at_ms=self._network.wall_milliseconds(),
        ).signed(self._identity)
