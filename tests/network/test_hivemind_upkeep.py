"""Over real p2pd: cut lines heal, refused peers are told why, and what a dead p2pd says is not believed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from network.cut_line import CutLine
from network.hivemind_peers import WAIT_SECONDS, address_of, daemons, network_in
from swarm_diloco.errors import NetworkError, PeerUnreachable, RunRefused
from swarm_diloco.network import hivemind_network
from swarm_diloco.network.handshake import PROTOCOL_VERSION, Handshake
from swarm_diloco.network.interface import Stream

pytestmark = pytest.mark.swarm

QUICK_SECONDS = 0.5  # between two meetings, instead of a minute
NEVER_SECONDS = 1e6


async def mute(stream: Stream) -> None:
    await stream.receive(timeout_seconds=WAIT_SECONDS)


@asynccontextmanager
async def behind_lines(folder: Path, num_peers: int, **settings: Any) -> AsyncIterator[tuple[list[Any], list[CutLine]]]:
    """Peers that reach each other through lines alone, each by way of the first, all remembered by all."""
    async with AsyncExitStack() as stack:
        networks, lines = list[Any](), list[CutLine]()
        for _ in range(num_peers):
            line = await stack.enter_async_context(CutLine())
            initial = [f"{lines[0].place}/p2p/{networks[0].peer}"] if lines else []
            place = f"/ip4/127.0.0.1/tcp/{line.target_port}"
            network = await stack.enter_async_context(
                network_in(folder, listen=[place], announce=[line.place], initial_peers=initial, **settings)
            )
            networks.append(network)
            lines.append(line)
        for network in networks:
            for other, line in zip(networks, lines, strict=True):
                network.remember(other.peer, [line.place])
            await network.announce(network.peer.encode(), lifetime_seconds=600.0)
        yield networks, lines


async def until_all_see(networks: list[Any]) -> None:
    everybody = {network.peer for network in networks}
    async with asyncio.timeout(WAIT_SECONDS):
        for network in networks:
            while set(await network.discover()) != everybody:
                await asyncio.sleep(0.1)


async def test_tables_that_a_cut_has_emptied_are_one_again_after_it(tmp_path: Path, nothing_left: None) -> None:
    async with behind_lines(tmp_path, 4, upkeep_seconds=QUICK_SECONDS) as (networks, lines):
        await until_all_see(networks)
        for line in lines:
            await line.cut()
        async with asyncio.timeout(WAIT_SECONDS):
            while any(network._directory.num_known for network in networks):
                await asyncio.gather(*(network.discover() for network in networks))
        for line in lines:
            await line.mend()
        async with asyncio.timeout(WAIT_SECONDS):
            while any(network._directory.num_known < len(networks) - 1 for network in networks):
                await asyncio.sleep(0.1)
        for network in networks:
            await network.announce(network.peer.encode(), lifetime_seconds=700.0)
        await until_all_see(networks)


async def test_a_peer_that_is_back_is_reached_at_once_however_often_it_was_dialled(
    tmp_path: Path, nothing_left: None
) -> None:
    """p2pd itself refuses to dial for the longer the more often it has failed."""
    async with behind_lines(tmp_path, 2) as ((there, here), (line, _)):
        await there.serve("mute", mute)
        await line.cut()
        for _ in range(3):
            with pytest.raises(PeerUnreachable):
                await here.dial(there.peer, "mute", timeout_seconds=5.0)
        await line.mend()
        with pytest.raises(PeerUnreachable):
            await here._daemon.connect(there.peer, [line.place])
        await here._dialler.connect(there.peer)
        assert await here._daemon.connections(there.peer) == [line.place]
        stream = await here.dial(there.peer, "mute", timeout_seconds=WAIT_SECONDS)
        await stream.close()


@pytest.mark.parametrize("client_mode", [False, True])
async def test_who_is_spoken_with_joins_the_table(tmp_path: Path, nothing_left: None, *, client_mode: bool) -> None:
    """Without the DHT the address suffices to dial, and the dial mends the DHT."""
    settings = {"client_mode": client_mode, "upkeep_seconds": NEVER_SECONDS}
    async with network_in(tmp_path, **settings) as here, network_in(tmp_path) as there:
        await there.serve("mute", mute)
        await there.announce(b"there", lifetime_seconds=600.0)
        assert await here.discover() == {}
        here.remember(there.peer, there.addresses())
        stream = await here.dial(there.peer, "mute", timeout_seconds=WAIT_SECONDS)
        async with asyncio.timeout(WAIT_SECONDS):
            while await here.discover() != {there.peer: b"there"}:
                await asyncio.sleep(0.1)
        await stream.close()


async def test_an_announcement_of_a_peer_that_knows_nobody_goes_to_whom_it_remembers(
    tmp_path: Path, nothing_left: None
) -> None:
    async with network_in(tmp_path) as here, network_in(tmp_path) as there:
        here.remember(there.peer, there.addresses())
        await here.announce(b"here", lifetime_seconds=600.0)
        assert await there.discover() == {here.peer: b"here"}


async def test_joining_another_run_is_refused_by_name(tmp_path: Path, nothing_left: None) -> None:
    async with network_in(tmp_path) as other:
        with pytest.raises(RunRefused) as refused:
            async with network_in(tmp_path, run_id=bytes([255] * 32), initial_peers=[address_of(other)]):
                pass
        assert not other._directory.num_known
    assert f"{address_of(other)}: another manifest: its run is {'0' * 16}" in str(refused.value)
    assert "f" * 16 in str(refused.value)


async def test_joining_by_another_version_is_refused_by_name(
    tmp_path: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setattr(hivemind_network, "Handshake", partial(Handshake, protocol_version=PROTOCOL_VERSION + 1))
            other = await stack.enter_async_context(network_in(tmp_path))
        with pytest.raises(RunRefused, match=f"it speaks {PROTOCOL_VERSION + 1} .*, this program {PROTOCOL_VERSION}"):
            async with network_in(tmp_path, initial_peers=[address_of(other)]):
                pass


async def test_one_peer_of_the_right_run_is_enough(tmp_path: Path, nothing_left: None) -> None:
    async with AsyncExitStack() as stack:
        right = await stack.enter_async_context(network_in(tmp_path))
        wrong = await stack.enter_async_context(network_in(tmp_path, run_id=bytes([255] * 32)))
        initial = [address_of(wrong), address_of(right)]
        network = await stack.enter_async_context(network_in(tmp_path, initial_peers=initial))
        await right.announce(b"right", lifetime_seconds=600.0)
        assert await network.discover() == {right.peer: b"right"}
        assert not wrong._directory.num_known


async def test_a_peer_that_does_not_say_what_it_is_is_none(
    tmp_path: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setattr(hivemind_network, "HANDSHAKE_PROTOCOL", "something else")
            other = await stack.enter_async_context(network_in(tmp_path))
        with pytest.raises(PeerUnreachable, match="does not say which run"):
            async with network_in(tmp_path, initial_peers=[address_of(other)]):
                pass


async def test_what_a_dead_p2pd_is_said_to_have_stored_is_not_believed(
    tmp_path: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with network_in(tmp_path) as there, network_in(tmp_path, initial_peers=[address_of(there)]) as network:
        publish = network._directory.publish

        async def die_first(*arguments: Any) -> None:
            daemon = next(child for child in daemons() if child.pid == network._daemon._child.pid)
            daemon.kill()
            await network.died.wait()
            await publish(*arguments)

        monkeypatch.setattr(network._directory, "publish", die_first)
        with pytest.raises(NetworkError, match="p2pd"):
            await network.announce(b"lost", lifetime_seconds=600.0)


async def test_a_record_that_no_peer_would_take_is_not_sent(tmp_path: Path, nothing_left: None) -> None:
    async with network_in(tmp_path) as network:
        for record, lifetime_seconds in ((bytes(2049), 60.0), (b"", 3600.0), (b"", 0.0)):
            with pytest.raises(ValueError, match="a record"):
                await network.announce(record, lifetime_seconds=lifetime_seconds)
