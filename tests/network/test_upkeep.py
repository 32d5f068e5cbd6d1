"""Whom a peer meets to keep its DHT table whole, and what does not stop it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from swarm_diloco.errors import NetworkError, PeerUnreachable
from swarm_diloco.network.simulated_network import SimulatedWorld, run_virtual
from swarm_diloco.network.upkeep import Upkeep

INTERVAL_SECONDS = 60.0


class Table:
    """In the place of a Directory and of a Dialler."""

    def __init__(self, known: list[str], dead: set[str] | None = None) -> None:
        self.known = dict.fromkeys(known, ("/ip4/203.0.113.7/tcp/1",))
        self.dead = dead or set()
        self.table: set[str] = set()
        self.met: list[str] = []
        self.num_refreshed = 0

    async def connect(self, peer: str) -> None:
        if peer in self.dead:
            raise PeerUnreachable(peer)

    def knows(self, peer: str) -> bool:
        return peer in self.table

    async def meet(self, peer: str) -> bool:
        self.met.append(peer)
        if peer not in self.dead and not peer.startswith("client"):
            self.table.add(peer)
        return peer in self.table

    async def refresh(self) -> None:
        self.num_refreshed += 1


def in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def in_world(_world: SimulatedWorld) -> None:
        await scenario()

    run_virtual(in_world, seed=1)


def upkeep_of(table: Table, initial: list[str]) -> Upkeep:
    return Upkeep(table, table, initial, INTERVAL_SECONDS)  # type: ignore[arg-type]


def test_each_time_one_initial_and_two_remembered_peers_are_met() -> None:
    async def scenario() -> None:
        table = Table([f"peer {number}" for number in range(20)])
        upkeep = upkeep_of(table, ["boot 1", "boot 2"])
        for _ in range(30):
            table.met = []
            await upkeep.once()
            assert 2 <= len(table.met) <= 3
            assert len({peer for peer in table.met if peer.startswith("boot")}) == 1
        assert table.num_refreshed == 30

    in_virtual_time(scenario)


def test_strangers_are_met_before_acquaintances_so_all_are_met_in_time() -> None:
    async def scenario() -> None:
        table = Table([f"peer {number}" for number in range(20)])
        upkeep = upkeep_of(table, [])
        for _ in range(20):
            await upkeep.once()
        assert table.table == set(table.known)

    in_virtual_time(scenario)


def test_dead_peers_keep_nobody_from_being_met() -> None:
    async def scenario() -> None:
        peers = [f"peer {number}" for number in range(10)]
        table = Table(peers, dead=set(peers[:9]))
        upkeep = upkeep_of(table, ["peer 0"])
        while "peer 9" not in table.table:
            await upkeep.once()

    in_virtual_time(scenario)


def test_it_goes_on_for_ever_also_when_nothing_answers_and_ends_when_told() -> None:
    async def scenario() -> None:
        table = Table(["peer"], dead={"peer"})

        async def broken(_peer: str) -> bool:
            raise NetworkError("p2pd has ended")

        table.meet = broken  # type: ignore[method-assign]
        task = asyncio.create_task(upkeep_of(table, []).run())
        await asyncio.sleep(10.5 * INTERVAL_SECONDS)
        assert table.num_refreshed == 10
        task.cancel()

    in_virtual_time(scenario)


def test_whoever_is_spoken_with_is_met_once_a_minute_at_most_and_not_if_known() -> None:
    async def scenario() -> None:
        table = Table([])
        table.table.add("known")
        upkeep = upkeep_of(table, [])
        for _ in range(100):
            for peer in ("known", "new", "client"):
                upkeep.spoke_with(peer)
            await asyncio.sleep(1.0)
        assert table.met == ["new", "client", "client"]
        upkeep.close()

    in_virtual_time(scenario)
