"""An app's life: it runs until it is done or told to stop, and then ends within seconds."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import uvloop

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
READER_GONE = (errno.EPIPE, errno.EIO)  # of a pipe, of a terminal
CTRL_C_STATUS = 130  # 128 + SIGINT, as shells have it; a stop by SIGTERM or SIGHUP is what was asked for: 0


class StopRequest:
    """How an app learns that it shall end.

    Until the app says `heed`, a signal cancels it: starting has nothing to save. From then on the first signal sets
    `event` alone, for a clean leave, the second one cancels, and a third ends the process on the spot.
    """

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.signal: signal.Signals | None = None  # the first that came
        self._is_heeded = False

    def heed(self) -> None:
        """From now on the app watches `event`."""
        self._is_heeded = True

    def come(self, number: signal.Signals, app: "asyncio.Task[None]") -> None:
        if self._is_heeded and self.signal is None:
            self.event.set()
        elif app.cancelling():
            os._exit(128 + number)  # children have a parent-death signal
        else:
            app.cancel()
        self.signal = self.signal or number

    def say(self, line: str) -> None:
        """Print a line. Once nobody is there to read it, that is a hang-up, and nothing more is printed."""
        try:
            print(line, flush=True)  # noqa: T201 - this is the program's output
        except OSError as error:  # a full disk costs the line
            if error.errno in READER_GONE:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, sys.stdout.fileno())
                os.close(null)
                if self.signal is None:
                    signal.raise_signal(signal.SIGHUP)


def run_app(app: Callable[[StopRequest], Awaitable[None]]) -> int:
    """Run `app` to its end on uvloop and return the program's exit status. What the app raises passes."""
    return uvloop.run(_run(app))


async def _run(app: Callable[[StopRequest], Awaitable[None]]) -> int:
    stop = StopRequest()
    loop = asyncio.get_running_loop()

    async def run() -> None:
        await app(stop)

    task = asyncio.create_task(run())
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.come, number, task)
    try:
        await task
    except asyncio.CancelledError:
        if stop.signal is None:
            raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return CTRL_C_STATUS if stop.signal is signal.SIGINT else 0
