"""What only real processes show: how p2pd starts and ends, joining that fails, hivemind's own program as a guest."""

import asyncio
import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from swarm_diloco.errors import NetworkError, PeerUnreachable, StreamLost, StreamTimeout
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Network, Stream

pytestmark = pytest.mark.swarm

WAIT_SECONDS = 60.0
PEER_PROGRAM = """
import asyncio, sys
from pathlib import Path
from swarm_diloco.network.hivemind_network import HivemindNetwork
from swarm_diloco.network.identity import Identity

async def mute(stream):
    await asyncio.Event().wait()

async def main():
    path = Path(sys.argv[1])
    async with HivemindNetwork.start(
        Identity.load(path / "key"), path / "key", run_id=bytes(32), runtime_folder=path / "run",
        listen=["/ip4/127.0.0.1/tcp/0"], client_mode=False,
    ) as network:
        await network.serve("mute", mute)
        print(f"{network.addresses()[0]}/p2p/{network.peer}", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def network_in(folder: Path, **settings: Any) -> AsyncIterator[Any]:
    """A network with a new identity, listening at any port of loopback unless told otherwise."""
    from swarm_diloco.network.hivemind_network import HivemindNetwork

    identity = Identity.generate()
    identity.save(folder / f"{identity.peer}.key")
    settings = {"listen": ["/ip4/127.0.0.1/tcp/0"], "client_mode": False, "run_id": bytes(32)} | settings
    settings.setdefault("runtime_folder", folder / "run")
    async with HivemindNetwork.start(identity, folder / f"{identity.peer}.key", **settings) as network:
        yield network


def address_of(network: Network) -> str:
    return f"{network.addresses()[0]}/p2p/{network.peer}"


def daemons() -> list[psutil.Process]:
    """Our p2pd processes that run."""
    return [child for child in psutil.Process().children(recursive=True) if child.name() == "p2pd"]


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """After the test no p2pd more than before runs, and no socket lies in the runtime folder."""
    before = {child.pid for child in daemons()}
    yield
    assert {child.pid for child in daemons()} <= before
    assert list((tmp_path / "run").glob("*")) == []


@pytest.fixture
def refusing_port() -> Iterator[int]:
    """A port that is ours and at which nothing listens."""
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        yield owner.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def peer_process(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A peer in a process of its own, and its address."""
    Identity.generate().save(tmp_path / "other" / "key")
    command = [sys.executable, "-c", PEER_PROGRAM, str(tmp_path / "other")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()


async def test_leaving_ends_p2pd_and_removes_its_sockets(tmp_path: Path, nothing_left: None) -> None:
    async with network_in(tmp_path) as network:
        (daemon,) = daemons()
        assert len(list((tmp_path / "run").glob("*/*"))) == 2
        assert not network.died.is_set()
    assert not psutil.pid_exists(daemon.pid)


async def test_p2pd_is_out_of_reach_of_the_terminals_ctrl_c(tmp_path: Path, nothing_left: None) -> None:
    async with network_in(tmp_path):
        (daemon,) = daemons()
        assert os.getsid(daemon.pid) != os.getsid(0)
        assert os.getpgid(daemon.pid) != os.getpgid(0)


def test_a_killed_program_takes_p2pd_along_and_the_next_removes_its_sockets(
    peer_process: tuple["subprocess.Popen[str]", str], tmp_path: Path
) -> None:
    process, address = peer_process
    assert address.startswith("/ip4/127.0.0.1/tcp/")
    (daemon,) = psutil.Process(process.pid).children()
    watch = os.pidfd_open(daemon.pid)
    try:
        process.kill()
        ended, _, _ = select.select([watch], [], [], WAIT_SECONDS)
    finally:
        os.close(watch)
    assert ended, "p2pd outlived its parent"
    process.wait()
    (left,) = (tmp_path / "other" / "run").glob("*")

    async def start_beside() -> None:
        async with network_in(tmp_path, runtime_folder=tmp_path / "other" / "run"):
            assert not left.exists()

    asyncio.run(start_beside())


async def test_a_killed_p2pd_is_noticed_and_said(tmp_path: Path, nothing_left: None) -> None:
    async with network_in(tmp_path) as network:
        (daemon,) = daemons()
        daemon.kill()
        await asyncio.wait_for(network.died.wait(), WAIT_SECONDS)
        with pytest.raises(NetworkError, match="p2pd"):
            await network.dial(Identity.generate().peer, "test", timeout_seconds=5.0)


@pytest.mark.parametrize("turns", [1, 10, 100, None])
async def test_a_cancelled_start_or_run_leaves_nothing(tmp_path: Path, nothing_left: None, turns: int | None) -> None:
    started = asyncio.Event()

    async def live() -> None:
        async with network_in(tmp_path):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(live())
    if turns is None:
        await started.wait()
    else:
        for _ in range(turns):
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # an impatient second time, while it cleans up
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stopped_p2pd_does_not_hold_up_the_end(tmp_path: Path, nothing_left: None) -> None:
    async with network_in(tmp_path):
        (daemon,) = daemons()
        daemon.suspend()
    assert not psutil.pid_exists(daemon.pid)


async def test_a_start_that_takes_too_long_is_a_network_error_and_leaves_nothing(
    tmp_path: Path, nothing_left: None
) -> None:
    with pytest.raises(NetworkError, match="did not start in"):
        async with network_in(tmp_path, start_timeout_seconds=0.01):
            pass


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
    monkeypatch.setattr("swarm_diloco.network.hivemind_network.ADDRESS_SECONDS", 1.0)
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
    monkeypatch.setattr("swarm_diloco.network.hivemind_network.ADDRESS_SECONDS", 1.0)
    dead = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity.generate().peer}" for port in (refusing_port, silent_port)]
    async with network_in(tmp_path) as other:
        await other.announce(b"other", lifetime_seconds=60)
        async with network_in(tmp_path, initial_peers=[*dead, address_of(other)]) as network:
            assert dict(await network.discover()) == {other.peer: b"other"}


