"""A worker's training text: which sequences, from whichever source, and what a contribution says about them."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from swarm_diloco.diloco.ledger import DataRange
from swarm_diloco.errors import DataError, SwarmDilocoError
from swarm_diloco.training.data.assignment import BlockPosition, DataCursor
from swarm_diloco.training.data.documents import DocumentSource, JsonlFile
from swarm_diloco.training.data.packing import pack
from swarm_diloco.training.data.prefetch import RETRY_SECONDS, Prefetcher
from swarm_diloco.training.data.remote import remote_documents, remote_shard
from swarm_diloco.training.data.settings import DataSettings, held_out_path, shard_path
from swarm_diloco.training.data.streams import WINDOW_TOKENS, ShardReader, Window
from swarm_diloco.training.data.tokenizer import Encoder

KEPT_WINDOWS = 2  # on disk a shard of a streamed source, which may be larger than the disk
WAIT_SECONDS = 600.0  # for a window that is not there yet: longer than all retries of a data host
HELD_OUT_TOKENS = 2**17

Range = tuple[int, int, int, int]  # (pass, shard, first, end): sequences [first, end) in the pass's order


class Position(Protocol):
    """What the log says of the text."""

    @property
    def workers(self) -> Sequence[str]:
        """Peer ids of all who train."""
        ...

    @property
    def credited(self) -> Iterable[tuple[int, int, int]]:
        """(pass, shard, end): blocks before `end` are trained and listed by a commit."""
        ...


class TrainingData:
    """Batches for one worker. One thread calls it; another, its own, prepares what comes next.

    A sequence counts as trained when `next_batch` has returned it: the position is exact however much is prepared.
    """

    def __init__(
        self,
        settings: DataSettings,
        folder: Path,
        tokenizer: PreTrainedTokenizerFast,
        *,
        sequence_length: int,
        seed: int,
        fetch: Callable[[str], Path],
        announce: Callable[[str], None] = lambda _: None,
        while_waiting: Callable[[], None] = lambda: None,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
        window_tokens: int = WINDOW_TOKENS,
    ) -> None:
        """Nothing is read yet.

        `folder`: for encoded text. `fetch`: a local path of one of the run's files, waiting for it if need be; called
        in the caller's thread only, within `next_batch` and `held_out`. `announce`: a file that `fetch` will be asked
        for; returns at once. `while_waiting`: called about once a second while text is not ready; may raise.
        """
        self._settings = settings
        self._folder = folder
        self._encoder = Encoder(tokenizer)
        self._sequence_length = sequence_length
        self._seed = seed
        self._fetch = fetch
        self._announce = announce
        self._while_waiting = while_waiting
        self._window_blocks = max(1, window_tokens // sequence_length)
        self._cursor = DataCursor(settings.shards, seed=seed)
        self._prefetcher = Prefetcher(retry_seconds)
        self._readers: dict[int, ShardReader] = {}
        self._windows: dict[tuple[int, int], Future[Window]] = {}  # the current one and the next
        self._announced: set[int] = set()
        self._failed_ahead: set[int] = set()  # shards
        self._notices: list[str] = []
        self._newest_pass: int | None = None
        self._has_shards = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop preparing; bounded to seconds."""
        self._prefetcher.close()

    def assign(self, position: Position, me: str) -> None:
        """Take the log's word: call it for each new round, before the first `next_batch`. `me`: this worker's id."""
        credited = {(data_pass, shard): end for data_pass, shard, end in position.credited}
        self._cursor.assign(position.workers, credited, me)
        if self._has_shards and not self._cursor.owned:
            self._notices.append(
                f"more workers than the {self._settings.shards} shards of text: "
                "this one trains all of it in an order of its own, so some text is trained more often"
            )
        self._has_shards = bool(self._cursor.owned)

    def next_batch(self, num_sequences: int) -> torch.Tensor:
        """The next sequences, int64 [num_sequences, sequence_length], on the CPU. They count as trained from now on.

        Waits for text that is not ready. Raises DataError or DiskError; nothing counts as trained then, and calling
        again tries again.
        """
        if num_sequences < 1:
            raise ValueError(f"a batch has at least 1 sequence, not {num_sequences}")
        before = self._cursor.state()
        taken: list[torch.Tensor] = []
        missing = num_sequences
        try:
            while missing:
                rows = self._take(missing)
                missing -= len(rows)
                taken.append(rows)
        except BaseException:
            self._cursor.restore(before)
            raise
        self._look_ahead()
        return torch.cat(taken)

    def ranges(self) -> tuple[Range, ...]:
        """What was trained since the last `credit`, in sequences: for the next contribution."""
        return tuple((entry.data_pass, entry.shard, entry.first, entry.end) for entry in self._cursor.ranges())

    def credit(self, ranges: Iterable[Range]) -> None:
        """A commit has listed these, which `ranges` gave."""
        self._cursor.credit(DataRange(*entry) for entry in ranges)

    def forget(self) -> None:
        """What was trained since the last `credit` is thrown away: those sequences come again."""
        self._cursor.forget()

    def state(self) -> bytes:
        """For a checkpoint. With the log's word (`assign`) it gives the exact position."""
        return self._cursor.state()

    def restore(self, state: bytes) -> None:
        """Go on from `state`. Raises DataError if it is damaged or another run's; nothing has changed then."""
        self._cursor.restore(state)

    def notices(self) -> tuple[str, ...]:
        """What a user should read, since the last call: a new pass, a data host's failures."""
        notices, self._notices = self._notices, []
        return (*notices, *self._prefetcher.notices())

    def held_out(self, set_name: str = "held-out", *, max_tokens: int = HELD_OUT_TOKENS) -> torch.Tensor:
        """The first whole sequences of an evaluation set, int64 [n, sequence_length], at most `max_tokens`, n ≥ 1.

        The same for all peers. Raises DataError if the set holds no whole sequence.
        """
        max_blocks = max(1, max_tokens // self._sequence_length)
        split = self._settings.evaluation_split
        if self._settings.source == "hub" and split and set_name == "held-out":
            documents = remote_documents(self._settings, self._folder / "hub", split=split)
        else:
            documents = iter(JsonlFile(self._fetch(held_out_path(set_name))).open())
        blocks = pack(documents, self._encoder, self._sequence_length, max_blocks=max_blocks)
        if not len(blocks):
            raise DataError(f"the evaluation set {set_name!r} holds no {self._sequence_length} tokens")
        return blocks

    def _take(self, max_sequences: int) -> torch.Tensor:
        """Up to `max_sequences` from the current window, counted as trained; none if its shard has ended there."""
        at = self._cursor.position()
        reader = self._reader(at.shard)
        self._failed_ahead.discard(at.shard)
        index, first = divmod(at.block, self._window_blocks)
        window = self._wait_for(reader, index)
        if window.is_last:
            self._cursor.learn_length(at.shard, index * self._window_blocks + len(window.blocks))
        rows = reader.take(window, at.data_pass, first, max_sequences)
        if len(rows):
            self._cursor.advance(len(rows))
            number = at.pass_number + 1
            is_told = number & (number - 1) == 0  # pass 2, 4, 8, …: a short text begins anew at every round
            if self._newest_pass is not None and at.pass_number > self._newest_pass and is_told:
                self._notices.append(f"this worker's text begins anew, in another order: pass {number}")
            self._newest_pass = at.pass_number
        return torch.from_numpy(rows.astype(np.int64))

    def _reader(self, shard: int) -> ShardReader:
        if shard not in self._readers:
            source: DocumentSource
            if self._settings.source == "files":
                source = JsonlFile(self._fetch(shard_path(shard)))
            else:
                source = remote_shard(self._settings, shard, self._folder / "hub")
            self._readers[shard] = ShardReader(
                source,
                self._encoder,
                self._folder / "tokens",
                shard=shard,
                sequence_length=self._sequence_length,
                seed=self._seed,
                window_blocks=self._window_blocks,
                keep_windows=None if self._settings.source == "files" else KEPT_WINDOWS,
            )
        return self._readers[shard]

    def _ask(self, reader: ShardReader, index: int) -> Future[Window]:
        key = reader.shard, index
        if key not in self._windows:
            self._windows[key] = self._prefetcher.ask(reader, index)
        return self._windows[key]

    def _wait_for(self, reader: ShardReader, index: int) -> Window:
        future = self._ask(reader, index)
        deadline = time.monotonic() + WAIT_SECONDS
        try:
            while True:
                try:
                    return future.result(timeout=1.0)
                except TimeoutError as error:
                    if future.done():
                        raise
                    if time.monotonic() > deadline:
                        raise DataError(f"no text came for {WAIT_SECONDS:.0f} s") from error
                    self._while_waiting()
        except BaseException:
            self._windows.pop((reader.shard, index), None)
            future.cancel()
            raise

    def _look_ahead(self) -> None:
        """Have the current window and the next one made; forget all others."""
        at = self._cursor.position()
        wanted = [self._prepare(at)]
        current = self._windows.get(wanted[0])
        if current is not None and current.done() and current.exception() is None:
            wanted.append(self._prepare_next(at, current.result()))
        for key in set(self._windows) - set(wanted):
            self._windows.pop(key).cancel()
        for shard in set(self._readers) - {shard for shard, _ in wanted}:
            del self._readers[shard]

    def _prepare_next(self, at: BlockPosition, window: Window) -> tuple[int, int]:
        """Ask for what comes after `window`, which holds `at`; of another shard only when half of it is trained."""
        if not window.is_last:
            return self._prepare(dataclasses.replace(at, block=(window.index + 1) * self._window_blocks))
        after = self._cursor.following()
        if self._settings.source == "files" and after.shard not in self._announced:
            self._announced.add(after.shard)
            self._announce(shard_path(after.shard))
        half_done = 2 * (at.block % self._window_blocks) >= len(window.blocks)
        return self._prepare(after) if half_done else (after.shard, after.block // self._window_blocks)

    def _prepare(self, at: BlockPosition) -> tuple[int, int]:
        """Ask for the window that holds `at`; a failure is noted and comes again when the text is needed."""
        key = at.shard, at.block // self._window_blocks
        if at.shard not in self._failed_ahead:
            try:
                self._ask(self._reader(at.shard), key[1])
            except SwarmDilocoError as error:
                self._failed_ahead.add(at.shard)  # not again before it is needed: `fetch` may have waited long
                self._notices.append(f"the next text could not be prepared: {error}")
        return key
