"""A coordinator's view of the parts of its plan: who averages each, what is sealed, fetched, tried again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from swarm_diloco.diloco.ledger import is_in_bitmap, member_bitmap
from swarm_diloco.network.messages import Knock, Plan, PlannedPart, Sealed
from swarm_diloco.rounds.decision.checks import MAX_ATTEMPTS
from swarm_diloco.rounds.decision.sharing import share, share_out
from swarm_diloco.rounds.settings import RunRules

CLOSE_SLACK = 1.5  # lines are not always as fast as they were
CLOSE_FLOOR_FRACTION = 0.25  # of the deadline's floor: for plan, first bytes and a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What a plan is made from besides the knocks."""

    rules: RunRules
    fragment: int
    round: int
    deadline: float  # seconds
    doubtful: Collection[str] = ()  # reducers that have failed of late: others are asked first


@dataclass(slots=True)
class _Part:
    reducer: str
    expires_at: float
    attempt: int = 0
    sealed: Sealed | None = None
    is_held: bool = False
    is_fetching: bool = False
    tried: set[str] = field(default_factory=set)  # reducers of the attempts before


class Reducing:
    """Begins with the plan for `members` (peer, knock), in their order. `me` may reduce though nobody can dial it."""

    def __init__(self, settings: PlanSettings, members: Sequence[tuple[str, Knock]], *, me: str, now: float) -> None:
        self._settings = settings
        self._me = me
        self._knocks = dict(members)
        self._peers = [peer for peer, _ in members]
        self.failed_reducers: set[str] = set()
        rules = settings.rules
        sizes = rules.part_sizes(settings.fragment)
        sharing = share(
            [rules.upload.encoded_bytes(size) for size in sizes],
            self._result_bytes,
            senders={i: knock.upload_kilobits for i, (_, knock) in enumerate(members) if knock.weight},
            reducers=self._rates(self._fit(())),
            num_members=len(members),
            turn=(settings.round - 1) // rules.num_fragments,
        )
        close = self._close_seconds(sharing.seconds)
        self._attempt_seconds = close + 0.4 * (settings.deadline - close)  # then it has averaged, sealed and sent
        self._parts = [_Part(self._peers[reducer], now + self._attempt_seconds) for reducer in sharing.reducers]
        self.plan = Plan(
            tuple((peer, knock.weight) for peer, knock in members),
            tuple(
                PlannedPart(reducer, 0, member_bitmap(senders))
                for reducer, senders in zip(sharing.reducers, sharing.senders, strict=True)
            ),
            close_in_ms=int(close * 1000),
            deadline_in_ms=int(settings.deadline * 1000),
        )

    @property
    def _result_bytes(self) -> list[int]:
        rules = self._settings.rules
        return [rules.download.encoded_bytes(size) for size in rules.part_sizes(self._settings.fragment)]

    def _close_seconds(self, expected: float | None) -> float:
        """When a part is closed at latest: what the members' lines need and some more, or half of the deadline."""
        latest = self._settings.deadline / 2
        if expected is None:
            return latest
        floor = self._settings.rules.rounds.deadline_floor_seconds * CLOSE_FLOOR_FRACTION
        return min(floor + CLOSE_SLACK * expected, latest)

    def _fit(self, without: Collection[str]) -> list[str]:
        """Who may reduce: whom others can dial, and this peer itself. Doubtful ones if there is nobody else."""
        able = [
            peer for peer in self._peers if (self._knocks[peer].reachable or peer == self._me) and peer not in without
        ]
        return [peer for peer in able if peer not in self._settings.doubtful] or able

    def _rates(self, peers: Collection[str]) -> dict[int, int]:
        return {i: self._knocks[peer].upload_kilobits for i, peer in enumerate(self._peers) if peer in peers}

    # --- while it is followed

    @property
    def seals(self) -> list[Sealed]:
        return [part.sealed for part in self._parts if part.sealed is not None]

    @property
    def is_complete(self) -> bool:
        """Whether this coordinator holds all that was averaged."""
        return all(part.is_held for part in self._parts)

    def sealed(self, peer: str, sealed: Sealed) -> None:
        """A reducer's word that it has averaged a part; anybody else's is ignored."""
        if sealed.part >= len(self._parts):
            return
        part = self._parts[sealed.part]
        planned = int.from_bytes(self.plan.parts[sealed.part].senders, "little")
        senders = int.from_bytes(sealed.senders, "little")
        if peer == part.reducer and sealed.attempt == part.attempt and senders and not senders & ~planned:
            part.sealed = part.sealed or sealed

    def wakes_at(self) -> float | None:
        waits = [part.expires_at for part in self._parts if not part.is_held and not part.is_fetching]
        return min(waits) if waits else None

    def follow(
        self, now: float, *, gone: Collection[str], held: Collection[bytes], unavailable: Collection[bytes]
    ) -> tuple[list[int], list[tuple[int, bytes]]]:
        """Which parts have failed, and which (part, hash) are to be fetched from whoever holds them."""
        failed: list[int] = []
        fetches: list[tuple[int, bytes]] = []
        for index, part in enumerate(self._parts):
            is_over = part.reducer in gone or now >= part.expires_at
            if part.sealed is None:
                if is_over:
                    failed.append(index)
            elif part.sealed.result_hash in held:
                part.is_held = True
            elif part.sealed.result_hash in unavailable:
                failed.append(index)
            elif (is_over or self._me not in self._knocks) and not part.is_fetching:  # nobody sends it to a stranger
                part.is_fetching = True
                fetches.append((index, part.sealed.result_hash))
        return failed, fetches

    def attempt_again(self, failed: Sequence[int], now: float, *, gone: Collection[str]) -> bool:
        """Other reducers for these parts, in `plan`. False when no attempt, reducer or sender is left."""
        if any(self._parts[index].attempt + 1 >= MAX_ATTEMPTS for index in failed):
            return False
        self.failed_reducers |= {self._parts[index].reducer for index in failed}
        for index in failed:
            self._parts[index].tried.add(self._parts[index].reducer)
        tried = set().union(*(self._parts[index].tried for index in failed))
        able = self._fit({*tried, *gone}) or self._fit(gone)  # at last somebody who has failed, this peer at least
        if not able:
            return False
        num_bytes = sum(self._result_bytes[index] for index in failed)
        reducers = share_out(len(failed), self._rates(able), num_bytes=num_bytes, turn=self._settings.round)
        parts = list(self.plan.parts)
        for index, reducer in zip(failed, reducers, strict=True):
            before = self._parts[index]
            attempt = before.attempt + 1
            expires_at = now + self._attempt_seconds
            self._parts[index] = _Part(self._peers[reducer], expires_at, attempt, tried=before.tried)
            alive = [
                i for i, peer in enumerate(self._peers) if is_in_bitmap(parts[index].senders, i) and peer not in gone
            ]
            parts[index] = PlannedPart(reducer, attempt, member_bitmap(alive))
        self.plan = Plan(self.plan.members, tuple(parts), self.plan.close_in_ms, self.plan.deadline_in_ms)
        return all(parts[index].senders for index in failed)
