"""Hosts, their links and what runs on them: a context manager that leaves nothing behind, however it ends."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from laboratory.emulator import Counters, Emulator, LaboratoryError
from laboratory.link import Link
from laboratory.process import HostProcess

PRIVATE_ADDRESS = "192.168.1.2"  # of every host behind a router, as at home
REAP_SECONDS = 10.0


class Laboratory:
    """`with Laboratory({"ann": Link(), "ben": Link()}) as laboratory`.

    The namespaces have no names, only the emulator's descriptors hold them: any number of laboratories run side by
    side, and when the emulator ends (it does when we do, even by SIGKILL) hosts, devices and processes are gone.
    """

    def __init__(
        self,
        links: Mapping[str, Link],
        *,
        subnet: str = "10.77.0",  # of the hosts' addresses; /24
        congestion: str | None = None,  # the hosts' TCP congestion control; None: this machine's
        folder: Path | None = None,  # for the processes' output; None: a temporary one
    ) -> None:
        self._links = dict(links)
        self._subnet, self._congestion, self._folder = subnet, congestion, folder
        self._numbers = {name: number for number, name in enumerate(links)}
        self._closing = contextlib.ExitStack()
        self._processes: list[HostProcess] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            if self._folder is None:
                self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="laboratory-")))
            stack.callback(self._reap)
            self._emulator = Emulator([self._description(name) for name in self._links])
            stack.callback(self._emulator.close)
            for name, link in self._links.items():
                self._emulator.tell(f"link {self._numbers[name]} {link.settings}")
                if self._congestion is not None:
                    self._choose_congestion(name, self._congestion)
            self._closing = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.close()

    def _choose_congestion(self, name: str, congestion: str) -> None:
        setting = f"echo {congestion} >/proc/sys/net/ipv4/tcp_congestion_control"
        done = subprocess.run(self.command(name, "sh", "-c", setting), check=False, capture_output=True)
        if done.returncode:
            raise LaboratoryError(
                f"{name} cannot have {congestion}: it is not in this machine's net.ipv4.tcp_allowed_congestion_control"
            )

    def _reap(self) -> None:
        for process in self._processes:  # the emulator has killed all but one that was not on its host yet
            process.signal(signal.SIGKILL)
            process.wait(REAP_SECONDS)

    def _description(self, name: str) -> str:
        public = self.address(name)
        return f"{public}@{PRIVATE_ADDRESS}" if self._links[name].is_behind_router else public

    # --- what there is

    @property
    def emulator_process_id(self) -> int:
        return self._emulator.process_id

    def address(self, name: str) -> str:
        """Where others see the host; behind a router it is the router's."""
        return f"{self._subnet}.{self._numbers[name] + 1}"

    def own_address(self, name: str) -> str:
        """What the host itself knows as its address."""
        return PRIVATE_ADDRESS if self._links[name].is_behind_router else self.address(name)

    def link(self, name: str) -> Link:
        return self._links[name]

    def counters(self, name: str) -> Counters:
        return self._emulator.counters(self._numbers[name])

    def namespace(self, name: str) -> int:
        """The inode by which /proc/PID/ns/net shows who is on this host."""
        return self._emulator.namespace(self._numbers[name]).stat().st_ino

    # --- links, while all runs

    def change(self, name: str, **changes: Any) -> None:
        """Fields of Link: `change("ann", loss_fraction=0.01)`. What is under way keeps its time."""
        if "is_behind_router" in changes:
            raise ValueError("a host cannot move behind a router")
        self._links[name] = replace(self._links[name], **changes)
        self._emulator.tell(f"link {self._numbers[name]} {self._links[name].settings}")

    def cut(self, name: str) -> None:
        """Nothing passes the host's link, in either direction; what is under way is lost."""
        self._emulator.tell(f"cut {self._numbers[name]} 1")

    def heal(self, name: str) -> None:
        self._emulator.tell(f"cut {self._numbers[name]} 0")

    def partition(self, *groups: Iterable[str]) -> None:
        """Packets pass only between hosts of one group. Hosts that no group names are one together."""
        group_of = {name: number for number, group in enumerate(groups, 1) for name in group}
        for name, host in self._numbers.items():
            self._emulator.tell(f"group {host} {group_of.get(name, 0)}")

    # --- processes

    def command(self, name: str, *command: str) -> list[str]:
        """The command as it runs on the host: for those who start processes in their own way."""
        return ["nsenter", f"--net={self._emulator.namespace(self._numbers[name])}", *command]

    def start(self, name: str, *command: str, **environment: str) -> HostProcess:
        assert self._folder is not None
        output = self._folder / f"{len(self._processes)}-{name}.txt"
        process = HostProcess(self.command(name, *command), output, environment)
        self._processes.append(process)
        return process

    def signal(self, target: HostProcess | str, number: signal.Signals) -> None:
        """To one process and its session; or to all that runs on a host, as when a laptop sleeps (SIGSTOP)."""
        if isinstance(target, HostProcess):
            target.signal(number)
            return
        for process_id in self.inhabitants(target):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, number)

    def inhabitants(self, name: str) -> Iterator[int]:
        """The processes on the host, also those that have left their starter's session."""
        return inhabitants(self.namespace(name))


def inhabitants(namespace: int) -> Iterator[int]:
    """The processes in the network namespace with this inode."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            if (folder / "ns" / "net").stat().st_ino == namespace:
                yield int(folder.name)
