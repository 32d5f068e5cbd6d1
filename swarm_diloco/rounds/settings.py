"""What all members of a run agree on about rounds, and the run as the round protocol sees it."""

from dataclasses import dataclass, field
from functools import cached_property

from swarm_diloco.diloco.codec import Codec, CodecSettings, codec
from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.diloco.ledger import MAX_PARTS, MAX_TOKENS
from swarm_diloco.diloco.outer_optimizer import OuterSettings
from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.network.handshake import PROTOCOL_VERSION


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundSettings:
    """The round protocol's bounds. Every one is a manifest setting; the defaults suit home links."""

    minimum_workers: int = 1  # a round waits until so many workers have knocked
    group_limit: int = 64  # members of one round; a knock past it is refused
    snapshot_interval: int = 8  # rounds between two snapshots; at most 8 per fragment
    part_values: int = 65536  # values in one part, the unit of transfer
    maximum_norm: float = 1e6  # a contribution's largest L2 norm
    maximum_weight: int = 2**40  # a contribution's largest weight, tokens
    opening_seconds: float = 60.0  # how long a coordinator waits for expected members before lateness is known
    patience_floor_seconds: float = 0.5  # it waits at least so long for them once lateness is known
    deadline_seconds: float = 90.0  # from a knock to the plan; then the next candidate is tried
    deadline_floor_seconds: float = 10.0  # from the plan to the decision, at least
    deadline_ceiling_seconds: float = 300.0  # and at most, however often it was raised
    degraded_seconds: float = 60.0  # overdue for so long (or 2 periods), a round goes on without its council
    alone_seconds: float = 600.0  # and a worker that reaches nobody goes on alone after so long (or 8 periods)
    greeting_seconds: float = 60.0  # at most so long between two words with peers met before, heads compared
    heartbeat_seconds: float = 2.0
    silence_seconds: float = 6.0  # a peer silent for so long (or ten round trips) counts as dead

    def __post_init__(self) -> None:
        for name, least, most in (
            ("minimum_workers", 1, self.group_limit),
            ("group_limit", 2, 1024),
            ("snapshot_interval", 1, 2**20),
            ("part_values", 1024, 2**22),
            ("maximum_norm", 1e-9, 1e30),
            ("maximum_weight", 1, MAX_TOKENS // 4096),
            ("opening_seconds", 0.01, 3600),
            ("patience_floor_seconds", 0.01, 3600),
            ("deadline_seconds", self.opening_seconds, 3600),
            ("deadline_floor_seconds", 0.05, 3600),
            ("deadline_ceiling_seconds", self.deadline_floor_seconds, 86_400),
            ("degraded_seconds", 0.1, 86_400),
            ("alone_seconds", self.degraded_seconds, 30 * 86_400),
            ("greeting_seconds", 0.1, 86_400),
            ("heartbeat_seconds", 0.01, 60),
            ("silence_seconds", 2 * self.heartbeat_seconds, 600),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"rounds.{name} must be from {least} to {most}, not {value}")


@dataclass(frozen=True, kw_only=True)
class RunRules:
    """One run as rounds/ sees it: no model, no data, only values, parts and rules."""

    run_id: bytes
    operator_key: bytes  # raw Ed25519 public key
    layout: ParameterLayout
    schedule: ScheduleSettings
    codec: CodecSettings = field(default_factory=CodecSettings)
    outer: OuterSettings = field(default_factory=OuterSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)

    def __post_init__(self) -> None:
        for fragment in range(self.num_fragments):
            if len(self.part_sizes(fragment)) > MAX_PARTS:
                raise ValueError(
                    f"rounds.part_values = {self.rounds.part_values} makes more than {MAX_PARTS} parts; raise it"
                )
        if self.rounds.snapshot_interval > 8 * self.num_fragments:
            raise ValueError(
                f"rounds.snapshot_interval must be at most 8 per fragment ({8 * self.num_fragments}), "
                f"not {self.rounds.snapshot_interval}"
            )

    @property
    def num_fragments(self) -> int:
        return self.schedule.fragments

    @property
    def window(self) -> int:
        """W: how many rounds may be open at once."""
        return 1 if self.num_fragments == 1 else min(self.num_fragments - 1, 3)

    @cached_property
    def upload(self) -> Codec:
        return codec(self.codec.upload, self.codec.block_values)

    @cached_property
    def download(self) -> Codec:
        return codec(self.codec.download, self.codec.block_values)

    def period_seconds(self, next_due_ms: int) -> float:
        """Between two rounds of one fragment, as a commit's next_due says it; 0 with pace "steps"."""
        return next_due_ms / 1000 * self.num_fragments / self.window

    def degraded_seconds(self, next_due_ms: int) -> float:
        """Overdue for so long, a round may be decided without its council."""
        return max(self.rounds.degraded_seconds, 2 * self.period_seconds(next_due_ms))

    def alone_seconds(self, next_due_ms: int) -> float:
        """Overdue for so long, a round may be decided by a single worker though others may be about."""
        return max(self.rounds.alone_seconds, 8 * self.period_seconds(next_due_ms))

    def fragment_slice(self, fragment: int) -> slice:
        """Where the fragment lies in θ."""
        return self.layout.fragment_slices[fragment]

    def part_slices(self, fragment: int) -> tuple[slice, ...]:
        """Where the parts lie, counted from the fragment's start."""
        return self._part_slices[fragment]

    def part_sizes(self, fragment: int) -> tuple[int, ...]:
        return self._part_sizes[fragment]

    @cached_property
    def _part_slices(self) -> tuple[tuple[slice, ...], ...]:
        fragments = range(self.num_fragments)
        return tuple(self.layout.part_slices(fragment, self.rounds.part_values) for fragment in fragments)

    @cached_property
    def _part_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Asked for with each part that comes: made anew, a round of 16,384 parts would cost their square."""
        return tuple(tuple(part.stop - part.start for part in slices) for slices in self._part_slices)

    @property
    def control_protocol(self) -> str:
        """Of the streams between a member and its coordinator."""
        return self._protocol("control")

    @property
    def parts_protocol(self) -> str:
        """Of the streams between a member and a reducer."""
        return self._protocol("parts")

    @property
    def ping_protocol(self) -> str:
        """A stream that opens is the answer."""
        return self._protocol("ping")

    def _protocol(self, name: str) -> str:
        """Peers of another run or version never meet."""
        return f"/swarm-diloco/{PROTOCOL_VERSION}/{self.run_id.hex()[:32]}/{name}"
