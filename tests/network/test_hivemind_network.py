"""What only real processes show: how p2pd starts and ends, and peers that are stopped or killed."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import uvloop

from network.hivemind_peers import PEER_PROGRAM, WAIT_SECONDS, address_of, daemons, network_in
from swarm_diloco.errors import NetworkError, PeerUnreachable, StreamLost, StreamTimeout
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Stream

pytestmark = pytest.mark.swarm


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
    daemon.suspend()  # so that nothing but the death signal can end it
    try:
        process.kill()
        ended, _, _ = select.select([watch], [], [], WAIT_SECONDS)
    finally:
        os.close(watch)
    if not ended:
        daemon.kill()
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
        async with asyncio.timeout(WAIT_SECONDS):
            await network.died.wait()
        with pytest.raises(NetworkError, match="p2pd"):
            await network.dial(Identity.generate().peer, "test", timeout_seconds=5.0)
        with pytest.raises(NetworkError, match="p2pd"):
            await network.announce(b"", lifetime_seconds=60)
        with pytest.raises(NetworkError, match="p2pd"):
            await network.discover()


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


def test_it_works_on_uvloop_too(tmp_path: Path, nothing_left: None) -> None:
    async def echo(stream: Stream) -> None:
        while True:
            await stream.send(await stream.receive(timeout_seconds=WAIT_SECONDS), timeout_seconds=WAIT_SECONDS)

    async def scenario() -> None:
        async with network_in(tmp_path) as alice, network_in(tmp_path, initial_peers=[address_of(alice)]) as bob:
            await alice.serve("echo", echo)
            stream = await bob.dial(alice.peer, "echo", timeout_seconds=WAIT_SECONDS)
            frame = bytes(range(256)) * 2**14
            buffer = bytearray(frame)
            await stream.send(memoryview(buffer), timeout_seconds=WAIT_SECONDS)
            buffer[:] = bytes(len(buffer))  # the caller uses it anew
            assert await stream.receive(timeout_seconds=WAIT_SECONDS) == frame
            with pytest.raises(StreamTimeout):
                await stream.receive(timeout_seconds=0.05)
            await stream.close()
            with pytest.raises(StreamLost):
                await stream.receive(timeout_seconds=1.0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
