"""Who trains which text, and from where: a pure function of the log and of what this worker has trained since.

A shard is owned by one worker of the swarm and trained in *passes*; the log credits blocks [first, end) of a pass. A
shard's next block is where its credit ends, whoever earned it: so a shard changes hands when workers come and go, and
what a crashed worker trained but nobody listed is trained again by the next owner, once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from swarm_diloco.diloco.ledger import MAX_RANGES, DataRange
from swarm_diloco.diloco.records import pack, unpack
from swarm_diloco.errors import DataError, RecordError

STATE_VERSION = 1
MAX_STATE_BYTES = 2**20
MAX_STATE_RANGES = 2**14
OWN_PASSES = 2**32  # pass numbers from here on are a worker's own order


def permutation(length: int, *, seed: int, purpose: str, key: Sequence[int] = ()) -> NDArray[np.int64]:
    """A shuffled range(length), int64, the same on any machine with any numpy.

    Positions are sorted by the outputs of SplitMix64 (Steele, Lea, Flood 2014) from a state that hashes the rest;
    numpy's own generators may change with its version (NEP 19).
    """
    words = ",".join(map(str, (seed, *key)))
    start = np.frombuffer(blake3(f"{purpose}:{words}".encode()).digest(length=8), dtype="<u8")
    state = start + np.arange(1, length + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(state ^ (state >> np.uint64(31)), kind="stable").astype(np.int64)


def shard_order(num_shards: int, *, seed: int, data_pass: int) -> NDArray[np.int64]:
    """The order in which shards are trained in a pass."""
    return permutation(num_shards, seed=seed, purpose="shards", key=(data_pass,))


def owners(num_shards: int, workers: Iterable[str], *, seed: int) -> tuple[str, ...]:
    """Each shard's owner, by rendezvous hashing with equal shares.

    A shard goes to the worker of the highest hash(shard, worker) that has room; every worker gets ⌊S/M⌋ or ⌈S/M⌉ of
    the S shards, so none is idle while S ≥ M. It does not depend on the order of `workers`, and few shards move when
    one comes or goes. Raises ValueError for no workers.
    """
    names = sorted(set(workers))
    if not names:
        raise ValueError("shards are owned by workers, and there are none")
    share, extra = divmod(num_shards, len(names))
    room = dict.fromkeys(names, share)
    owned = [""] * num_shards
    for shard in shard_order(num_shards, seed=seed, data_pass=0).tolist():
        ranked = sorted(names, key=lambda name: blake3(f"{seed}:{shard}:{name}".encode()).digest(), reverse=True)
        for name in ranked:
            if room[name] > 0 or (room[name] == 0 and extra > 0):
                extra -= room[name] == 0
                room[name] -= 1
                owned[shard] = name
                break
    return tuple(owned)


def own_pass(worker: str, number: int) -> int:
    """The pass number of a worker's own order, in which nobody else trains; `number` counts from 0."""
    worker_number = int.from_bytes(blake3(worker.encode()).digest(length=8), "little") % (2**31 - 1)
    return OWN_PASSES * (1 + worker_number) + number


@dataclass(frozen=True, slots=True)
class BlockPosition:
    """One sequence of the run's text."""

    data_pass: int
    shard: int
    block: int  # in the order of the pass's permutation

    @property
    def pass_number(self) -> int:
        """How often the text was trained before, as far as this position's order goes."""
        return self.data_pass % OWN_PASSES


