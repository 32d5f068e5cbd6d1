"""Frozen values that views show: facts, not texts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkStatus:
    """Another branch of the log that this peer has seen proof of."""

    since_round: int  # the first that was decided twice
    head_round: int  # of the other branch, as far as seen
    head_digest: str  # hex


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStatus:
    """Where a peer stands in the rounds."""

    round: int  # the newest that is in its replica; −1: no state yet
    digest: str  # of its log's head, hex
    open_round: int | None
    phase: str
    ballot: int  # of the council's ballots, or of those without it
    is_degraded: bool  # the round is being decided without the council's majority
    coordinator: str | None  # peer id
    council: tuple[str, ...]  # of the open round: more than half of it must be there
    members: tuple[str, ...]  # of the plan
    waiting_for: tuple[int, int] | None  # workers here, workers needed
    sent_bytes: int  # of parts, since the start
    received_bytes: int
    num_repairs: int  # of late: times that this peer's state was not the swarm's and was replaced
    forks: tuple[ForkStatus, ...]
