"""Two decided commits for one round: found, proved, recorded and named (protocol rule 11, as far as noticing goes).

A fork is believed only with its proof: the other branch's headers from the last common commit on, each with a right
certificate by the council or plan that its own branch names. Whose branch wins is not decided here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swarm_diloco.diloco.ledger import MAX_HEADER_BYTES, Commit, Head, Header
from swarm_diloco.diloco.records import HASH_BYTES, pack, unpack
from swarm_diloco.disk import read_file, write_durably
from swarm_diloco.errors import DiskError, RecordError
from swarm_diloco.rounds.chain import Chain
from swarm_diloco.rounds.decision.checks import check_certificate
from swarm_diloco.rounds.library import Donor
from swarm_diloco.rounds.log import Log

FORK_VERSION = 1
MAX_FORKS = 64  # recorded
MAX_CHECKED = 4096  # headers of one branch
MAX_SHOWN = 8  # to one that asks


@dataclass(frozen=True, slots=True)
class Fork:
    """Another branch than this peer's log, up to where it was seen."""

    common_round: int  # the newest commit of both
    head: Head
    first: bytes  # its header of common_round + 1

    def encode(self) -> bytes:
        return pack([FORK_VERSION, self.common_round, self.head.fields(), self.first])

    @classmethod
    def decode(cls, data: bytes) -> "Fork":
        """Raises RecordError."""
        fields = unpack(data, "fork", limit_bytes=MAX_HEADER_BYTES + 2**10)
        fields.version(FORK_VERSION)
        common_round = fields.integer()
        fork = cls(common_round, fields.required(Head.read), fields.bytes_(limit=MAX_HEADER_BYTES))
        fields.end()
        return fork

    def __str__(self) -> str:
        return (
            f"another branch since round {self.common_round + 1}; its head is round {self.head.round}, "
            f"{self.head.digest.hex()[:16]}"
        )


class Forks:
    """The branches that this peer has seen, on its disk, by the digest of their first own commit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._forks: dict[bytes, Fork] = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            try:
                fork = Fork.decode(read_file(path, limit_bytes=2 * MAX_HEADER_BYTES))
                self._forks[Header.decode(fork.first).digest] = fork
            except (DiskError, RecordError):
                continue  # whoever has the branch will show it again

    def __len__(self) -> int:
        return len(self._forks)

    def all(self) -> tuple[Fork, ...]:
        """In the order of where they part."""
        return tuple(sorted(self._forks.values(), key=lambda fork: (fork.common_round, fork.first)))

    def shown(self) -> list[bytes]:
        """The newest ones, for others: not everybody reaches everybody."""
        return [fork.encode() for fork in self.all()[-MAX_SHOWN:]]

    def record(self, fork: Fork) -> None:
        """Make a proven fork durable. Raises DiskError."""
        digest = Header.decode(fork.first).digest
        known = self._forks.get(digest)
        if (known and known.head.round >= fork.head.round) or (not known and len(self._forks) >= MAX_FORKS):
            return
        write_durably(self._folder / digest.hex(), fork.encode())
        self._forks[digest] = fork


class _Branch(Chain):
    """Another peer's headers on top of what both logs share."""

    def __init__(self, log: Log, common_round: int) -> None:
        self.rules = log.rules
        self._log = log
        self._common_round = common_round
        self._commits: list[Commit] = []
        self._digests: list[bytes] = []

    @property
    def head(self) -> Head:
        round_ = self._common_round + len(self._commits)
        return Head(round_, self.digest(round_))

    def commit(self, round_: int) -> Commit:
        own = round_ - self._common_round - 1
        return self._commits[own] if own >= 0 else self._log.commit(round_)

    def digest(self, round_: int) -> bytes:
        own = round_ - self._common_round - 1
        return self._digests[own] if own >= 0 else self._log.digest(round_)

    def append(self, header: Header) -> None:
        """Raises RecordError if the header does not follow this branch."""
        nothing_credited: Mapping[str, int] = {}  # a certificate is checked without
        commit = check_certificate(self.view(self.head.round + 1, bytes(HASH_BYTES), nothing_credited), header)
        self._commits.append(commit)
        self._digests.append(header.digest)


async def find_fork(donor: Donor, log: Log) -> Fork | None:
    """Whether the donor's head lies on another branch than `log`; None if one of the two only is behind.

    Raises NetworkError, DataError, and RecordError when what it shows is not right.
    """
    head, _age = await donor.head()
    if head.round <= log.head.round and log.digest(head.round) == head.digest:
        return None
    newest = min(head.round, log.head.round)  # this log may move on while the donor answers
    common_round = await _common_round(donor, log, newest)
    if common_round == newest:
        return None
    branch = _Branch(log, common_round)
    first: bytes | None = None
    while branch.head.round < head.round and branch.head.round - common_round < MAX_CHECKED:
        headers = await donor.headers(branch.head.round + 1)
        if not headers:
            break
        for data in headers:
            branch.append(Header.decode(data))
            first = first or data
    if first is None:
        raise RecordError(f"{donor.peer} claims the head {head.digest.hex()[:16]} and shows no commit that leads there")
    return Fork(common_round, branch.head, first)


def proven_fork(data: bytes, log: Log) -> Fork | None:
    """A fork that another peer tells of, as far as its first header proves it; None if it is on my own branch.

    Raises RecordError.
    """
    fork = Fork.decode(data)
    first = Header.decode(fork.first)
    round_ = fork.common_round + 1
    if round_ > log.head.round or first.digest == log.digest(round_):
        return None
    check_certificate(log.view(round_, bytes(HASH_BYTES), {}), first)
    return Fork(fork.common_round, Head(round_, first.digest), fork.first)


async def _common_round(donor: Donor, log: Log, newest: int) -> int:
    """The newest round whose commit is the same there and here; all before it are then the same too."""
    low, high = 0, newest  # the genesis is common
    while low < high:
        middle = (low + high + 1) // 2
        headers = await donor.headers(middle)
        if headers and Header.decode(headers[0]).digest == log.digest(middle):
            low = middle
        else:
            high = middle - 1
    return low
