"""The laboratory does what its links say, shown by its counters, and leaves nothing behind."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from laboratory import HostProcess, Laboratory, LaboratoryError, Link, why_not
from laboratory.hosts import inhabitants

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.root,
    pytest.mark.timeout(60),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
PORT = 4001
SLEEP = ("sleep", "1000")
SEND = """
import socket
with socket.socket(type=socket.SOCK_DGRAM) as sender:
    sender.bind(("", {source}))
    for _ in range({count}):
        sender.sendto(bytes({size}), ("{to}", 9))
"""
SERVE = f"""
import socket
with socket.create_server(("0.0.0.0", {PORT})) as server:
    print("listening", flush=True)
    while True:
        connection, (address, _) = server.accept()
        print(address, flush=True)
        while data := connection.recv(100):
            connection.sendall(data)
"""
DIAL = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {PORT}), timeout=float(sys.argv[2])) as stream:
    stream.settimeout(None)
    for line in sys.stdin:
        stream.sendall(line.encode())
        print(stream.recv(100).decode().strip(), flush=True)
"""


def python(program: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program]


def send(laboratory: Laboratory, name: str, to: str, *, count: int = 5, size: int = 100, source: int = 0) -> None:
    """So many packets are with the emulator when this returns: it takes packets before commands."""
    program = SEND.format(size=size, to=laboratory.address(to), count=count, source=source)
    subprocess.run(laboratory.command(name, *python(program)), check=True)


@contextmanager
def talking(laboratory: Laboratory, name: str, *command: str) -> Iterator["subprocess.Popen[str]"]:
    here = subprocess.PIPE
    there = laboratory.command(name, *command)
    with subprocess.Popen(there, stdin=here, stdout=here, stderr=here, text=True, bufsize=1) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")


