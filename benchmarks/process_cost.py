"""What processes cost, seen from outside: CPU seconds, resident memory, bytes through their TCP sockets. Linux."""

import re
import subprocess
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

_CPUCLOCK_SCHED = 2  # of the kernel's dynamic clock ids: all threads of a process, in nanoseconds
_SS_PROCESS = re.compile(r"pid=(\d+)")
_SS_COUNTER = re.compile(r"\b(bytes_acked|bytes_received):(\d+)")


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of processes, those of their threads that have ended included."""
    return sum(time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED) for pid in pids)


def resident_bytes(pid: int) -> int:
    return _status_bytes(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """The most that was resident since `reset_peak`."""
    return _status_bytes(pid, "VmHWM")


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"{name} of process {pid}")


@dataclass(frozen=True, slots=True)
class TcpBytes:
    """Through the open TCP connections of some processes since these began; protocol overhead included."""

    sent: dict[str, int]  # connection -> bytes
    received: dict[str, int]

    def since(self, earlier: "TcpBytes") -> tuple[int, int]:
        """Sent and received from `earlier` to now."""
        sent = sum(count - earlier.sent.get(key, 0) for key, count in self.sent.items())
        received = sum(count - earlier.received.get(key, 0) for key, count in self.received.items())
        return sent, received


def tcp_bytes(pids: Collection[int]) -> TcpBytes:
    """From the kernel's own counters, by iproute2's `ss`."""
    listing = subprocess.run(["ss", "-tinpHO"], capture_output=True, text=True, check=True).stdout
    sent, received = {}, {}
    for line in listing.splitlines():
        if not any(int(pid) in pids for pid in _SS_PROCESS.findall(line)):
            continue
        connection = " ".join(line.split()[3:5])
        counters = dict(_SS_COUNTER.findall(line))
        sent[connection] = int(counters.get("bytes_acked", 0))
        received[connection] = int(counters.get("bytes_received", 0))
    return TcpBytes(sent, received)
