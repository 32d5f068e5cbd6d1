"""The log's records: what a round decided, who voted for it, and the digest that chains them.

A *commit* decides one round. A *certificate* is a majority's votes for it at one ballot. A *header* is both: all that
is kept for ever. D_r = blake3(the commit's bytes); the certificate is outside, so any majority gives the same digest.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from swarm_diloco.diloco.records import HASH_BYTES, Field, Fields, hash_of, pack, unpack
from swarm_diloco.errors import RecordError

FORMAT_VERSION = 1
MAX_COMMIT_BYTES = 3 * 2**19  # 16,384 parts take 0.8 MB, 64 members with 256 ranges each 0.3 MB
MAX_HEADER_BYTES = MAX_COMMIT_BYTES + 2**16
COMMITS_AT_HAND = 4
MAX_MEMBERS = 4096
MAX_RANGES = 256
MAX_PARTS = 2**14
MAX_TOKENS = 2**53 - 1  # exact in float64, which forms the weights' quotients
MAX_DURATION_MS = 30 * 86_400_000


class Kind(IntEnum):
    NORMAL = 0
    VOID = 1  # closes a round in which nothing could be averaged; credits nothing
    LEVER = 2  # an operator's signed change
    GENESIS = 3  # round 0


@dataclass(frozen=True, slots=True, order=True)
class DataRange:
    """Trained sequences [first, end) of a shard, in the order of the pass's permutation."""

    data_pass: int
    shard: int
    first: int
    end: int

    def fields(self) -> list[Field]:
        return [self.data_pass, self.shard, self.first, self.end]

    @classmethod
    def read(cls, fields: Fields) -> "DataRange":
        data_range = cls(fields.integer(), fields.integer(), fields.integer(), fields.integer())
        if data_range.first >= data_range.end:
            raise RecordError(f"data range [{data_range.first}, {data_range.end}) is empty")
        return data_range


@dataclass(frozen=True, slots=True)
class Member:
    """One peer in a commit. Archives and bootstrap peers have weight 0."""

    peer: str
    weight: int  # tokens; scales the average
    tokens_from: int  # of the member's own counter: (tokens_from, tokens_to] is what this commit credits
    tokens_to: int
    reachable: bool  # others can dial it
    ranges: tuple[DataRange, ...]
    knock_hash: bytes  # of the signed knock; zeros in the genesis

    @property
    def tokens(self) -> int:
        return self.tokens_to - self.tokens_from

    def fields(self) -> list[Field]:
        ranges = [data_range.fields() for data_range in self.ranges]
        tokens = [self.tokens_from, self.tokens_to]
        return [self.peer, self.weight, tokens, int(self.reachable), ranges, self.knock_hash]

    @classmethod
    def read(cls, fields: Fields) -> "Member":
        peer, weight = fields.string(), fields.integer(maximum=MAX_TOKENS)
        tokens = fields.required(lambda pair: (pair.integer(maximum=MAX_TOKENS), pair.integer(maximum=MAX_TOKENS)))
        if tokens[0] > tokens[1]:
            raise RecordError(f"member {peer}: its token counter runs backwards")
        reachable, ranges = fields.flag(), fields.list_of(DataRange.read, limit=MAX_RANGES)
        return cls(peer, weight, *tokens, reachable, ranges, fields.hash_())


