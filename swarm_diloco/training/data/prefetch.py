"""Windows made in the background, so that reading and encoding text never slow a training step."""

import queue
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from swarm_diloco.errors import DataError, SwarmDilocoError
from swarm_diloco.training.data.streams import MakingStoppedError, ShardReader, Window
from swarm_diloco.training.data.web import HostError

RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0)  # a data host that is down or asks for patience


class Prefetcher:
    """One thread that makes the windows asked for, in order. A host's failures are retried with growing pauses."""

    def __init__(self, retry_seconds: Sequence[float] = RETRY_SECONDS) -> None:
        """`retry_seconds`: the pauses between tries; after the last the window has failed."""
        self._retry_seconds = tuple(retry_seconds)
        self._asked: queue.SimpleQueue[tuple[ShardReader, int, Future[Window]] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._notices: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask(self, reader: ShardReader, index: int) -> Future[Window]:
        """The window, when it is made; cancel what is not wanted any more. Fails with DataError or DiskError."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="text", daemon=True)
            self._thread.start()
        future: Future[Window] = Future()
        self._asked.put((reader, index, future))
        return future

    def notices(self) -> tuple[str, ...]:
        """What a user should read of failures and retries since the last call."""
        return tuple(self._notices.get() for _ in range(self._notices.qsize()))

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop; windows not yet made fail. A read that the host does not answer may outlive this, not the process."""
        self._stopping.set()
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            reader, index, future = asked
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._make(reader, index))
            except BaseException as error:  # goes to who waits
                future.set_exception(error)

    def _make(self, reader: ShardReader, index: int) -> Window:
        for pause in (*self._retry_seconds, None):
            try:
                return reader.window(index, self._stopping.is_set)
            except MakingStoppedError as error:
                raise DataError("reading of text was stopped") from error
            except SwarmDilocoError:  # ours: no retry mends it
                raise
            except Exception as error:  # datasets passes on what fsspec, aiohttp and pyarrow raise
                reason = str(error) if isinstance(error, HostError) else f"{type(error).__name__}: {error}"
                if pause is None:
                    raise DataError(
                        f"the data host has failed {len(self._retry_seconds) + 1} times: {reason}"
                    ) from error
                asked_for = error.retry_after_seconds if isinstance(error, HostError) else 0.0
                seconds = max(pause, asked_for) * random.uniform(1.0, 1.5)  # noqa: S311 - peers should not come together
                self._notices.put(f"the data host has failed ({reason}); trying again in {seconds:.0f} s")
                if self._stopping.wait(seconds):
                    raise DataError("reading of text was stopped") from error
        raise AssertionError("the last try returns or raises")
