"""hivemind's DHT nodes in one process, no network between them: what a P2P object carries, handed over in memory."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from hivemind.p2p.p2p_daemon import P2PContext
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID

from swarm_diloco.network.directory import Directory
from swarm_diloco.network.discovery import OwnersOnly
from swarm_diloco.network.identity import Identity

RUN_ID = bytes(range(32))
Handler = Callable[[Any, P2PContext], Awaitable[Any]]


class Bus:
    """Carries requests between the nodes on it, unless one is dead or a cut lies between."""

    def __init__(self) -> None:
        self.nodes: dict[Any, BusNode] = {}
        self._sides: dict[str, int] = {}

    def cut(self, side: Collection[str]) -> None:
        """Between these peers and all others nothing passes."""
        self._sides = dict.fromkeys(side, 1)

    def mend(self) -> None:
        self._sides = {}

    def reach(self, here: str, there: Any) -> "BusNode":
        node = self.nodes.get(there)
        if node is None or node.is_dead or self._sides.get(here) != self._sides.get(node.peer):
            raise ConnectionError("nobody answers")
        return node


class BusNode:
    """In the place of a hivemind.P2P."""

    def __init__(self, bus: Bus, peer: str) -> None:
        self.peer, self.peer_id = peer, PeerID.from_base58(peer)
        self.is_dead = False
        self._bus = bus
        self._handlers: dict[str, tuple[Handler, Any]] = {}
        bus.nodes[self.peer_id] = self

    async def add_protobuf_handler(self, name: str, handler: Handler, input_type: Any, **_: Any) -> None:
        self._handlers[name] = handler, input_type

    async def call_protobuf_handler(self, peer_id: Any, name: str, request: Any, output_type: Any) -> Any:
        await asyncio.sleep(0)
        there = self._bus.reach(self.peer, peer_id)
        if name not in there._handlers:
            raise ConnectionError("a client")
        handler, input_type = there._handlers[name]
        context = P2PContext(handle_name=name, local_id=peer_id, remote_id=self.peer_id)
        answer = await handler(input_type.FromString(request.SerializeToString()), context)
        self._bus.reach(self.peer, peer_id)
        return output_type.FromString(answer.SerializeToString())


class Peer:
    """One peer's directory on the bus."""

    def __init__(self, node: BusNode, directory: Directory) -> None:
        self.node, self.directory, self.peer = node, directory, node.peer

    @classmethod
    async def start(cls, bus: Bus, number: int, *, client_mode: bool = False) -> "Peer":
        identity = Identity.from_seed(number.to_bytes(32, "big"))
        node = BusNode(bus, identity.peer)
        validator = OwnersOnly(identity, RUN_ID)
        return cls(node, await Directory.start(node, RUN_ID, validator, client_mode=client_mode))

    @property
    def storage(self) -> Any:
        return self.directory._node.protocol.storage

    async def seen(self) -> dict[str, bytes]:
        return await self.directory.look_up(30.0)


async def swarm_of(bus: Bus, num_peers: int) -> list[Peer]:
    """Peers that came one after the other, each by way of the first."""
    peers = [await Peer.start(bus, number + 1) for number in range(num_peers)]
    for peer in peers[1:]:
        assert await peer.directory.meet(peers[0].peer)
        await peer.directory.refresh()
    return peers
