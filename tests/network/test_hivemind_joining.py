"""Joining over hivemind: ports, addresses, clocks, reachability and the DHT, each failure with its reason."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from network.hivemind_peers import WAIT_SECONDS, address_of, network_in
from swarm_diloco.errors import NetworkError, PeerUnreachable, StreamLost
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Stream

pytestmark = pytest.mark.swarm


async def test_an_occupied_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(NetworkError) as caught:
            async with network_in(tmp_path, listen=[f"/ip4/127.0.0.1/tcp/{port}"]):
                pass
    assert f"port {port} is in use" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_two_of_our_own_cannot_share_a_port(tmp_path: Path, nothing_left: None) -> None:
    async with network_in(tmp_path) as first:
        with pytest.raises(NetworkError, match="in use"):
            async with network_in(tmp_path, listen=list(first.addresses())):
                pass


async def test_each_initial_peer_that_fails_gets_its_line_and_reason(
    tmp_path: Path, nothing_left: None, refusing_port: int, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_diloco.network.hivemind_network.ADDRESS_SECONDS", 5.0)

    def resolve_nothing(*_: object, **__: object) -> None:
        raise socket.gaierror("there are no names in this test")

    monkeypatch.setattr("socket.getaddrinfo", resolve_nothing)
    stranger = Identity.generate().peer
    async with network_in(tmp_path) as other:
        initial = {
            f"/ip4/127.0.0.1/tcp/{refusing_port}/p2p/{stranger}": "refused",
            f"/ip4/127.0.0.1/tcp/{silent_port}/p2p/{stranger}": "did not answer as a peer",
            f"/dns4/does-not-exist.invalid/tcp/1/p2p/{stranger}": "does not resolve",
            f"{other.addresses()[0]}/p2p/{stranger}": f"a different peer, {other.peer}",
        }
        with pytest.raises(NetworkError) as caught:
            async with network_in(tmp_path, initial_peers=list(initial)):
                pass
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == len(initial)
    for line, (address, reason) in zip(lines, initial.items(), strict=True):
        assert line.strip().startswith(f"{address}: ")
        assert reason in line


async def test_one_initial_peer_that_answers_is_enough(
    tmp_path: Path, nothing_left: None, refusing_port: int, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_diloco.network.hivemind_network.ADDRESS_SECONDS", 5.0)
    dead = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity.generate().peer}" for port in (refusing_port, silent_port)]
    async with network_in(tmp_path) as other:
        await other.announce(b"other", lifetime_seconds=60)
        by_name = address_of(other).replace("/ip4/127.0.0.1/", "/dns4/localhost/")
        for good in (address_of(other), by_name):
            async with network_in(tmp_path, initial_peers=[*dead, good]) as network:
                assert dict(await network.discover()) == {other.peer: b"other"}


@pytest.mark.parametrize(("offset_seconds", "words"), [(100.0, "100 s behind"), (-50.0, "50 s ahead of")])
async def test_a_wrong_clock_is_said_in_plain_words(
    tmp_path: Path, nothing_left: None, offset_seconds: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with network_in(tmp_path) as other:
        monkeypatch.setattr("hivemind.dht.protocol.get_dht_time", lambda: time.time() + offset_seconds)
        with pytest.raises(NetworkError, match=f"clock is {words}"):
            async with network_in(tmp_path, initial_peers=[address_of(other)]):
                pass


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"announce": ["/ip4/203.0.113.7/tcp/0"]}, "port 0"),
        ({"announce": ["/ip4/0.0.0.0/tcp/1"]}, "cannot dial"),
        ({"listen": ["127.0.0.1:4001"]}, "not an address"),
        ({"initial_peers": ["/ip4/127.0.0.1/tcp/1"]}, "PEER-ID"),
    ],
)
async def test_addresses_of_a_wrong_form_are_refused_before_anything_starts(
    tmp_path: Path, nothing_left: None, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        async with network_in(tmp_path, **settings):
            pass


async def test_a_client_is_dialled_only_over_a_connection_of_its_own(tmp_path: Path, nothing_left: None) -> None:
    async def greet(stream: Stream) -> None:
        await stream.send(stream.peer.encode(), timeout_seconds=WAIT_SECONDS)
        with contextlib.suppress(StreamLost):
            await stream.receive(timeout_seconds=WAIT_SECONDS)

    async with network_in(tmp_path) as server:
        await server.serve("greet", greet)
        async with network_in(tmp_path, client_mode=True, initial_peers=[address_of(server)]) as client:
            assert list(client.addresses()) == []
            assert not await client.is_reachable(server.peer, timeout_seconds=10.0)
            assert await server.is_reachable(client.peer, timeout_seconds=10.0)
            stream = await client.dial(server.peer, "greet", timeout_seconds=WAIT_SECONDS)
            assert (await stream.receive(timeout_seconds=WAIT_SECONDS)).decode() == client.peer
            await stream.close()
            await client.serve("greet", greet)
            stream = await server.dial(client.peer, "greet", timeout_seconds=WAIT_SECONDS)
            assert (await stream.receive(timeout_seconds=WAIT_SECONDS)).decode() == server.peer
            await stream.close()
            async with network_in(tmp_path, initial_peers=[address_of(server)]) as stranger:
                with pytest.raises(PeerUnreachable):
                    await stranger.dial(client.peer, "greet", timeout_seconds=WAIT_SECONDS)
            await client.announce(b"from a client", lifetime_seconds=60)
            assert dict(await server.discover()) == {client.peer: b"from a client"}


async def test_a_closed_port_is_not_reachable(tmp_path: Path, nothing_left: None, refusing_port: int) -> None:
    async with network_in(tmp_path) as judge:
        announce = [f"/ip4/127.0.0.1/tcp/{refusing_port}"]
        async with network_in(tmp_path, announce=announce, initial_peers=[address_of(judge)]) as network:
            assert list(network.addresses()) == announce
            assert not await network.is_reachable(judge.peer, timeout_seconds=10.0)


async def test_nobody_writes_under_anothers_name_in_the_dht(tmp_path: Path, nothing_left: None) -> None:
    """The forger uses hivemind's own DHT node, with no check of ours."""
    from hivemind.dht.node import DHTNode

    from swarm_diloco.network.discovery import record_key

    async with network_in(tmp_path) as owner, network_in(tmp_path, initial_peers=[address_of(owner)]) as forger:
        await owner.announce(b"true", lifetime_seconds=60)
        node: DHTNode = forger._directory._node
        node.protocol.record_validator = None
        key, until = record_key(bytes(32), owner.peer), time.time() + 1000
        stored = await node.store(key, b"false", until, subkey=owner.peer, exclude_self=True)
        assert not stored
        assert dict(await owner.discover()) == {owner.peer: b"true"}


