"""What peers of a round say to each other (protocol rule 3), each as the fields of its record.

Reading checks form and bounds alone and raises RecordError; whether a message fits the round is for rounds.decision.
"""

from dataclasses import dataclass

from swarm_diloco.diloco.ledger import (
    MAX_COMMIT_BYTES,
    MAX_HEADER_BYTES,
    MAX_MEMBERS,
    MAX_PARTS,
    MAX_RANGES,
    MAX_TOKENS,
    DataRange,
    Evaluation,
    read_bitmap,
)
from swarm_diloco.diloco.records import Field, Fields
from swarm_diloco.errors import RecordError

MAX_PROMISES = 1024  # a council's, or all of a degraded plan's
MAX_KNOCK_BYTES = MAX_COMMIT_BYTES + 2**16  # with the vote that it reports
FIRST_DEGRADED = 2**32  # ballots from here on need no majority of the council: degraded commits (protocol rule 10)
MAX_BALLOT = 2**33


@dataclass(frozen=True, slots=True)
class VoteCast:
    """A vote that its sender has given in this round, with the commit it was for."""

    ballot: int
    commit_bytes: bytes

    def fields(self) -> list[Field]:
        return [self.ballot, self.commit_bytes]

    @classmethod
    def read(cls, fields: Fields) -> "VoteCast":
        return cls(fields.integer(maximum=MAX_BALLOT), fields.bytes_(limit=MAX_COMMIT_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Knock:
    """I take part in this round, at this ballot; I promise no vote below it."""

    fragment: int
    base: bytes  # blake3(θ_f ‖ m_f) against which Δ was taken
    weight: int = 0  # tokens; 0: no contribution
    tokens_from: int = 0
    tokens_to: int = 0
    ranges: tuple[DataRange, ...] = ()
    evaluation: tuple[Evaluation, ...] = ()
    upload_kilobits: int = 0  # a second, measured; 0: not known
    step_microseconds: int = 0  # one inner step; 0: does not train
    norm_millionths: int = 0  # of Δ
    reachable: bool = False
    vote: VoteCast | None = None  # one given at a degraded ballot only if there is no other: it counts less

    def fields(self) -> list[Field]:
        return [
            self.fragment,
            self.base,
            self.weight,
            [self.tokens_from, self.tokens_to],
            [data_range.fields() for data_range in self.ranges],
            [evaluation.fields() for evaluation in self.evaluation],
            self.upload_kilobits,
            self.step_microseconds,
            self.norm_millionths,
            int(self.reachable),
            self.vote.fields() if self.vote else [],
        ]

    @classmethod
    def read(cls, fields: Fields) -> "Knock":
        fragment, base, weight = fields.integer(maximum=2**16), fields.hash_(), fields.integer(maximum=MAX_TOKENS)
        tokens = fields.required(lambda pair: (pair.integer(maximum=MAX_TOKENS), pair.integer(maximum=MAX_TOKENS)))
        if tokens[0] > tokens[1]:
            raise RecordError("knock: its token counter runs backwards")
        return cls(
            fragment=fragment,
            base=base,
            weight=weight,
            tokens_from=tokens[0],
            tokens_to=tokens[1],
            ranges=fields.list_of(DataRange.read, limit=MAX_RANGES),
            evaluation=fields.list_of(Evaluation.read, limit=16),
            upload_kilobits=fields.integer(),
            step_microseconds=fields.integer(),
            norm_millionths=fields.integer(),
            reachable=fields.flag(),
            vote=fields.optional(VoteCast.read),
        )


@dataclass(frozen=True, slots=True)
class Coming:
    """I train for this round and am in no commit yet: wait for me as for an expected member."""

    def fields(self) -> list[Field]:
        return []

    @classmethod
    def read(cls, _fields: Fields) -> "Coming":
        return cls()


@dataclass(frozen=True, slots=True)
class NotMe:
    """Somebody else is this ballot's candidate."""

    candidate: str

    def fields(self) -> list[Field]:
        return [self.candidate]

    @classmethod
    def read(cls, fields: Fields) -> "NotMe":
        return cls(fields.string())


@dataclass(frozen=True, slots=True)
class Behind:
    """You lack commits that I have; the newest one's header proves it."""

    header: bytes

    def fields(self) -> list[Field]:
        return [self.header]

    @classmethod
    def read(cls, fields: Fields) -> "Behind":
        return cls(fields.bytes_(limit=MAX_HEADER_BYTES))


@dataclass(frozen=True, slots=True)
class Ahead:
    """You have commits that I lack; I fetch them from you or another. Knock again."""

    def fields(self) -> list[Field]:
        return []

    @classmethod
    def read(cls, _fields: Fields) -> "Ahead":
        return cls()


@dataclass(frozen=True, slots=True)
class Promised:
    """I have promised this ballot; yours is below it."""

    ballot: int

    def fields(self) -> list[Field]:
        return [self.ballot]

    @classmethod
    def read(cls, fields: Fields) -> "Promised":
        return cls(fields.integer(maximum=MAX_BALLOT))


@dataclass(frozen=True, slots=True)
class Refused:
    """This knock is not admitted, and why."""

    reason: str

    def fields(self) -> list[Field]:
        return [self.reason]

    @classmethod
    def read(cls, fields: Fields) -> "Refused":
        return cls(fields.string())


@dataclass(frozen=True, slots=True)
class OtherState:
    """This knock's base is not the state of the council's majority, whose knocks prove it: its sender needs repair."""

    knocks: tuple[bytes, ...]

    def fields(self) -> list[Field]:
        return [[knock] for knock in self.knocks]

    @classmethod
    def read(cls, fields: Fields) -> "OtherState":
        knocks = tuple(fields.rest(lambda knock: knock.bytes_(limit=MAX_KNOCK_BYTES)))
        if len(knocks) > MAX_PROMISES:
            raise RecordError(f"other state: {len(knocks)} knocks, more than a council's")
        return cls(knocks)


@dataclass(frozen=True, slots=True)
class Waiting:
    """I am here; the round waits for more workers."""

    have: int
    need: int

    def fields(self) -> list[Field]:
        return [self.have, self.need]

    @classmethod
    def read(cls, fields: Fields) -> "Waiting":
        return cls(fields.integer(), fields.integer())


@dataclass(frozen=True, slots=True)
class PlannedPart:
    reducer: int  # index into the plan's members
    attempt: int
    senders: bytes  # bit i (little-endian) = member i of the plan

    def fields(self) -> list[Field]:
        return [self.reducer, self.attempt, self.senders]

    @classmethod
    def read(cls, fields: Fields) -> "PlannedPart":
        return cls(fields.integer(maximum=MAX_MEMBERS), fields.integer(maximum=255), read_bitmap(fields))


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is in, with what weight, and who reduces which part. A later plan differs in failed parts' attempts alone."""

    members: tuple[tuple[str, int], ...]  # (peer, weight)
    parts: tuple[PlannedPart, ...]
    close_in_ms: int  # a reducer closes a part at latest so long after this plan
    deadline_in_ms: int

    def fields(self) -> list[Field]:
        members: list[Field] = [[peer, weight] for peer, weight in self.members]
        return [members, [part.fields() for part in self.parts], self.close_in_ms, self.deadline_in_ms]

    @classmethod
    def read(cls, fields: Fields) -> "Plan":
        members = fields.list_of(
            lambda member: (member.string(), member.integer(maximum=MAX_TOKENS)), limit=MAX_MEMBERS
        )
        parts = fields.list_of(PlannedPart.read, limit=MAX_PARTS)
        if any(part.reducer >= len(members) for part in parts):
            raise RecordError("plan: a reducer that is no member")
        return cls(members, parts, fields.integer(maximum=86_400_000), fields.integer(maximum=86_400_000))


@dataclass(frozen=True, slots=True)
class Sealed:
    """I have averaged a part; these are its bytes' hash and whose contributions are in it."""

    part: int
    attempt: int
    result_hash: bytes
    senders: bytes

    def fields(self) -> list[Field]:
        return [self.part, self.attempt, self.result_hash, self.senders]

    @classmethod
    def read(cls, fields: Fields) -> "Sealed":
        return cls(
            fields.integer(maximum=MAX_PARTS),
            fields.integer(maximum=255),
            fields.hash_(),
            read_bitmap(fields),
        )


@dataclass(frozen=True, slots=True)
class Propose:
    """Vote for this commit. Past ballot 0 a majority's knocks at this ballot come with it, at a degraded ballot all."""

    commit_bytes: bytes
    promises: tuple[bytes, ...]

    def fields(self) -> list[Field]:
        return [self.commit_bytes, [[promise] for promise in self.promises]]

    @classmethod
    def read(cls, fields: Fields) -> "Propose":
        return cls(
            fields.bytes_(limit=MAX_COMMIT_BYTES),
            fields.list_of(lambda promise: promise.bytes_(limit=MAX_KNOCK_BYTES), limit=MAX_PROMISES),
        )


@dataclass(frozen=True, slots=True)
class CastVote:
    """My vote: a signature over (run, round, ballot, H(commit))."""

    commit_digest: bytes
    signature: bytes

    def fields(self) -> list[Field]:
        return [self.commit_digest, self.signature]

    @classmethod
    def read(cls, fields: Fields) -> "CastVote":
        return cls(fields.hash_(), fields.bytes_(length=64))


@dataclass(frozen=True, slots=True)
class Decided:
    header: bytes

    def fields(self) -> list[Field]:
        return [self.header]

    @classmethod
    def read(cls, fields: Fields) -> "Decided":
        return cls(fields.bytes_(limit=MAX_HEADER_BYTES))


@dataclass(frozen=True, slots=True)
class Beat:
    """I am alive."""

    def fields(self) -> list[Field]:
        return []

    @classmethod
    def read(cls, _fields: Fields) -> "Beat":
        return cls()


@dataclass(frozen=True, slots=True)
class Here:
    """My head is the one that this message carries; what is yours?"""

    def fields(self) -> list[Field]:
        return []

    @classmethod
    def read(cls, _fields: Fields) -> "Here":
        return cls()


@dataclass(frozen=True, slots=True)
class Bye:
    """I leave now; do not expect me."""

    def fields(self) -> list[Field]:
        return []

    @classmethod
    def read(cls, _fields: Fields) -> "Bye":
        return cls()


Message = (
    Knock
    | Coming
    | NotMe
    | Behind
    | Ahead
    | Promised
    | Refused
    | OtherState
    | Waiting
    | Plan
    | Sealed
    | Propose
    | CastVote
    | Decided
    | Beat
    | Here
    | Bye
)