@dataclass(frozen=True, slots=True)
class PartRecord:
    """One part of the result: its bytes by hash, and whose contributions are in it."""

    attempt: int
    result_hash: bytes
    senders: bytes  # bit i (little-endian) = member i of the commit
    weight_sum: int

    def lists(self, member: int) -> bool:
        return is_in_bitmap(self.senders, member)

    def fields(self) -> list[Field]:
        return [self.attempt, self.result_hash, self.senders, self.weight_sum]

    @classmethod
    def read(cls, fields: Fields) -> "PartRecord":
        return cls(fields.integer(maximum=255), fields.hash_(), read_bitmap(fields), fields.integer(maximum=MAX_TOKENS))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out loss of the outer parameters after `round`."""

    set_name: str
    round: int
    loss_micronats: int  # millionths of a nat a token
    tokens: int

    def fields(self) -> list[Field]:
        return [self.set_name, self.round, self.loss_micronats, self.tokens]

    @classmethod
    def read(cls, fields: Fields) -> "Evaluation":
        return cls(fields.string(), fields.integer(), fields.integer(), fields.integer())


@dataclass(frozen=True, slots=True)
class Head:
    """The newest commit that a peer knows."""

    round: int
    digest: bytes

    def fields(self) -> list[Field]:
        return [self.round, self.digest]

    @classmethod
    def read(cls, fields: Fields) -> "Head":
        return cls(fields.integer(), fields.hash_())


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one round decided. `base` is blake3(θ_f ‖ m_f) before the round; in the genesis, all fragments' in order."""

    run: bytes
    round: int
    fragment: int
    prev: bytes  # D_{r−1}; zeros in the genesis
    kind: Kind
    base: bytes
    members: tuple[Member, ...]
    parts: tuple[PartRecord, ...]
    next_due_ms: int  # from the reception of `decided` to the opening of round r+W
    wall_ms: int  # information only
    evaluation: tuple[Evaluation, ...] = ()
    absorbs: Head | None = None
    lever: bytes = b""

    def encode(self) -> bytes:
        return pack(
            [
                FORMAT_VERSION,
                self.run,
                self.round,
                self.fragment,
                self.prev,
                int(self.kind),
                self.base,
                [member.fields() for member in self.members],
                [part.fields() for part in self.parts],
                self.next_due_ms,
                self.wall_ms,
                [evaluation.fields() for evaluation in self.evaluation],
                self.absorbs.fields() if self.absorbs else [],
                self.lever,
            ]
        )

    @classmethod
    def decode(cls, data: bytes) -> "Commit":
        """Raises RecordError. Checks the form alone; whether it follows a chain is for rounds.decision to say."""
        fields = unpack(data, "commit", limit_bytes=MAX_COMMIT_BYTES)
        fields.version(FORMAT_VERSION)
        run, round_, fragment, prev = fields.hash_(), fields.integer(), fields.integer(maximum=2**16), fields.hash_()
        kind = Kind(fields.integer(maximum=max(Kind)))
        base = fields.bytes_(limit=HASH_BYTES * 2**8)
        members = fields.list_of(Member.read, limit=MAX_MEMBERS)
        parts = fields.list_of(PartRecord.read, limit=MAX_PARTS)
        next_due_ms, wall_ms = fields.integer(maximum=MAX_DURATION_MS), fields.integer()
        evaluation = fields.list_of(Evaluation.read, limit=16)
        absorbs = fields.optional(Head.read)
        lever = fields.bytes_(limit=4096)
        fields.end()
        if len({member.peer for member in members}) != len(members):
            raise RecordError("commit: it lists a member twice")
        if len(base) % HASH_BYTES or not base or (kind is not Kind.GENESIS and len(base) != HASH_BYTES):
            raise RecordError("commit: its base is not one hash, or in the genesis one a fragment")
        if any(int.from_bytes(part.senders, "little") >> len(members) for part in parts):
            raise RecordError("commit: a part lists a sender that is no member")
        if (kind is Kind.GENESIS) != (round_ == 0):
            raise RecordError("commit: round 0 and only round 0 is a genesis")
        if (kind is Kind.NORMAL) != bool(parts):
            raise RecordError("commit: a normal commit has parts, any other has none")
        return cls(
            run=run,
            round=round_,
            fragment=fragment,
            prev=prev,
            kind=kind,
            base=base,
            members=members,
            parts=parts,
            next_due_ms=next_due_ms,
            wall_ms=wall_ms,
            evaluation=evaluation,
            absorbs=absorbs,
            lever=lever,
        )

    def member(self, peer: str) -> Member | None:
        return next((member for member in self.members if member.peer == peer), None)

    @property
    def workers(self) -> tuple[str, ...]:
        """The members that trained for this round, in the commit's order."""
        return tuple(member.peer for member in self.members if member.weight > 0)

    @property
    def tokens(self) -> int:
        return sum(member.tokens for member in self.members)


def digest_of(commit: bytes) -> bytes:
    """D_r of a commit's received bytes."""
    return hash_of(commit)


def vote_message(run: bytes, round_: int, ballot: int, commit_digest: bytes) -> bytes:
    """What a council peer signs: (run id, r, b, H(commit))."""
    return pack([FORMAT_VERSION, "vote", run, round_, ballot, commit_digest])


