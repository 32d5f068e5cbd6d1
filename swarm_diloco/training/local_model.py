"""θ_local, and the arithmetic by which it meets the global θ of shared memory. When to use which, worker.py knows.

Vectors are float32 [N] on the CPU; the model itself may be on any device. Each method that reads θ returns the round
that θ belongs to, and raises TimeoutError if the client process died while writing it.
"""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.diloco.pseudo_gradient import norm, pseudo_gradient
from swarm_diloco.diloco.schedule import mix
from swarm_diloco.training.model import load_parameters, read_parameters
from swarm_diloco.training.shared_memory import SharedModel
from swarm_diloco.training.staleness import Span

FRAGMENT = 0  # the only one in this version; it is all of θ


class LocalModel:
    """The parameters of `model`, which are trained elsewhere in place. Raises ValueError if `layout` is not theirs."""

    def __init__(self, model: PreTrainedModel, layout: ParameterLayout, shared: SharedModel) -> None:
        if shared.num_values != layout.num_values:
            raise ValueError(f"shared memory has {shared.num_values} values, the model {layout.num_values}")
        self.model = model
        self.layout = layout
        self._shared = shared
        self._at_delta = self._read_local()  # θ_local when the last Δ was formed

    @property
    def global_round(self) -> int:
        """The round of θ now."""
        return self._shared.round_of(FRAGMENT)

    def form_delta(self) -> tuple[int, float]:
        """Write Δ = θ(global, current) − θ_local into shared memory; return θ's round and |Δ|₂.

        Raises ValueError if Δ is not finite; it is then not to be offered.
        """
        delta = self._shared.delta
        round_ = self._shared.read_fragment(self.layout.fragment_slices[FRAGMENT], FRAGMENT, delta)
        read_parameters(self.model, self.layout, self._at_delta)
        pseudo_gradient(delta, self._at_delta, out=delta)
        return round_, norm(delta)

    def take_global(self, taken: Sequence[Span] = ()) -> int:
        """θ_local ← θ, in the values `taken` alone if there are any."""
        theta, round_ = self._read_global()
        self._load(theta, taken)
        return round_

    def take_result(self, *, mixing: float, taken: Sequence[Span] = ()) -> int:
        """θ_local ← α θ_local + (1−α) θ_new, with α = `mixing`: steps since Δ are overwritten as far as α says."""
        if mixing == 0:
            return self.take_global(taken)
        theta, round_ = self._read_global()
        self._load(mix(self._read_local(), theta, mixing), taken)
        return round_

    def take_late_result(self, taken: Sequence[Span] = ()) -> int:
        """θ_local ← θ_new + (θ_local − θ_at_Δ): what was trained since Δ is kept."""
        theta, round_ = self._read_global()
        self._load(theta + (self._read_local() - self._at_delta), taken)
        return round_

    def _load(self, values: Tensor, taken: Sequence[Span]) -> None:
        """Into the model; where a commit does not list this worker, θ_local stays as it is."""
        if taken:
            local = self._read_local()
            for first, end in taken:
                local[first:end] = values[first:end]
            values = local
        load_parameters(self.model, self.layout, values)

    @contextlib.contextmanager
    def holding_global(self) -> Iterator[int]:
        """Inside, the model holds θ; afterwards θ_local again, to the bit."""
        local = self._read_local()
        theta, round_ = self._read_global()
        load_parameters(self.model, self.layout, theta)
        try:
            yield round_
        finally:
            load_parameters(self.model, self.layout, local)

    def _read_local(self) -> Tensor:
        return read_parameters(self.model, self.layout, torch.empty(self.layout.num_values))

    def _read_global(self) -> tuple[Tensor, int]:
        theta = torch.empty(self.layout.num_values)
        return theta, self._shared.read_fragment(self.layout.fragment_slices[FRAGMENT], FRAGMENT, theta)
