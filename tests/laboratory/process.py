"""A program on one host of a laboratory."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class HostProcess:
    """Runs in a session of its own; what it prints goes to the file `output`."""

    def __init__(self, command: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
        self.output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(environment),
                start_new_session=True,
            )

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """As Popen.returncode has it; None while it runs."""
        return self._process.poll()

    def wait(self, timeout_seconds: float) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout_seconds)

    def text(self) -> str:
        """What it has printed."""
        return self.output.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """To the program and what it has started in its session; nothing if all of it has ended."""
        if self.status is None:
            os.killpg(self.process_id, number)
