"""Running a command's asyncio program so that it can be stopped from outside and still cleans up."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def run_cancellable(program: Coroutine[Any, Any, T]) -> T:
    """Run `program` on uvloop. Ctrl-C, SIGTERM and SIGHUP cancel it: what it started, it ends.

    Raises KeyboardInterrupt or CancelledError then.
    """

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):  # Ctrl-C is asyncio's own to handle
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await program

    return uvloop.run(run())
