"""θ and Δ in memory that the client process and the trainer process share, with a version of each fragment.

    bytes 0 … 4095             magic, number of values, number of fragments, then (sequence, round) of each fragment
    4096 … 4096 + 4 N          θ, float32: the client writes, both read
    next page … + 4 N          Δ, float32: the trainer writes before an Offer, the client reads after it

A fragment's *sequence* is odd while the client writes it (a seqlock): a reader copies, and copies again if the sequence
was odd or has moved. So the trainer never sees a torn fragment, and the client never waits for the trainer. The memory
is a memfd (an unlinked file where there is none), not /dev/shm, which is 64 MB in a container; it lives as long as one
process holds it.
"""

import contextlib
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from swarm_diloco.errors import DiskError

PAGE_BYTES = 4096
MAGIC = 0x5357_4152_4D30_3031
HEADER_WORDS = 3
MAX_FRAGMENTS = (PAGE_BYTES // 8 - HEADER_WORDS) // 2
READ_TIMEOUT_SECONDS = 60.0  # writing 10^9 values takes under one; longer means that the writer died in the middle
RETRY_SECONDS = 0.0005

_fence_lock = threading.Lock()


class SharedModel:
    """`theta` and `delta`: float32 CPU tensors [num_values] over the shared memory. One process writes θ, one writes Δ.

    `descriptor` is to be handed to the other process (`pass_fds`), which calls `attach`. `close` closes the descriptor;
    the memory itself goes when the last tensor over it goes.
    """

    def __init__(self, descriptor: int, num_values: int, num_fragments: int) -> None:
        memory = mmap.mmap(descriptor, _total_bytes(num_values))
        words: np.ndarray[tuple[int], np.dtype[np.int64]] = np.frombuffer(memory, np.int64, PAGE_BYTES // 8)
        self._header = words[:HEADER_WORDS]
        self._versions = words[HEADER_WORDS : HEADER_WORDS + 2 * num_fragments].reshape(num_fragments, 2)
        self.descriptor = descriptor
        self.num_values = num_values
        self.num_fragments = num_fragments
        self.theta = torch.frombuffer(memory, dtype=torch.float32, count=num_values, offset=PAGE_BYTES)
        self.delta = torch.frombuffer(
            memory, dtype=torch.float32, count=num_values, offset=PAGE_BYTES + _padded(4 * num_values)
        )

    @classmethod
    def create(cls, num_values: int, num_fragments: int) -> "SharedModel":
        """New memory, all zeros, each fragment at round 0. Raises DiskError if the machine has no room for it."""
        if num_values < 1 or not 1 <= num_fragments <= MAX_FRAGMENTS:
            raise ValueError(f"{num_values} values in {num_fragments} fragments; at most {MAX_FRAGMENTS} fragments")
        descriptor = _new_descriptor()
        try:
            _reserve(descriptor, _total_bytes(num_values))
        except OSError as error:
            os.close(descriptor)
            needed = f"{_total_bytes(num_values) / 1e6:.0f} MB"
            raise DiskError(f"no {needed} of shared memory for {num_values} parameters: {error.strerror}") from error
        shared = cls(descriptor, num_values, num_fragments)
        shared._header[:] = MAGIC, num_values, num_fragments
        return shared

    @classmethod
    def attach(cls, descriptor: int) -> "SharedModel":
        """The memory that another process created. Raises DiskError if the descriptor is something else."""
        size = os.fstat(descriptor).st_size
        start = os.pread(descriptor, HEADER_WORDS * 8, 0)
        magic, num_values, num_fragments = np.frombuffer(start.ljust(HEADER_WORDS * 8), np.int64).tolist()
        if magic != MAGIC or not 1 <= num_fragments <= MAX_FRAGMENTS or size != _total_bytes(num_values):
            raise DiskError(f"descriptor {descriptor} is not the shared memory of a model")
        return cls(descriptor, num_values, num_fragments)

    def close(self) -> None:
        """Close the descriptor. Tensors stay usable."""
        os.close(self.descriptor)

    @contextlib.contextmanager
    def writing(self, fragment: int) -> Iterator[None]:
        """While inside, readers of the fragment wait. One writer at a time; `set_round` inside names the version."""
        assert self._versions[fragment, 0] % 2 == 0, "two writers of one fragment"
        self._versions[fragment, 0] += 1
        _fence()
        try:
            yield
        finally:
            _fence()
            self._versions[fragment, 0] += 1

    def set_round(self, fragment: int, round_: int) -> None:
        """Say which round's result the fragment took last. Inside `writing` it appears together with the values."""
        self._versions[fragment, 1] = round_

    def round_of(self, fragment: int) -> int:
        """The round of the fragment, which a writer may be about to raise."""
        return int(self._versions[fragment, 1])

    def read_fragment(
        self,
        fragment_slice: slice,
        fragment: int,
        out: torch.Tensor,
        *,
        timeout_seconds: float = READ_TIMEOUT_SECONDS,
    ) -> int:
        """Copy θ[fragment_slice] into `out` (float32 CPU, same length) and return the round it belongs to.

        Raises TimeoutError if the fragment is being written all the while; `out` is then undefined.
        """
        give_up_at = time.monotonic() + timeout_seconds
        while True:
            before = int(self._versions[fragment, 0])
            if before % 2 == 0:
                _fence()
                out.copy_(self.theta[fragment_slice])
                round_ = int(self._versions[fragment, 1])
                _fence()
                if int(self._versions[fragment, 0]) == before:
                    return round_
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"fragment {fragment} was being written for {timeout_seconds:.0f} s")
            time.sleep(RETRY_SECONDS)


def _fence() -> None:
    """Keep this thread's loads and stores on their side: on Arm another core may see them in another order."""
    with _fence_lock:
        pass


def _padded(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _total_bytes(num_values: int) -> int:
    return PAGE_BYTES + 2 * _padded(4 * num_values)


def _new_descriptor() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("swarm-diloco model", os.MFD_CLOEXEC)
    descriptor, name = tempfile.mkstemp(prefix="swarm-diloco-model-")
    Path(name).unlink()
    return descriptor


def _reserve(descriptor: int, size: int) -> None:
    """Take the pages now: a page that cannot be had later is a bus error, not an exception."""
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
