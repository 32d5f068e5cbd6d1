"""What a worker brings to a round, and how it is encoded: once, whatever becomes of the round's attempts."""

import mmap
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from swarm_diloco.diloco.ledger import DataRange, Evaluation
from swarm_diloco.rounds.settings import RunRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What a worker brings to a round. `delta` is read until the parts are encoded, then no more."""

    delta: Tensor  # float32 [values of the fragment], θ(global) − θ(local)
    base_round: int  # the round after which that θ was global
    weight: int  # tokens
    tokens: int  # since the last commit that lists this worker
    ranges: tuple[DataRange, ...]
    norm: float
    step_seconds: float
    evaluation: tuple[Evaluation, ...] = ()


def encode_parts(rules: RunRules, fragment: int, delta: Tensor) -> list[memoryview]:
    """Δ of one fragment, float32 [its values], as encoded parts in order.

    They lie in one block of memory, which goes back to the system with the last of them: the C library would keep it,
    and more than it, for later. Huge pages, where there are any, spare a fault for each 4 KiB.
    """
    slices = rules.part_slices(fragment)
    sizes = [rules.upload.encoded_bytes(where.stop - where.start) for where in slices]
    block = mmap.mmap(-1, sum(sizes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            block.madvise(mmap.MADV_HUGEPAGE)
    parts = [memoryview(block)[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
    for where, part in zip(slices, parts, strict=True):
        part[:] = rules.upload.encode(delta[where])
    return [part.toreadonly() for part in parts]
