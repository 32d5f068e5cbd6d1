"""When a round is due, which fragment it syncs, and how a worker takes its result (arXiv 2501.18512, algorithm 2).

With H inner steps between two rounds of one fragment and P fragments, a round comes every H/P steps. Its Δ is formed τ
steps before its result is taken: θ_local ← α θ_local + (1−α) θ_new.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

STREAMING_VERSION = "0.2"  # of this program, in which several fragments, overlap and mixing come


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSettings:
    """Raises ValueError for what this version does not do yet, naming the one that will."""

    inner_steps: int  # H, between two rounds of one fragment
    fragments: int = 1  # P
    pattern: Literal["sequential"] = "sequential"  # which layers make a fragment
    overlap_steps: int = 0  # τ
    mixing: float = 0.0  # α
    pace: Literal["time", "steps"] = "time"  # due by the commit's clock, or after exactly H/P steps

    def __post_init__(self) -> None:
        if not 1 <= self.inner_steps <= 100_000:
            raise ValueError(f"schedule inner_steps is from 1 to 100000, not {self.inner_steps}")
        for name, value, only in (
            ("fragments", self.fragments, 1),
            ("pattern", self.pattern, "sequential"),
            ("overlap_steps", self.overlap_steps, 0),
            ("mixing", self.mixing, 0),
        ):
            if value != only:
                raise ValueError(f"schedule {name} is {only} until version {STREAMING_VERSION}, not {value}")
        if self.pace not in ("time", "steps"):
            raise ValueError(f"schedule pace is time or steps, not {self.pace}")

    @property
    def round_steps(self) -> int:
        """Inner steps between two rounds."""
        return steps_per_round(self.inner_steps, self.fragments)


def fragment_of_round(round_: int, num_fragments: int) -> int:
    """f = (r − 1) mod P. Round 0 is the genesis and syncs none."""
    if round_ < 1:
        raise ValueError(f"round {round_} syncs no fragment")
    return (round_ - 1) % num_fragments


def steps_per_round(inner_steps: int, num_fragments: int) -> int:
    """H/P. Raises ValueError unless it is a whole number of at least one step."""
    if inner_steps < num_fragments or inner_steps % num_fragments:
        raise ValueError(f"{inner_steps} inner steps cannot be split evenly between {num_fragments} fragments")
    return inner_steps // num_fragments


def round_due(num_steps: int, round_steps: int, *, overlap_steps: int = 0) -> int | None:
    """The round whose Δ is formed after `num_steps` inner steps, counted from the start of round 1; None if none is.

    Its result is taken `overlap_steps` later, after r · `round_steps` steps: with an overlap of 0, at once.
    """
    if not 0 <= overlap_steps < round_steps:
        raise ValueError(f"an overlap of {overlap_steps} steps does not fit between rounds {round_steps} steps apart")
    round_, rest = divmod(num_steps + overlap_steps, round_steps)
    return round_ if rest == 0 and round_ > 0 else None


def is_due(num_steps: int, round_steps: int, *, overlap_steps: int = 0) -> bool:
    """Whether a round's Δ is formed after `num_steps` inner steps."""
    return round_due(num_steps, round_steps, overlap_steps=overlap_steps) is not None


def mix(theta_local: Tensor, theta_new: Tensor, alpha: float) -> Tensor:
    """α θ_local + (1−α) θ_new, a new tensor; with α = 0 a copy of θ_new, whatever θ_local holds."""
    if not 0 <= alpha < 1:
        raise ValueError(f"mixing is from 0 up to 1, not {alpha}")
    return theta_new.clone() if alpha == 0 else torch.lerp(theta_new, theta_local, alpha)