def state(process_id: int) -> str:
    """R, S, T …, or - without such a process."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "-"


def test_a_cut_stops_packets_both_ways_and_heal_brings_them_back() -> None:
    with Laboratory({"ann": Link(), "ben": Link()}) as laboratory:
        send(laboratory, "ann", "ben")
        assert laboratory.counters("ben").received_packets == 5
        laboratory.cut("ann")
        ann, ben = laboratory.counters("ann"), laboratory.counters("ben")
        send(laboratory, "ann", "ben")
        assert laboratory.counters("ben").received_packets == ben.received_packets
        assert laboratory.counters("ann").cut == ann.cut + 5
        send(laboratory, "ben", "ann")
        assert laboratory.counters("ann").received_packets == ann.received_packets
        laboratory.heal("ann")
        send(laboratory, "ann", "ben")
        assert laboratory.counters("ben").received_packets == ben.received_packets + 5


def test_a_tcp_stream_goes_on_after_a_cut() -> None:
    with (
        Laboratory({"ann": Link(delay_seconds=0.001), "ben": Link()}) as laboratory,
        talking(laboratory, "ben", *python(SERVE)) as server,
    ):
        assert said(server) == "listening"
        with talking(laboratory, "ann", *python(DIAL), laboratory.address("ben"), "10") as client:
            say(client, "before")
            assert said(client) == "before"
            laboratory.cut("ben")
            dropped = laboratory.counters("ben").cut
            say(client, "meanwhile")
            while laboratory.counters("ben").cut == dropped:
                time.sleep(0.01)
            laboratory.heal("ben")
            assert said(client) == "meanwhile"


def test_a_partition_lets_packets_pass_in_each_group_only() -> None:
    with Laboratory({name: Link() for name in ("ann", "ben", "cleo", "dan")}) as laboratory:
        laboratory.partition(["ann", "ben"])
        for name, to in (("ann", "ben"), ("ann", "cleo"), ("dan", "cleo"), ("dan", "ben")):
            send(laboratory, name, to, count=3)
        assert laboratory.counters("ben").received_packets == 3
        assert laboratory.counters("cleo").received_packets == 3
        laboratory.partition()
        send(laboratory, "ann", "cleo", count=3)
        assert laboratory.counters("cleo").received_packets == 6


def test_a_host_behind_a_router_can_dial_out_and_is_seen_as_its_router() -> None:
    with (
        Laboratory({"home": Link(is_behind_router=True), "ben": Link()}) as laboratory,
        talking(laboratory, "ben", *python(SERVE)) as server,
    ):
        assert said(server) == "listening"
        with talking(laboratory, "home", *python(DIAL), laboratory.address("ben"), "10") as client:
            say(client, "hello")
            assert said(client) == "hello"
            assert said(server) == laboratory.address("home") != laboratory.own_address("home")


def test_a_host_behind_a_router_cannot_be_dialled() -> None:
    with (
        Laboratory({"home": Link(is_behind_router=True), "ben": Link()}) as laboratory,
        talking(laboratory, "home", *python(SERVE)) as server,
    ):
        assert said(server) == "listening"
        with talking(laboratory, "ben", *python(DIAL), laboratory.address("home"), "0.5") as client:
            _, error = client.communicate()
        assert "timed out" in error
        assert laboratory.counters("home").unknown_flow > 0
        assert laboratory.counters("home").received_packets == 0


def test_only_the_port_that_was_written_to_may_write_back_through_a_router() -> None:
    with Laboratory({"home": Link(is_behind_router=True), "ben": Link()}) as laboratory:
        send(laboratory, "home", "ben", source=9)
        send(laboratory, "ben", "home", source=10)
        assert laboratory.counters("home").received_packets == 0
        send(laboratory, "ben", "home", source=9)
        assert laboratory.counters("home").received_packets == 5


def test_a_rate_lets_no_more_bytes_pass_than_it_allows_and_the_queue_drops_the_rest() -> None:
    count, size = 200, 1000
    with Laboratory({"ann": Link(up_megabits=1), "ben": Link()}) as laboratory:
        started = time.monotonic()
        send(laboratory, "ann", "ben", count=count, size=size)
        ann, seconds = laboratory.counters("ann"), time.monotonic() - started
    packet = size + 28  # IP and UDP headers
    assert ann.sent_packets + ann.queue_full == count
    assert ann.sent_bytes == ann.sent_packets * packet
    assert 0.2 * 1e6 / 8 <= ann.sent_bytes <= (0.2 + seconds) * 1e6 / 8 + 2 * packet


def test_a_slow_downlink_drops_what_a_fast_uplink_sends() -> None:
    with Laboratory({"ann": Link(), "ben": Link(down_megabits=1)}) as laboratory:
        send(laboratory, "ann", "ben", count=200, size=1000)
        assert laboratory.counters("ann").sent_packets == 200
        assert laboratory.counters("ben").queue_full > 0


def test_loss_takes_its_fraction_of_the_packets() -> None:
    with Laboratory({"ann": Link(), "ben": Link()}) as laboratory:
        laboratory.change("ann", loss_fraction=0.25)
        send(laboratory, "ann", "ben", count=500)
        ann, ben = laboratory.counters("ann"), laboratory.counters("ben")
        assert ben.received_packets == ann.sent_packets
        assert 90 <= 500 - ann.sent_packets <= 160
        refusals_lost = ben.sent_packets - ann.received_packets  # nobody listens at the port, says ben
        assert ann.lost == 500 - ann.sent_packets + refusals_lost


def test_a_round_trip_takes_all_four_delays() -> None:
    with (
        Laboratory({"ann": Link(delay_seconds=0.01), "ben": Link(delay_seconds=0.03)}) as laboratory,
        talking(laboratory, "ben", *python(SERVE)) as server,
    ):
        assert said(server) == "listening"
        with talking(laboratory, "ann", *python(DIAL), laboratory.address("ben"), "10") as client:
            say(client, "one")
            assert said(client) == "one"
            started = time.monotonic()
            say(client, "two")
            assert said(client) == "two"
            assert time.monotonic() - started >= 2 * (0.01 + 0.03)


def test_signals_reach_one_process_or_the_whole_host() -> None:
    with Laboratory({"ann": Link(), "ben": Link()}) as laboratory:
        first, second, other = (laboratory.start(name, *SLEEP) for name in ("ann", "ann", "ben"))
        until_inside(laboratory, "ann", first, second)
        until_inside(laboratory, "ben", other)
        laboratory.signal(first, signal.SIGSTOP)
        assert state_after_signal(first) == "T" != state(second.process_id)
        laboratory.signal("ann", signal.SIGSTOP)
        assert state_after_signal(second) == "T" != state(other.process_id)
        laboratory.signal("ann", signal.SIGCONT)
        laboratory.signal(first, signal.SIGKILL)
        assert first.wait(10) == -signal.SIGKILL
        assert second.status is None


def until_inside(laboratory: Laboratory, name: str, *processes: HostProcess) -> None:
    """nsenter has moved them to the host and become the program."""
    while not all(Path(f"/proc/{p.process_id}/comm").read_text() == "sleep\n" for p in processes):
        time.sleep(0.001)
    assert {p.process_id for p in processes} == set(laboratory.inhabitants(name))


def state_after_signal(process: HostProcess) -> str:
    os.waitid(os.P_PID, process.process_id, os.WSTOPPED)
    return state(process.process_id)


def test_output_goes_to_a_file_and_the_status_is_the_programs() -> None:
    with Laboratory({"ann": Link()}) as laboratory:
        process = laboratory.start("ann", "sh", "-c", "echo $WORD; exit 3", WORD="hello")
        assert process.wait(10) == 3
        assert process.text() == "hello\n"


def test_two_laboratories_with_the_same_addresses_do_not_see_each_other() -> None:
    with Laboratory({"ann": Link(), "ben": Link()}) as one, Laboratory({"ann": Link(), "ben": Link()}) as other:
        send(one, "ann", "ben")
        assert (one.counters("ben").received_packets, other.counters("ben").received_packets) == (5, 0)


def test_an_error_within_leaves_no_namespace_process_or_interface() -> None:
    interfaces = set(Path("/sys/class/net").iterdir())
    laboratory = Laboratory({"ann": Link(), "ben": Link()})
    with suppress(RuntimeError), laboratory:
        outside_its_session, stopped = (laboratory.start(*what, *SLEEP) for what in (("ann", "setsid"), ("ben",)))
        laboratory.signal(stopped, signal.SIGSTOP)
        namespaces = [laboratory.namespace(name) for name in ("ann", "ben")]
        raise RuntimeError
    assert not Path(f"/proc/{laboratory.emulator_process_id}").exists()
    assert not any(list(inhabitants(namespace)) for namespace in namespaces)
    assert [state(process.process_id) for process in (outside_its_session, stopped)] == ["-", "-"]
    assert set(Path("/sys/class/net").iterdir()) == interfaces


OWNER = """
import sys, time
from laboratory import Laboratory, Link
with Laboratory({"ann": Link()}) as laboratory:
    process = laboratory.start("ann", "setsid", "sleep", "1000")
    while not list(laboratory.inhabitants("ann")):
        time.sleep(0.001)
    print(laboratory.emulator_process_id, laboratory.namespace("ann"), process.process_id, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_its_owner_is_ended_by_a_signal(number: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    here, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, text=True, stdout=here, stderr=nowhere) as owner:
        emulator, namespace, inhabitant = map(int, said(owner).split())
        descriptor = os.pidfd_open(emulator)
        owner.send_signal(number)
        select.select([descriptor], [], [])
        os.close(descriptor)
    assert not list(inhabitants(namespace))
    assert state(inhabitant) in "-Z"


def test_a_wrong_command_and_a_wrong_congestion_control_are_said() -> None:
    with Laboratory({"ann": Link()}) as laboratory, pytest.raises(LaboratoryError, match="not understood"):
        laboratory._emulator.tell("dig 0")
    with pytest.raises(LaboratoryError, match="ann cannot have nonsense"):
        Laboratory({"ann": Link()}, congestion="nonsense").__enter__()