async def test_hiveminds_own_program_joins_and_lists_us(tmp_path: Path, nothing_left: None) -> None:
    """Both count: it has our DHT in its routing table, and its p2pd has connected to ours."""
    async with network_in(tmp_path) as network:
        program = str(Path(sys.executable).with_name("hivemind-dht"))
        guest = await asyncio.create_subprocess_exec(
            program, "--initial_peers", address_of(network), "--host_maddrs", "/ip4/127.0.0.1/tcp/0",
            "--identity_path", str(tmp_path / "guest.key"), "--refresh_period", "1",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "HIVEMIND_LOGLEVEL": "INFO", "HIVEMIND_COLORS": "0"},
        )  # fmt: skip
        assert guest.stderr is not None
        try:
            nodes = 0
            async with asyncio.timeout(WAIT_SECONDS):
                while nodes < 2 and (line := await guest.stderr.readline()):
                    found = re.search(r"(\d+) DHT nodes \(including this one\)", line.decode())
                    nodes = int(found[1]) if found else nodes
            assert nodes == 2
            family = psutil.Process(guest.pid).children(recursive=True)
        finally:
            guest.send_signal(signal.SIGTERM)
            await guest.communicate()
        left = psutil.wait_procs(family, timeout=WAIT_SECONDS)[1]
        for process in left:
            process.kill()
