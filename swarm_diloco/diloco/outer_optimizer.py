"""The outer step: Nesterov momentum on the averaged pseudo-gradient, to the last bit the same everywhere.

    m ← μ m + Δ;   θ ← θ − lr (Δ + μ m)

This is SGD(nesterov=True) of arXiv 2311.08105, written as single multiplies and adds (see `arithmetic`: torch's own
kernel gives other bits on other processors). μ ramps up with the number of results applied, because a momentum of 0.9
from the start loses at every horizon that we measured.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from swarm_diloco.diloco.arithmetic import CHUNK_VALUES, check_vectors, chunks, squash_, squashed, to_float32


@dataclass(frozen=True, kw_only=True, slots=True)
class OuterSettings:
    """Bounds keep every product of two of the step's numbers between 2^−126 and float32's largest."""

    learning_rate: float = 0.8
    momentum: float = 0.9  # what the ramp ends at
    momentum_ramp: int = 30  # results; μ is n / (n + ramp) until that exceeds `momentum`; 0 = no ramp

    def __post_init__(self) -> None:
        if not 0.001 <= self.learning_rate <= 10:
            raise ValueError(f"outer learning_rate is from 0.001 to 10, not {self.learning_rate}")
        if self.momentum != 0 and not 0.001 <= self.momentum <= 0.999:
            raise ValueError(f"outer momentum is 0 or from 0.001 to 0.999, not {self.momentum}")
        if not 0 <= self.momentum_ramp <= 100_000:
            raise ValueError(f"outer momentum_ramp is from 0 to 100000 results, not {self.momentum_ramp}")


def momentum_at(settings: OuterSettings, num_applied: int) -> float:
    """μ = min(momentum, n / (n + ramp)) in float64, n = results of this fragment applied before; voids do not count."""
    if num_applied < 0:
        raise ValueError(f"{num_applied} results applied")
    if settings.momentum_ramp == 0:
        return settings.momentum
    return min(settings.momentum, num_applied / (num_applied + settings.momentum_ramp))


def outer_step_(
    theta: Tensor, momentum_buffer: Tensor, delta: Tensor, settings: OuterSettings, num_applied: int
) -> None:
    """Apply one result in place to a fragment's θ and m; Δ is left as it is.

    All are contiguous 1-D float32 vectors on the CPU, of one length. Δ is finite and within ±2^100, as from a decoder.
    Raises ValueError, and has then changed nothing.
    """
    check_vectors(theta=theta, momentum_buffer=momentum_buffer, delta=delta)
    learning_rate = to_float32(settings.learning_rate)
    momentum = to_float32(momentum_at(settings, num_applied))
    scratch = torch.empty(2, min(delta.numel(), CHUNK_VALUES))
    for chunk in chunks(delta.numel()):
        gradient, update = scratch[:, : chunk.stop - chunk.start]
        squashed(delta[chunk], out=gradient)
        m = squash_(momentum_buffer[chunk])
        squash_(m.mul_(momentum).add_(gradient))
        torch.mul(m, momentum, out=update)
        squash_(squash_(update.add_(gradient)).mul_(learning_rate))
        squash_(theta[chunk].sub_(update))
