"""The swarm's log on this peer's disk: headers for ever, parts for a while, and what follows from them."""

from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path

from swarm_diloco.diloco.ledger import (
    MAX_HEADER_BYTES,
    Commit,
    Head,
    Header,
    Kind,
    genesis_message,
)
from swarm_diloco.diloco.records import HASH_BYTES, hash_of
from swarm_diloco.disk import read_file, write_durably
from swarm_diloco.errors import DataError, DiskError, RecordError
from swarm_diloco.network.identity import is_signed_by_key, public_key_of
from swarm_diloco.rounds.chain import Chain
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.settings import RunRules
from swarm_diloco.rounds.totals import Totals

MAX_PART_BYTES = 2**24 + 2**20  # the largest part at float32, with its scales
COMMITS_REMEMBERED = 512


def verify_genesis(data: bytes, *, run_id: bytes, operator_key: bytes) -> Header:
    """Check commit 0 against what the invite says. Raises RecordError."""
    header = Header.decode(data)
    commit = header.commit()
    if commit.kind is not Kind.GENESIS or commit.run != run_id or len(commit.base) % HASH_BYTES:
        raise RecordError("genesis: it is not this run's")
    signers = [vote for vote in header.votes if _key_of(vote.peer) == operator_key]
    if not any(
        is_signed_by_key(operator_key, genesis_message(header.commit_bytes), vote.signature) for vote in signers
    ):
        raise RecordError("genesis: it is not signed by the operator whom the invite names")
    return header


def _key_of(peer: str) -> bytes:
    try:
        return public_key_of(peer)
    except ValueError as error:
        raise RecordError(f"genesis: {error}") from error


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


class PartStore:
    """Results' parts by hash. `hold` keeps bytes in memory until `settle` writes or drops them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[bytes, bytes] = {}

    def hold(self, data: bytes, part_hash: bytes | None = None) -> bytes:
        """Gives the part's hash, which is taken from a caller who has just computed it."""
        if part_hash is None:
            part_hash = hash_of(data)
        self._held[part_hash] = data
        return part_hash

    def get(self, part_hash: bytes) -> bytes | None:
        """The part's bytes, or None; a damaged file is removed, to be fetched again."""
        if part_hash in self._held:
            return self._held[part_hash]
        path = self._path(part_hash)
        if not path.exists():
            return None
        try:
            data = read_file(path, limit_bytes=MAX_PART_BYTES)
        except DiskError:
            data = b""
        if hash_of(data) != part_hash:
            path.unlink(missing_ok=True)
            return None
        return data

    def make_durable(self, part_hashes: Iterable[bytes]) -> None:
        """Write held parts to disk. Raises DataError for one that is neither held nor on disk any more, DiskError."""
        for part_hash in part_hashes:
            data = self._held.get(part_hash)  # first: another task may make it durable and drop it meanwhile
            if self._path(part_hash).exists():
                continue
            if data is None:
                raise DataError(f"part {part_hash.hex()[:16]} is no longer here")
            write_durably(self._path(part_hash), data)

    def drop(self, part_hashes: Iterable[bytes]) -> None:
        """Keep no longer in memory what is durable."""
        for part_hash in part_hashes:
            self._held.pop(part_hash, None)

    def drop_held(self) -> None:
        self._held.clear()

    def prune(self, keep: Collection[bytes]) -> None:
        """Remove every part on disk that is not in `keep`."""
        names = {part_hash.hex() for part_hash in keep}
        if self._folder.exists():
            for path in self._folder.iterdir():
                if path.name not in names and not path.name.startswith("."):
                    path.unlink(missing_ok=True)

    def _path(self, part_hash: bytes) -> Path:
        return self._folder / part_hash.hex()


class Log(Chain):
    """Decided commits in order, with certificates. Appending is durable; what lies on disk is checked when opened."""

    def __init__(self, folder: Path, rules: RunRules, genesis: bytes) -> None:
        """Open the log under a run's folder. A missing or damaged header ends it there; the rest is fetched again.

        Raises RecordError if `genesis` is not the run's, DiskError.
        """
        self.rules = rules
        self.parts = PartStore(folder / "parts")
        self.totals = Totals()
        self._folder = folder / "log"
        self._digests: list[bytes] = []
        self._read_commit = lru_cache(maxsize=COMMITS_REMEMBERED)(self._load)
        header = verify_genesis(genesis, run_id=rules.run_id, operator_key=rules.operator_key)
        self._take(header.digest, header.commit())
        if not _holds(self._path(0), genesis):
            write_durably(self._path(0), genesis)
        while (following := self._stored(len(self._digests))) is not None:
            self._take(*following)
        self._num_written = 1 + max(int(path.name) for path in self._folder.iterdir() if path.name.isdigit())

    def has_lost(self, round_: int) -> bool:
        """Whether the round was decided here once, and its header, or an earlier one, is damaged since."""
        return len(self._digests) <= round_ < self._num_written

    def _stored(self, round_: int) -> tuple[bytes, Commit] | None:
        try:
            header = Header.decode(read_file(self._path(round_), limit_bytes=MAX_HEADER_BYTES))
            commit = header.commit()
        except (DiskError, RecordError):
            return None
        return (header.digest, commit) if commit.prev == self._digests[-1] and commit.round == round_ else None

    def _take(self, digest: bytes, commit: Commit) -> None:
        self._digests.append(digest)
        self.totals.add(commit)

    def _path(self, round_: int) -> Path:
        return self._folder / str(round_)

    def _load(self, round_: int) -> Commit:
        return Header.decode(self.header_bytes(round_)).commit()

    @property
    def head(self) -> Head:
        return Head(len(self._digests) - 1, self._digests[-1])

    def digest(self, round_: int) -> bytes:
        """D_r. Raises IndexError past the head."""
        return self._digests[round_]

    def header_bytes(self, round_: int) -> bytes:
        """A decided round's header. Raises DiskError."""
        if not 0 <= round_ < len(self._digests):
            raise DiskError(f"the log has no round {round_}; its head is round {len(self._digests) - 1}")
        return read_file(self._path(round_), limit_bytes=MAX_HEADER_BYTES)

    def commit(self, round_: int) -> Commit:
        return self._read_commit(round_)

    def newest(self, count: int) -> list[Commit]:
        """The last `count` commits, oldest first."""
        head = self.head.round
        return [self.commit(round_) for round_ in range(max(0, head - count + 1), head + 1)]

    def append(self, header: Header) -> None:
        """Make the next header durable. Its certificate was checked by the caller."""
        commit = header.commit()
        assert commit.round == len(self._digests)
        assert commit.prev == self._digests[-1]
        write_durably(self._path(commit.round), header.encode())
        self._take(header.digest, commit)

    def applied_after(self, round_: int) -> tuple[int, ...]:
        """How many results of each fragment the state after `round_` has taken."""
        applied = [self.totals.applied[fragment] for fragment in range(self.rules.num_fragments)]
        if round_ == 0:
            return (0,) * len(applied)
        for later in range(round_ + 1, self.head.round + 1):
            commit = self.commit(later)
            applied[commit.fragment] -= commit.kind is Kind.NORMAL
        return tuple(applied)

    def next_view(self, base: bytes) -> View:
        """Of the round after the head; `base` is this peer's own state's hash of that round's fragment."""
        return self.view(self.head.round + 1, base, self.totals.counters)

    def prune_parts(self, oldest_round: int) -> None:
        """Keep only the parts of rounds from `oldest_round` on."""
        rounds = range(max(1, oldest_round), self.head.round + 1)
        self.parts.prune({part.result_hash for round_ in rounds for part in self.commit(round_).parts})
