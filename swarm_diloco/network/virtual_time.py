"""An asyncio event loop whose clock jumps to the next timer whenever nothing is left to do.

An hour of timeouts passes in milliseconds, and always in the same way. Nothing real may be waited for on it: no thread,
no process, no socket.
"""

import asyncio
import math
import selectors
from collections.abc import Mapping
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and is virtual.

    Waiting for something that no timer can bring is a RuntimeError, going past `limit_seconds` a TimeoutError; both
    come out of run_until_complete.
    """

    def __init__(self, limit_seconds: float = math.inf) -> None:
        self._now_seconds = 0.0
        self._limit_seconds = limit_seconds
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now_seconds

    def advance(self, seconds: float) -> None:
        self._now_seconds += seconds
        if self._now_seconds > self._limit_seconds:
            self._limit_seconds = math.inf  # said once: what is cancelled now may still wait a little
            raise TimeoutError(f"this took more than {self._now_seconds:g} s of virtual time")


class _JumpingSelector(selectors.BaseSelector):
    """Instead of sleeping for the loop's timeout, moves the loop's clock on by it."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._selector = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = self._selector.select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise RuntimeError("virtual time stands still: every task waits for something that no timer will bring")
        self._loop.advance(max(0.0, timeout))
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._selector.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.modify(fileobj, events, data)

    def close(self) -> None:
        self._selector.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._selector.get_map()
