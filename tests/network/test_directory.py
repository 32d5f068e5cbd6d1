"""Records in the DHT of hivemind's nodes: read after holders die, after cuts, and beside peers that lie."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils.timed_storage import ValueWithExpiration

from network.message_bus import RUN_ID, Bus, Peer, swarm_of
from swarm_diloco.network.discovery import MAX_SUBKEYS, record_key
from swarm_diloco.network.record_storage import RecordStorage

SOON = 60.0  # seconds for a record to live


def holders_of(peers: list[Peer], owner: str) -> list[Peer]:
    return [peer for peer in peers if any(owner in found.value.data for _, found in peer.storage.items())]


async def publish(peer: Peer, record: bytes, *, lifetime_seconds: float = SOON) -> None:
    await peer.directory.publish(peer.peer, record, time.time() + lifetime_seconds)


@pytest.mark.parametrize("num_peers", [10, 30])
async def test_a_record_is_read_while_one_that_holds_it_lives(num_peers: int) -> None:
    bus = Bus()
    peers = await swarm_of(bus, num_peers)
    await publish(peers[3], b"record")
    holders = holders_of(peers, peers[3].peer)
    assert len(holders) >= 5
    last = next(peer for peer in holders if peer is not peers[3])
    for holder in holders:
        holder.node.is_dead = holder is not last and holder is not peers[3]
    alive = [peer for peer in peers if not peer.node.is_dead]
    for reader in alive:
        assert await reader.seen() == {peers[3].peer: b"record"}


@pytest.mark.parametrize("num_peers", [10, 30])
async def test_a_record_that_all_holders_took_along_is_there_again_after_the_next_announcement(num_peers: int) -> None:
    bus = Bus()
    peers = await swarm_of(bus, num_peers)
    author = peers[3]
    await publish(author, b"record")
    for holder in holders_of(peers, author.peer):
        holder.node.is_dead = holder is not author
    await publish(author, b"again", lifetime_seconds=SOON + 1)
    for reader in peers:
        if not reader.node.is_dead:
            assert await reader.seen() == {author.peer: b"again"}


async def test_all_peers_of_a_swarm_are_found_by_all() -> None:
    peers = await swarm_of(Bus(), 30)
    for peer in peers:
        await publish(peer, peer.peer.encode())
    everybody = {peer.peer: peer.peer.encode() for peer in peers}
    for peer in peers[::7]:
        assert await peer.seen() == everybody


async def test_the_newer_record_is_read_from_whichever_replica_has_it() -> None:
    """Half of the holders were away when it was written."""
    bus = Bus()
    peers = await swarm_of(bus, 10)
    author = peers[0]
    await publish(author, b"old")
    away = [peer for peer in holders_of(peers, author.peer) if peer is not author][:3]
    for peer in away:
        peer.node.is_dead = True
    await publish(author, b"new", lifetime_seconds=SOON + 1)
    for peer in away:
        peer.node.is_dead = False
    for reader in peers:
        for peer in peers:
            if peer is not reader:
                await reader.directory.meet(peer.peer)
        assert await reader.seen() == {author.peer: b"new"}


async def test_a_client_reads_and_publishes_and_is_in_nobodys_table() -> None:
    bus = Bus()
    peers = await swarm_of(bus, 5)
    client = await Peer.start(bus, 99, client_mode=True)
    assert await client.directory.meet(peers[0].peer)
    await client.directory.refresh()
    await publish(peers[1], b"one")
    await publish(client, b"from a client")
    for reader in (client, *peers):
        assert await reader.seen() == {peers[1].peer: b"one", client.peer: b"from a client"}
    assert not any(peer.directory.knows(client.peer) for peer in peers)
    assert not await peers[0].directory.meet(client.peer)


# --- cuts


@pytest.mark.parametrize(("one_side", "other_side"), [(5, 5), (2, 8), (10, 10)])
async def test_two_sides_that_forgot_each_other_are_one_table_after_one_meeting(one_side: int, other_side: int) -> None:
    bus = Bus()
    peers = await swarm_of(bus, one_side + other_side)
    here, there = peers[:one_side], peers[one_side:]
    bus.cut([peer.peer for peer in here])
    await until_forgotten(here, there)
    bus.mend()
    for peer in peers:
        await publish(peer, peer.peer.encode())
    assert await here[-1].seen() == {peer.peer: peer.peer.encode() for peer in here}, "hivemind heals by itself"
    assert await here[0].directory.meet(there[0].peer)
    for peer in peers:  # as each of them does once a minute
        peer.directory._node.blacklist.clear()  # by then it has passed
        await peer.directory.refresh()
        await publish(peer, peer.peer.encode(), lifetime_seconds=SOON + 1)
    for peer in peers:
        assert await peer.seen() == {peer.peer: peer.peer.encode() for peer in peers}


async def until_forgotten(here: list[Peer], there: list[Peer]) -> None:
    """Look around until no table holds anybody of the other side."""
    for one, other in ((here, there), (there, here)):
        for peer in one:
            while any(peer.directory.knows(lost.peer) for lost in other):
                await peer.directory.refresh()
                await peer.seen()


async def test_who_was_silent_is_asked_again_as_soon_as_it_is_met() -> None:
    """hivemind's searches would leave it out for a while."""
    bus = Bus()
    here, there = await swarm_of(bus, 2)
    await publish(there, b"there")
    there.node.is_dead = True
    here.storage._keys.clear()  # so that it has to ask
    assert await here.seen() == {}
    assert not here.directory.knows(there.peer)
    there.node.is_dead = False
    assert await here.directory.meet(there.peer)
    assert await here.seen() == {there.peer: b"there"}


# --- what liars and stale replicas do


Lie = Callable[[dict[Any, Any]], ValueWithExpiration[Any]]