def degraded_message(run: bytes, round_: int, ballot: int, commit_digest: bytes, plan: Sequence[str]) -> bytes:
    """What a peer signs for a degraded commit: the plan's ids are part of it."""
    return pack([FORMAT_VERSION, "degraded vote", run, round_, ballot, commit_digest, list(plan)])


def genesis_message(commit: bytes) -> bytes:
    """What the operator signs: commit 0's digest."""
    return pack([FORMAT_VERSION, "genesis", digest_of(commit)])


@dataclass(frozen=True, slots=True)
class Vote:
    peer: str  # in the genesis' header: the operator's key as a peer id
    signature: bytes

    def fields(self) -> list[Field]:
        return [self.peer, self.signature]

    @classmethod
    def read(cls, fields: Fields) -> "Vote":
        return cls(fields.string(), fields.bytes_(length=64))


@dataclass(frozen=True, slots=True)
class Header:
    """A commit's bytes and its certificate. `degraded` holds the plan's ids of a degraded commit, else nothing."""

    commit_bytes: bytes
    ballot: int
    votes: tuple[Vote, ...]
    degraded: tuple[str, ...] = ()

    def encode(self) -> bytes:
        votes = [vote.fields() for vote in self.votes]
        return pack([FORMAT_VERSION, self.commit_bytes, self.ballot, votes, list(self.degraded)])

    @classmethod
    def decode(cls, data: bytes) -> "Header":
        fields = unpack(data, "header", limit_bytes=MAX_HEADER_BYTES)
        fields.version(FORMAT_VERSION)
        commit_bytes, ballot = fields.bytes_(limit=MAX_COMMIT_BYTES), fields.integer()
        votes = fields.list_of(Vote.read, limit=MAX_MEMBERS)
        degraded = fields.strings(limit=MAX_MEMBERS)
        fields.end()
        if len({vote.peer for vote in votes}) != len(votes):
            raise RecordError("header: a peer votes twice")
        return cls(commit_bytes, ballot, votes, degraded)

    @property
    def digest(self) -> bytes:
        return digest_of(self.commit_bytes)

    def commit(self) -> Commit:
        """Raises RecordError."""
        return decoded(self.commit_bytes)


@lru_cache(maxsize=COMMITS_AT_HAND)
def decoded(commit_bytes: bytes) -> Commit:
    """As Commit.decode: on its way through a round a commit is read some seven times."""
    return Commit.decode(commit_bytes)


def member_bitmap(members: Collection[int]) -> bytes:
    """Indices to a little-endian bitmap without trailing zero bytes."""
    bits = sum(1 << member for member in set(members))
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def is_in_bitmap(bitmap: bytes, member: int) -> bool:
    return member // 8 < len(bitmap) and bool(bitmap[member // 8] >> (member % 8) & 1)


def read_bitmap(fields: Fields) -> bytes:
    """A member bitmap field. Raises RecordError for trailing zero bytes: one set of members, one form."""
    bitmap = fields.bytes_(limit=MAX_MEMBERS // 8)
    if bitmap.endswith(b"\0"):
        raise RecordError("a bitmap of members ends in zero bytes")
    return bitmap


def listed_spans(commit: Commit, peer: str, part_slices: Sequence[slice]) -> tuple[tuple[int, int], ...]:
    """Which of the fragment's values [first, end) the commit averages with this peer's contribution in them."""
    index = next((i for i, member in enumerate(commit.members) if member.peer == peer), None)
    spans: list[tuple[int, int]] = []
    for part, where in zip(commit.parts, part_slices, strict=False):
        if index is not None and part.lists(index):
            if spans and spans[-1][1] == where.start:
                spans[-1] = (spans[-1][0], where.stop)
            else:
                spans.append((where.start, where.stop))
    return tuple(spans)


def listed_values(commit: Commit, peer: str, part_sizes: Sequence[int]) -> int:
    """How many of the fragment's values the commit averages with this peer's contribution in them."""
    index = next((i for i, member in enumerate(commit.members) if member.peer == peer), None)
    if index is None or not commit.parts:
        return 0
    return sum(size for part, size in zip(commit.parts, part_sizes, strict=True) if part.lists(index))
