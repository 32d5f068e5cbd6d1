"""Tasks that live and end with their owner, and work that a cancellation must not cut in two.

asyncio.TaskGroup is almost that. But if its owner is cancelled while a child fails, it raises the child's error alone
(Python 3.11 and 3.12): whoever handles that error goes on, and the stop is lost.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """The tasks of one owner. `run` lets them live; before and after it, `start` does nothing."""

    def __init__(self) -> None:
        self.is_open = False
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order of starting: a simulation is to repeat itself
        self._news = asyncio.Event()
        self._error: BaseException | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Run `work` beside the others; None when they have ended."""
        if not self.is_open:
            work.close()
            return None
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if self.is_open and self._error is None:
            self._error = error
        self._news.set()

    async def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Until `main` ends; the others are then cancelled and waited for. Raises the first error of any of them."""
        self.is_open = True
        own = self.start(main)
        assert own is not None
        try:
            while not own.done() and self._error is None:
                self._news.clear()
                await self._news.wait()
        finally:
            self.is_open = False
            await end(self._tasks)
        if self._error is None and not own.cancelled():
            self._error = own.exception()
        if self._error is not None:
            raise self._error


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until they are done, whatever they raise."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def until_first(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, then cancel the others. Raises what that one raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(tasks)
    for task in tasks:
        if task in done:
            task.result()


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, which goes on to its end although we are cancelled meanwhile: a thread cannot be stopped midway."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen, and of less weight than the stop
        raise cancelled
    return task.result()
