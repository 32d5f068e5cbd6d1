"""The run's DHT at this peer: hivemind's node, with the faults of its table and its searches worked around.

A node that did not answer once is dropped from a table and never asked again, so that after a cut of a minute the two
sides stay apart (measured); one ping across joins them. `meet` is that ping.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import islice
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID
from hivemind.proto import dht_pb2

from swarm_diloco.network.discovery import MAX_SUBKEYS, OwnersOnly, record_key, record_keys
from swarm_diloco.network.record_storage import RecordStorage, dictionary_of

ANSWER_SECONDS = 3.0  # for one request to one peer
BAN_SECONDS = 5.0  # searches leave out who did not answer for so long, as waiting again would hold them up

Find = Callable[[Any, Collection[Any]], Awaitable[Any]]


class Directory:
    """Use it through `start`."""

    def __init__(self, node: Any, run_id: bytes) -> None:
        self._node, self._run_id = node, run_id

    @classmethod
    async def start(cls, p2p: Any, run_id: bytes, validator: OwnersOnly, *, client_mode: bool) -> "Directory":
        """A node that knows nobody yet. `p2p` is a hivemind.P2P; a client serves nobody and is in nobody's table."""
        node = await DHTNode.create(
            p2p,
            wait_timeout=ANSWER_SECONDS,
            client_mode=client_mode,
            cache_locally=False,  # else a look-up gives for minutes what it gave the first time
            cache_nearest=0,
            cache_on_store=False,
            cache_refresh_before_expiry=0,
            reuse_get_requests=False,
            blacklist_time=BAN_SECONDS,
            backoff_rate=1.0,  # doubling would keep who was away for a while out for hours
            record_validator=validator,
            refresh_timeout=None,  # hivemind's own raises TypeError; `refresh` is ours
        )
        node.protocol.storage = node.protocol.cache = RecordStorage()
        node.protocol.call_find = _checked(node.protocol.call_find)
        node.protocol._validate_dictionary = _bounded(node.protocol._validate_dictionary)
        return cls(node, run_id)

    @property
    def num_known(self) -> int:
        """Nodes in the table."""
        return len(self._node.protocol.routing_table.uid_to_peer_id)

    def knows(self, peer: str) -> bool:
        return PeerID.from_base58(peer) in self._node.protocol.routing_table

    async def meet(self, peer: str) -> bool:
        """Ping a peer, so that each is in the other's table; False if it does not answer as a DHT node."""
        peer_id = PeerID.from_base58(peer)
        node_id = await self._node.protocol.call_ping(peer_id)
        if node_id is None:
            return False
        await self._node.protocol.update_routing_table(node_id, peer_id)  # hivemind leaves it to a task of some time
        self._node.blacklist.register_success(peer_id)  # else the next searches leave it out
        return True

    async def refresh(self) -> None:
        """Search for this node's own neighbours, and so fill the table from those that are in it."""
        await self._node.find_nearest_nodes([self._node.node_id, DHTID.generate()])

    async def clock_offset(self, peer: str) -> float | None:
        """The peer's clock minus ours, in seconds, less what the way there may explain; None if it does not tell."""
        asked_at = time.time()
        try:
            stub = self._node.protocol.get_stub(PeerID.from_base58(peer))
            answer = await stub.rpc_ping(dht_pb2.PingRequest(validate=False), timeout=ANSWER_SECONDS)
        except Exception:  # hivemind gives whatever the peer's handler raised; who does not tell the time is not asked
            return None
        told: float = answer.dht_time
        return told - min(max(told, asked_at), time.time()) if told else None

    async def publish(self, peer: str, record: bytes, expires_at: float) -> None:
        """Store our record. hivemind's word for its success is worth nothing: it says the same with p2pd dead."""
        await self._node.store(record_key(self._run_id, peer), record, expires_at, subkey=peer)

    async def look_up(self, timeout_seconds: float) -> dict[str, bytes]:
        """All records of the run that are found in time, by their owners, the newest of each."""
        futures = await self._node.get_many(
            record_keys(self._run_id), sufficient_expiration_time=float("inf"), return_futures=True
        )  # without infinity (`latest`) an older record was still found 30 s later
        await asyncio.wait(futures.values(), timeout=timeout_seconds)
        found: dict[str, bytes] = {}
        for future in futures.values():
            answer = future.result() if future.done() and not future.cancelled() else None
            future.cancel()
            if answer is not None:
                found |= {peer: entry.value for peer, entry in answer.value.items()}  # OwnersOnly has checked the types
        return found

    def close(self) -> None:
        self._node.is_alive = False  # its shutdown asks p2pd, which is ended anyhow, and may wait for ever


def _checked(find: Find) -> Find:
    """A search that no answer can break or end: hivemind compares sizes and times that the answer states.

    With a time of infinity it takes the first answer for the last, with a size that is no number it fails.
    """

    async def checked_find(peer: Any, keys: Collection[Any]) -> Mapping[Any, Any] | None:
        answer = await find(peer, keys)
        if answer is None:
            return None
        most = 20  # hivemind's bucket size: so many neighbours are told by an honest node
        return {key: (_own(value), dict(islice(near.items(), most))) for key, (value, near) in answer.items()}

    return checked_find


def _own(found: Any) -> Any:
    """The records of an answer, all validated, in a dictionary of our own; None if there are none."""
    if found is None or not isinstance(found.value, DictionaryDHTValue) or not found.value.data:
        return None
    return dictionary_of((subkey, tuple(entry)) for subkey, entry in found.value.data.items())


def _bounded(validate: Callable[[bytes, Any], bool]) -> Callable[[bytes, Any], bool]:
    """Signatures are checked of no more records than anybody keeps."""

    def validate_bounded(key: bytes, dictionary: Any) -> bool:
        return (
            isinstance(dictionary, DictionaryDHTValue)
            and len(dictionary.data) <= MAX_SUBKEYS
            and validate(key, dictionary)
        )

    return validate_bounded
