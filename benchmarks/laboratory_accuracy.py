"""Whether the laboratory's links do what they say, and whether its emulator or Linux' tbf shapes better.

    python benchmarks/laboratory_accuracy.py > benchmarks/results/laboratory_accuracy.md        (as root)

One TCP stream from one host to the other, over a path of 80 ms: payload received in the stream's last three quarters,
beside what a packet of 1500 bytes has room for at that rate. Round trips: UDP echoes, without other traffic and beside
the stream, whose queue may be 200 ms long in either shaper.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from laboratory import Laboratory, Link

PORT = 4000
STREAM_SECONDS = 8.0
ECHOES = 40
DELAY_SECONDS = 0.02
PAYLOAD_FRACTION = 1448 / 1500  # TCP with timestamps
SINK = f"""
import socket, time
with socket.create_server(("0.0.0.0", {PORT})) as server:
    print("listening", flush=True)
    stream, _ = server.accept()
    marks = [(time.monotonic(), 0)]
    while data := stream.recv(65536):
        marks.append((time.monotonic(), marks[-1][1] + len(data)))
first, last = marks[0], marks[-1]
start = next(mark for mark in marks if mark[0] >= first[0] + (last[0] - first[0]) / 4)
print((last[1] - start[1]) / (last[0] - start[0]))
"""
SOURCE = f"""
import socket, sys, time
with socket.create_connection((sys.argv[1], {PORT})) as stream:
    until, data = time.monotonic() + {STREAM_SECONDS}, bytes(65536)
    while time.monotonic() < until:
        stream.sendall(data)
"""
ECHO = f"""
import socket
with socket.socket(type=socket.SOCK_DGRAM) as echo:
    echo.bind(("0.0.0.0", {PORT}))
    print("listening", flush=True)
    while True:
        echo.sendto(*echo.recvfrom(1000))
"""
PING = f"""
import json, socket, sys, time
with socket.socket(type=socket.SOCK_DGRAM) as ping:
    ping.connect((sys.argv[1], {PORT}))
    ping.settimeout(2)
    trips = []
    for _ in range({ECHOES}):
        sent_at = time.monotonic()
        ping.send(b"ping")
        try:
            ping.recv(1000)
            trips.append(time.monotonic() - sent_at)
        except TimeoutError:
            pass
        time.sleep(0.05)
print(json.dumps(trips))
"""


def popen(laboratory: Laboratory, name: str, program: str, *arguments: str) -> "subprocess.Popen[str]":
    command = laboratory.command(name, sys.executable, "-I", "-S", "-c", program, *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def listening(laboratory: Laboratory, name: str, program: str) -> "subprocess.Popen[str]":
    process = popen(laboratory, name, program)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    return process


def round_trips(laboratory: Laboratory) -> list[float]:
    answer, _ = popen(laboratory, "ann", PING, laboratory.address("ben")).communicate()
    return [float(seconds) for seconds in json.loads(answer)]


def one(shaper: str, megabits: float, congestion: str) -> str:
    by_emulator = Link(up_megabits=megabits, down_megabits=10 * megabits, delay_seconds=DELAY_SECONDS)
    free = Link(delay_seconds=DELAY_SECONDS)
    with Laboratory({"ann": by_emulator if shaper == "emulator" else free, "ben": free}, congestion=congestion) as lab:
        if shaper == "tbf":
            shape = ["tc", "qdisc", "add", "dev", "tun0", "root", "tbf", "rate", f"{megabits}mbit", "burst", "16kb"]
            subprocess.run(lab.command("ann", *shape, "latency", "200ms"), check=True)
        with listening(lab, "ben", ECHO) as echo:
            idle = round_trips(lab)
            sink = listening(lab, "ben", SINK)
            source = popen(lab, "ann", SOURCE, lab.address("ben"))
            busy = round_trips(lab)
            source.communicate()
            received, _ = sink.communicate()
            echo.kill()
    rate = float(received) * 8 / 1e6
    return (
        f"| {shaper} | {congestion} | {megabits:g} | {rate:.3f} | {rate / (megabits * PAYLOAD_FRACTION):.3f} "
        f"| {milliseconds(idle)} | {milliseconds(busy)} |"
    )


def milliseconds(seconds: list[float]) -> str:
    values = sorted(1000 * value for value in seconds)
    return f"{statistics.median(values):.1f} ({values[0]:.1f} to {values[-1]:.1f})"


def main() -> None:
    print("# The laboratory's links\n")
    print(
        "Made by `python benchmarks/laboratory_accuracy.py`, 2 cores. One TCP stream over a path of 80 ms round trip;"
    )
    print(
        "rates in Mbit/s, the payload beside what has room in packets of 1500 bytes; round trips in ms: median (least"
    )
    print("to most) of 40 UDP echoes. Both shapers may queue 200 ms.\n")
    print("| shaper | TCP | rate | payload | of the possible | round trip, idle | beside the stream |")
    print("|---|---|---|---|---|---|---|")
    for congestion in ("bbr", "reno"):
        for megabits in (1.0, 50.0, 200.0):
            for shaper in ("emulator", "tbf"):
                print(one(shaper, megabits, congestion), flush=True)


if __name__ == "__main__":
    main()