@pytest.mark.parametrize(("offset_seconds", "words"), [(100.0, "100 s behind"), (-50.0, "50 s ahead of")])
async def test_a_wrong_clock_is_said_in_plain_words(
    tmp_path: Path, nothing_left: None, offset_seconds: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

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


async def test_a_client_dials_and_cannot_be_dialled(tmp_path: Path, nothing_left: None) -> None:
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
            await client.announce(b"from a client", lifetime_seconds=60)
            assert dict(await server.discover()) == {client.peer: b"from a client"}


async def test_a_closed_port_is_not_reachable(tmp_path: Path, nothing_left: None, refusing_port: int) -> None:
    async with network_in(tmp_path) as judge:
        announce = [f"/ip4/127.0.0.1/tcp/{refusing_port}"]
        async with network_in(tmp_path, announce=announce, initial_peers=[address_of(judge)]) as network:
            assert list(network.addresses()) == announce
            assert not await network.is_reachable(judge.peer, timeout_seconds=10.0)


async def test_a_remembered_address_reaches_a_peer_that_no_dht_knows(tmp_path: Path, nothing_left: None) -> None:
    async def echo(stream: Stream) -> None:
        await stream.send(await stream.receive(timeout_seconds=WAIT_SECONDS), timeout_seconds=WAIT_SECONDS)
        await stream.receive(timeout_seconds=WAIT_SECONDS)

    async with network_in(tmp_path) as here, network_in(tmp_path) as there:
        await there.serve("echo", echo)
        with pytest.raises(PeerUnreachable):
            await here.dial(there.peer, "echo", timeout_seconds=5.0)
        here.remember(there.peer, ["/ip4/127.0.0.1/udp/1/quic-v1", *there.addresses()])
        stream = await here.dial(there.peer, "echo", timeout_seconds=WAIT_SECONDS)
        await stream.send(b"found", timeout_seconds=WAIT_SECONDS)
        assert await stream.receive(timeout_seconds=WAIT_SECONDS) == b"found"
        await stream.close()


async def test_a_stopped_process_makes_send_and_receive_time_out(
    tmp_path: Path, nothing_left: None, peer_process: tuple["subprocess.Popen[str]", str]
) -> None:
    process, address = peer_process
    async with network_in(tmp_path, initial_peers=[address]) as network:
        stream = await network.dial(address.rpartition("/")[2], "mute", timeout_seconds=WAIT_SECONDS)
        for stopped in (psutil.Process(process.pid), *psutil.Process(process.pid).children()):
            stopped.suspend()
        with pytest.raises(StreamTimeout):
            await stream.receive(timeout_seconds=0.1)

        async def send_for_ever() -> None:
            for _ in range(100):
                await stream.send(bytes(2**20), timeout_seconds=0.5)

        with pytest.raises(StreamTimeout):
            await send_for_ever()
        for child in psutil.Process(process.pid).children():
            child.resume()
        await stream.close()


async def test_a_killed_process_ends_its_streams(
    tmp_path: Path, nothing_left: None, peer_process: tuple["subprocess.Popen[str]", str]
) -> None:
    process, address = peer_process
    async with network_in(tmp_path, initial_peers=[address]) as network:
        stream = await network.dial(address.rpartition("/")[2], "mute", timeout_seconds=WAIT_SECONDS)
        process.kill()
        with pytest.raises(StreamLost):
            await stream.receive(timeout_seconds=WAIT_SECONDS)
        await stream.close()


async def test_nobody_writes_under_anothers_name_in_the_dht(tmp_path: Path, nothing_left: None) -> None:
    """The forger uses hivemind's own DHT node, with no check of ours."""
    from hivemind.dht.node import DHTNode

    from swarm_diloco.network.discovery import record_key

    async with network_in(tmp_path) as owner, network_in(tmp_path, initial_peers=[address_of(owner)]) as forger:
        await owner.announce(b"true", lifetime_seconds=60)
        node: DHTNode = forger._dht
        node.protocol.record_validator = None
        key, until = record_key(bytes(32), owner.peer), 2**40
        stored = await node.store(key, b"false", float(until), subkey=owner.peer, exclude_self=True)
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


def test_it_works_on_uvloop_too(tmp_path: Path, nothing_left: None) -> None:
    async def echo(stream: Stream) -> None:
        while True:
            await stream.send(await stream.receive(timeout_seconds=WAIT_SECONDS), timeout_seconds=WAIT_SECONDS)

    async def scenario() -> None:
        async with network_in(tmp_path) as alice, network_in(tmp_path, initial_peers=[address_of(alice)]) as bob:
            await alice.serve("echo", echo)
            stream = await bob.dial(alice.peer, "echo", timeout_seconds=WAIT_SECONDS)
            frame = bytes(range(256)) * 2**14
            await stream.send(memoryview(frame), timeout_seconds=WAIT_SECONDS)
            assert await stream.receive(timeout_seconds=WAIT_SECONDS) == frame
            with pytest.raises(StreamTimeout):
                await stream.receive(timeout_seconds=0.05)
            await stream.close()
            with pytest.raises(StreamLost):
                await stream.receive(timeout_seconds=1.0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def test_storage_keeps_the_newer_value_until_its_own_expiry() -> None:
    """hivemind's own forgets it when the older one, offered later, would have expired."""
    import time

    import swarm_diloco.network.hivemind_network  # noqa: F401 - mends hivemind
    from hivemind.utils.timed_storage import TimedStorage

    storage: Any = TimedStorage()
    now = time.time()
    assert storage.store("key", "newer", now + 1000)
    assert not storage.store("key", "older", now + 500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hivemind.utils.timed_storage.get_dht_time", lambda: now + 700)
        storage.store("another", "value", now + 2000)
        assert storage.get("key") == ("newer", now + 1000)
    assert storage.store("key", "newest", now + 3000)
