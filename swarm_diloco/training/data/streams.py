"""One shard as sequences in a shuffled order, made window by window and kept on disk.

A *window* is a fixed number of blocks in the order of the text; within a window, a pass takes them by a permutation
that is a pure function of (seed, pass, shard, window). So the position in a shard is one integer, training starts when
the first window is there, and nothing is buffered that a restart could lose.
"""

import io
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from swarm_diloco.disk import write_durably
from swarm_diloco.training.data.assignment import permutation
from swarm_diloco.training.data.documents import DocumentReader, DocumentSource
from swarm_diloco.training.data.packing import DOCUMENTS_A_CALL, Packer
from swarm_diloco.training.data.tokenizer import Encoder

WINDOW_TOKENS = 2**22  # 16 MB on disk, seconds to make: long against a round, short against a shard


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive blocks of a shard, not yet shuffled."""

    index: int
    blocks: NDArray[np.int32]  # [n, sequence_length], mapped from disk; n may be 0 past the shard's end
    is_last: bool  # the shard ends with these


class MakingStoppedError(Exception):
    """Making a window was stopped; what was made before is on disk."""


class ShardReader:
    """Makes and reads the windows of one shard; `window` in one thread, `take` in any one other."""

    def __init__(
        self,
        source: DocumentSource,
        encoder: Encoder,
        folder: Path,
        *,
        shard: int,
        sequence_length: int,
        seed: int,
        window_blocks: int,
        keep_windows: int | None = None,  # on disk, the newest made; None: all
    ) -> None:
        """`folder` holds the windows of all shards, of this tokenizer and text and of others. Nothing is read yet."""
        self.shard = shard
        self.window_blocks = window_blocks
        self._source = source
        self._encoder = encoder
        self._sequence_length = sequence_length
        self._seed = seed
        self._keep_windows = keep_windows
        origin = f"{encoder.definition} {encoder.eos_id} {sequence_length} {self.window_blocks} {source.identity}"
        self._folder = folder / f"{shard:05d}-{blake3(origin.encode()).hexdigest()[:16]}"
        self._making: _Making | None = None
        self._order: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def window(self, index: int, stopping: Callable[[], bool] = lambda: False) -> Window:
        """The window, made if it is not on disk: slow then. Past the shard's end: no blocks, and the last.

        Raises MakingStoppedError soon after `stopping` is true, DataError, DiskError, and whatever a stream of the web
        raises; calling again goes on from the last window that was made.
        """
        known = self._load(index)
        if known is not None:
            return known
        making, self._making = self._making, None
        if making is None or making.next_window > index:
            making = self._resume(index)
        while True:
            blocks, at, is_last = making.make(self.window_blocks, stopping)
            if is_last:
                num_blocks = at * self.window_blocks + len(blocks)
                write_durably(self._folder / "length", str(num_blocks).encode())
            else:
                write_durably(self._boundary_path(at + 1), making.boundary())
            if at == index or is_last:
                write_durably(self._window_path(at), _npy(blocks))
                self._drop_old(at)
            if is_last:
                return self._load(index) or Window(index, blocks, is_last=True)
            if at == index:
                self._making = making
                return Window(index, blocks, is_last=False)

    def take(self, window: Window, data_pass: int, first: int, count: int) -> NDArray[np.int32]:
        """Blocks [first, first + count) of the window in the pass's order, as far as it has them; a copy."""
        key = data_pass, window.index
        if self._order is None or self._order[0] != key:
            order = permutation(
                len(window.blocks), seed=self._seed, purpose="blocks", key=(data_pass, self.shard, key[1])
            )
            self._order = key, order
        return np.asarray(window.blocks)[self._order[1][first : first + count]]

    def block(self, data_pass: int, index: int) -> NDArray[np.int32] | None:
        """The pass's block at `index` of the shard, int32 [sequence_length]; None past its end. May be slow."""
        window = self.window(index // self.window_blocks)
        rows = self.take(window, data_pass, index % self.window_blocks, 1)
        return rows[0] if len(rows) else None

    def _load(self, index: int) -> Window | None:
        """The window from disk; None if it must be made, damaged files counting as missing."""
        try:
            length: int | None = int((self._folder / "length").read_text())
        except (OSError, ValueError):
            length = None
        expected = (
            self.window_blocks if length is None else min(self.window_blocks, length - index * self.window_blocks)
        )
        is_last = length is not None and length <= (index + 1) * self.window_blocks
        if expected <= 0:
            return Window(index, np.empty((0, self._sequence_length), dtype=np.int32), is_last)
        try:
            blocks = np.load(self._window_path(index), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        if blocks.shape != (expected, self._sequence_length) or blocks.dtype != np.int32:
            return None
        return Window(index, blocks, is_last)

    def _resume(self, index: int) -> "_Making":
        """Start at the last noted boundary that is not past the window."""
        for at in range(index, 0, -1):
            try:
                with np.load(self._boundary_path(at), allow_pickle=False) as boundary:
                    left_over, state = boundary["left_over"].astype(np.int32), str(boundary["state"])
            except (OSError, ValueError, EOFError, KeyError):
                continue
            return _Making(self._source.open(state), self._encoder, Packer(self._sequence_length, left_over), at)
        return _Making(self._source.open(), self._encoder, Packer(self._sequence_length), 0)

    def _drop_old(self, newest: int) -> None:
        if self._keep_windows is not None:
            kept = {self._window_path(newest - back) for back in range(self._keep_windows)}
            for path in set(self._folder.glob("window-*.npy")) - kept:
                path.unlink(missing_ok=True)  # a window in use stays mapped

    def _window_path(self, index: int) -> Path:
        return self._folder / f"window-{index:06d}.npy"

    def _boundary_path(self, index: int) -> Path:
        return self._folder / f"boundary-{index:06d}.npz"


class _Making:
    """Reading, encoding and packing on, from one window to the next."""

    def __init__(self, reader: DocumentReader, encoder: Encoder, packer: Packer, next_window: int) -> None:
        self.next_window = next_window
        self._reader = reader
        self._documents: Iterator[str] = iter(reader)
        self._encoder = encoder
        self._packer = packer

    def make(self, num_blocks: int, stopping: Callable[[], bool]) -> tuple[NDArray[np.int32], int, bool]:
        """The next window's blocks, its index, and whether the shard has ended."""
        is_last = False
        while self._packer.num_blocks < num_blocks and not is_last:
            if stopping():
                raise MakingStoppedError
            documents = list(itertools.islice(self._documents, DOCUMENTS_A_CALL))
            for tokens in self._encoder.encode(documents):
                self._packer.add(tokens)
            is_last = len(documents) < DOCUMENTS_A_CALL
        is_last = is_last and self._packer.num_blocks <= num_blocks
        index, self.next_window = self.next_window, self.next_window + 1
        return self._packer.take(num_blocks), index, is_last

    def boundary(self) -> bytes:
        """What `_Making` needs to go on from here: the reader's place and the tokens not yet in a window."""
        file = io.BytesIO()
        np.savez(file, left_over=self._packer.left_over(), state=np.array(self._reader.state()))
        return file.getvalue()


def _npy(blocks: NDArray[np.int32]) -> bytes:
    file = io.BytesIO()
    np.save(file, blocks, allow_pickle=False)
    return file.getvalue()
