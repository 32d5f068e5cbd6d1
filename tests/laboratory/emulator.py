"""The emulator's process: compiled at first use, told what to do over its stdin, which is also what keeps it alive.

Rates are the emulator's, not Linux' tbf's: at 1, 50 and 200 Mbit/s both let 99.6 to 100 % of the possible TCP payload
pass, and both give idle round trips of 80.6 ms for 80 (benchmarks/results/laboratory_accuracy.md). But tbf queues
within the sending host, where TCP sees the queue and spares it, and only on the way out; the emulator's queues are
beyond the host, as a router's are: they fill and drop, both ways, are counted, and change while all runs.
"""

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SOURCE = Path(__file__).with_name("wan_emulator.c")
CLOSE_SECONDS = 20.0  # it needs milliseconds, unless the machine is very busy


class LaboratoryError(Exception):
    """The laboratory cannot be set up, or its emulator did not do what it was told."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one host's link since the start; bytes with IP headers."""

    sent_packets: int  # that got onto the uplink
    sent_bytes: int
    received_packets: int  # that the host was handed
    received_bytes: int
    lost: int  # dropped by chance
    queue_full: int  # dropped because the rate was used up
    cut: int  # dropped by cut or partition
    unknown_flow: int  # dropped by the router that the host is behind


def why_not() -> str | None:
    """Why this machine cannot have a laboratory; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("nsenter", "util-linux"), ("cc", "a C compiler")):
        if shutil.which(program) is None:
            return f"the network laboratory needs {program} ({package})"
    if not Path("/dev/net/tun").exists():
        return "the network laboratory needs /dev/net/tun"
    return None


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="laboratory-")  # removed when this program ends


@functools.cache
def compiled() -> Path:
    """The emulator's program."""
    program = Path(_folder().name) / "wan_emulator"
    command = ["cc", "-O2", "-o", str(program), str(SOURCE)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise LaboratoryError(f"{' '.join(command)} failed:\n{done.stderr}")
    return program


class Emulator:
    """Runs from __init__ to `close`. Its session is its own, so that a terminal's Ctrl-C does not end it before us."""

    def __init__(self, descriptions: Sequence[str]) -> None:
        """One description a host: its address, or PUBLIC@PRIVATE behind a router."""
        self._process = subprocess.Popen(
            [str(compiled()), *descriptions],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        try:
            self._descriptors = [self._host_line(number) for number in range(len(descriptions))]
            if self._answer() != "ready":
                raise LaboratoryError("the emulator did not start")
        except BaseException:
            self.close()
            raise

    def _host_line(self, number: int) -> int:
        word, index, descriptor = self._answer().split()
        if (word, index) != ("host", str(number)):
            raise LaboratoryError(f"the emulator did not make host {number}")
        return int(descriptor)

    def _answer(self) -> str:
        line = self._answers.readline()
        if not line:
            assert self._process.stderr is not None
            raise LaboratoryError(f"the emulator has ended: {self._process.stderr.read().strip() or 'it said nothing'}")
        return line.strip()

    @property
    def process_id(self) -> int:
        return self._process.pid

    def namespace(self, host: int) -> Path:
        """As nsenter takes it; its inode is the namespace's name."""
        return Path(f"/proc/{self._process.pid}/fd/{self._descriptors[host]}")

    def tell(self, command: str) -> str:
        """What the emulator answers. Raises LaboratoryError."""
        with contextlib.suppress(BrokenPipeError):  # then its last words are what the next line raises
            self._commands.write(command + "\n")
        answer = self._answer()
        if answer.startswith("error"):
            raise LaboratoryError(f"the emulator was told {command!r}: {answer}")
        return answer

    def counters(self, host: int) -> Counters:
        return Counters(*map(int, self.tell(f"count {host}").split()))

    def close(self) -> None:
        """Kills all that runs on the hosts; then hosts and devices are gone."""
        with contextlib.suppress(BrokenPipeError):
            self._commands.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        finally:
            if self._process.returncode is None:
                self._process.kill()
                self._process.wait()
            for stream in (self._answers, self._process.stderr):
                assert stream is not None
                stream.close()