class DataCursor:
    """Where this worker is in the text. No files, no clock.

    Use: `assign` when the log moves; `position` is the next block; `advance` when it is *trained*; `ranges` is what a
    contribution names; `credit` when a commit lists it; `forget` when what was trained is thrown away.
    """

    def __init__(self, num_shards: int, *, seed: int) -> None:
        self._num_shards = num_shards
        self._seed = seed
        self._worker: str | None = None
        self._owned: tuple[int, ...] = ()
        self._credited: dict[tuple[int, int], int] = {}
        self._pending: list[DataRange] = []  # trained, not yet listed by a commit, oldest first
        self._lengths: dict[int, int] = {}  # blocks a shard, of those seen to their end
        self._current: BlockPosition | None = None

    @property
    def owned(self) -> tuple[int, ...]:
        """The shards that are this worker's; with more workers than shards maybe none: it then trains all of them, in
        an order of its own.
        """
        return self._owned

    def assign(self, workers: Iterable[str], credited: Mapping[tuple[int, int], int], worker: str) -> None:
        """What the log says: who trains, and the end of each (pass, shard)'s credit. `worker` is this one.

        A worker that the log does not know yet is counted in, as the others will when it is listed.
        """
        shard_owners = owners(self._num_shards, {*workers, worker}, seed=self._seed)
        self._owned = tuple(shard for shard, owner in enumerate(shard_owners) if owner == worker)
        self._credited = dict(credited)
        self._worker = worker
        self._current = None

    def learn_length(self, shard: int, num_blocks: int) -> None:
        """The shard has ended: it holds `num_blocks`. The next `position` is in another pass or shard if need be."""
        if self._lengths.get(shard) != num_blocks:
            self._lengths[shard] = num_blocks
            self._current = None

    def position(self) -> BlockPosition:
        """The next block to train: of the shards in the lowest pass, the first in that pass's order.

        It may lie past its shard's end, as long as that is not known (`learn_length`).
        Raises DataError if no shard holds a whole sequence, AssertionError before `assign`.
        """
        if self._current is None:
            self._current = self._next_of(self._ends(), exclude=None)
        return self._current

    def following(self) -> BlockPosition:
        """Where training will go on when the shard of `position` has ended."""
        return self._next_of(self._ends(), exclude=self.position())

    def advance(self, num_blocks: int = 1) -> None:
        """The next `num_blocks` blocks from `position` on are trained."""
        at = self.position()
        end = at.block + num_blocks
        last = self._pending[-1] if self._pending else None
        if last is not None and (last.data_pass, last.shard, last.end) == (at.data_pass, at.shard, at.block):
            self._pending[-1] = DataRange(at.data_pass, at.shard, last.first, end)
        else:
            self._pending.append(DataRange(at.data_pass, at.shard, at.block, end))
            del self._pending[:-MAX_STATE_RANGES]
        ended = self._lengths.get(at.shard, end + 1) <= end
        self._current = None if ended else BlockPosition(at.data_pass, at.shard, end)

    def ranges(self) -> tuple[DataRange, ...]:
        """Trained since the last `credit`, oldest first; the newest MAX_RANGES if there are more.

        Only shards of a few blocks can give so many; a newer range of a shard then credits the older passes too.
        """
        return tuple(self._pending[-MAX_RANGES:])

    def credit(self, ranges: Iterable[DataRange]) -> None:
        """A commit has listed `ranges`, taken from `ranges` before; what was trained since remains pending."""
        listed = {(data_range.data_pass, data_range.shard, data_range.first): data_range.end for data_range in ranges}
        for (data_pass, shard, _), end in listed.items():
            self._credited[data_pass, shard] = max(end, self._credited.get((data_pass, shard), 0))
        remaining = []
        for pending in self._pending:
            end = listed.get((pending.data_pass, pending.shard, pending.first), pending.first)
            if end < pending.end:
                remaining.append(DataRange(pending.data_pass, pending.shard, max(end, pending.first), pending.end))
        self._pending = remaining
        self._current = None

    def forget(self) -> None:
        """What was trained since the last `credit` is thrown away: those blocks come again."""
        self._pending = []
        self._current = None

    def state(self) -> bytes:
        """What a restart needs besides the log: the ranges that wait for a commit."""
        return pack([STATE_VERSION, self._seed, self._num_shards, [entry.fields() for entry in self._pending]])

    def restore(self, state: bytes) -> None:
        """Take `state`'s place. Raises DataError if it is damaged or of another run; nothing is changed then."""
        try:
            fields = unpack(state, "the position in the text", limit_bytes=MAX_STATE_BYTES)
            fields.version(STATE_VERSION)
            run = fields.integer(), fields.integer()
            pending = fields.list_of(DataRange.read, limit=MAX_STATE_RANGES)
            fields.end()
        except RecordError as error:
            raise DataError(str(error)) from error
        if run != (self._seed, self._num_shards) or any(entry.shard >= self._num_shards for entry in pending):
            raise DataError("the position in the text is of a run with another seed or other shards")
        self._pending = list(pending)
        self._current = None

    def _ends(self) -> dict[tuple[int, int], int]:
        """Where each (pass, shard) has been trained to, credited or pending."""
        ends = dict(self._credited)
        for pending in self._pending:
            key = pending.data_pass, pending.shard
            ends[key] = max(pending.end, ends.get(key, 0))
        return ends

    def _next_of(self, ends: Mapping[tuple[int, int], int], *, exclude: BlockPosition | None) -> BlockPosition:
        assert self._worker is not None, "assign comes first"
        first_pass, owned = 0, [shard for shard in self._owned if self._lengths.get(shard) != 0]
        if not owned:
            first_pass = own_pass(self._worker, 0)
            owned = [shard for shard in range(self._num_shards) if self._lengths.get(shard) != 0]
        if not owned:
            raise DataError("no shard of the run's text holds a whole sequence")
        newest = dict.fromkeys(owned, first_pass)
        for data_pass, shard in ends:
            if shard in newest and data_pass // OWN_PASSES == first_pass // OWN_PASSES:
                newest[shard] = max(newest[shard], data_pass)
        candidates = [self._at(newest[shard], shard, ends, exclude) for shard in owned]
        lowest = min(candidate.data_pass for candidate in candidates)
        order = np.argsort(shard_order(self._num_shards, seed=self._seed, data_pass=lowest))  # a shard's place in it
        return min((at for at in candidates if at.data_pass == lowest), key=lambda at: int(order[at.shard]))

    def _at(
        self, data_pass: int, shard: int, ends: Mapping[tuple[int, int], int], exclude: BlockPosition | None
    ) -> BlockPosition:
        """The shard's next block, in the next pass if this one is done."""
        end = ends.get((data_pass, shard), 0)
        if end >= self._lengths.get(shard, end + 1):
            data_pass, end = data_pass + 1, 0
        if exclude is not None and (exclude.data_pass, exclude.shard) == (data_pass, shard):
            data_pass, end = data_pass + 1, 0
        return BlockPosition(data_pass, shard, end)