def dictionary(records: dict[Any, Any], *, maxsize: Any = None, latest: Any = None) -> Any:
    found = DictionaryDHTValue()
    found.data = {subkey: ValueWithExpiration(*entry) for subkey, entry in records.items()}
    found.maxsize = maxsize or float("inf")
    return ValueWithExpiration(found, latest if latest is not None else time.time() + SOON)


@pytest.mark.parametrize(
    "lie",
    [
        lambda records: dictionary(records, maxsize="many"),
        lambda records: dictionary(records, maxsize=-1),
        lambda records: dictionary({}, latest=float("inf")),
        lambda records: dictionary({}, latest=float("nan")),
        lambda records: ValueWithExpiration(b"no dictionary", float("inf")),
        lambda records: dictionary({f"peer {number}": (b"x", 9e9) for number in range(1000)}, latest=9e9),
        lambda records: dictionary(dict.fromkeys(records, (b"forged", 9e9)), latest=9e9),
    ],
)
async def test_what_one_holder_answers_hides_no_record_of_the_others(lie: Lie) -> None:
    """hivemind takes an answer's own size and time for granted, and stops a search at an infinite one."""
    peers = await swarm_of(Bus(), 8)
    await publish(peers[0], b"record")
    for liar in holders_of(peers, peers[0].peer)[-3:]:
        storage, truth = liar.storage, liar.storage.get

        def get(key: Any, truth: Any = truth) -> Any:
            found = truth(key)
            return lie(dict(found.value.data)) if found is not None else lie({})

        storage.get = get
    honest = [peer for peer in peers if "get" not in vars(peer.storage)]
    for reader in honest:
        assert await reader.seen() == {peers[0].peer: b"record"}


async def test_signatures_of_no_more_records_are_checked_than_anybody_keeps() -> None:
    """Each takes a tenth of a millisecond, and an answer has room for ten thousand."""
    here, liar = await swarm_of(Bus(), 2)
    num_checked = 0

    def count(_record: object) -> bool:
        nonlocal num_checked
        num_checked += 1
        return True

    here.directory._node.protocol.record_validator.validate = count
    liar.storage.get = lambda _key: dictionary({f"peer {number}": (b"x", 9e9) for number in range(MAX_SUBKEYS + 1)})
    assert await here.seen() == {}
    assert num_checked == 0


async def test_an_older_record_offered_later_takes_no_newer_one_along() -> None:
    """In hivemind's own storage the newer one vanishes when the older expires."""
    now = [1000.0]
    storage = RecordStorage(lambda: now[0])
    assert storage.store_subkey("key", "peer", b"newer", 2000.0)
    storage.store_subkey("key", "peer", b"older", 1500.0)
    now[0] = 1700.0
    assert storage.store_subkey("key", "another", b"value", 3000.0)
    assert storage.get("key").value.data["peer"].value == b"newer"
    now[0] = 2001.0
    assert set(storage.get("key").value.data) == {"another"}
    assert storage.store_subkey("key", "peer", b"newest", 2500.0)
    assert set(storage.get("key").value.data) == {"another", "peer"}


async def test_a_key_lives_as_long_as_its_last_record() -> None:
    """hivemind's own drops a key with all that is in it if a look-up had brought one that expires later."""
    now = [1000.0]
    storage = RecordStorage(lambda: now[0])
    storage.store_subkey("key", "first", b"1", 1100.0)
    storage.get("key").value.store("guest", b"2", 1900.0)  # what a search does with what it is given
    storage.store_subkey("key", "last", b"3", 1500.0)
    assert set(storage.get("key").value.data) == {"first", "last"}
    now[0] = 1200.0
    assert set(storage.get("key").value.data) == {"last"}
    now[0] = 1501.0
    assert storage.get("key") is None
    assert "key" not in storage


async def test_a_key_that_is_full_keeps_whom_it_has() -> None:
    storage = RecordStorage(lambda: 1000.0)
    for number in range(MAX_SUBKEYS):
        assert storage.store_subkey("key", number, b"old", 1100.0)
    assert not storage.store_subkey("key", "one more", b"new", 9000.0)
    assert storage.store_subkey("key", 7, b"renewed", 1200.0)
    assert storage.get("key").value.data[7].value == b"renewed"
    assert len(storage.get("key").value.data) == MAX_SUBKEYS
    assert storage.store("other key", b"x", 1100.0) is False


async def test_who_hands_over_all_that_it_has_is_not_stopped_by_what_is_there_already() -> None:
    """A node that meets a new one sends it whole dictionaries, and hivemind's stops at the first that is no news."""
    bus = Bus()
    one, other = [await Peer.start(bus, number) for number in (1, 2)]
    shards: dict[str, list[int]] = {}
    for number in range(3, 200):
        peer = (await Peer.start(Bus(), number)).peer
        shards.setdefault(record_key(RUN_ID, peer), []).append(number)
    numbers = max(shards.values(), key=len)[:4]
    authors = [await Peer.start(bus, number) for number in numbers]
    for author in authors:
        await author.directory.meet(one.peer)
        await publish(author, author.peer.encode())
    key, found = next(iter(one.storage.items()))
    first = next(iter(found.value.data))
    other.storage.store_subkey(key, first, *found.value.data[first])
    await one.directory._node.protocol.call_store(other.node.peer_id, [key], [found.value], [found.expiration_time])
    assert other.storage.get(key).value.data == found.value.data


async def test_hiveminds_own_table_refresh_fails_and_ours_does_not() -> None:
    peers = await swarm_of(Bus(), 3)
    with pytest.raises(TypeError):
        await peers[0].directory._node.find_nearest_nodes(peers[1].directory._node.node_id)
    await peers[0].directory.refresh()
    assert peers[0].directory.num_known == 2
