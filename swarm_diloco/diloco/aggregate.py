"""The weighted mean of what the senders of one part sent, the same bits for whoever sums it again."""

from collections.abc import Sequence

import torch
from torch import Tensor

from swarm_diloco.diloco.arithmetic import check_vectors, chunks, squash_, to_float32
from swarm_diloco.diloco.codec import Codec, Data

MAX_WEIGHT_SUM = 2**53 - 1  # float64 holds all integers up to it


def coefficient(weight: int, total: int) -> float:
    """c_i = float32(w_i / Σw): the float64 quotient of two integers, rounded once."""
    if not 0 <= weight <= total <= MAX_WEIGHT_SUM or total == 0:
        raise ValueError(f"weight {weight} of {total}: it is to be 0 ≤ weight ≤ total < 2^53, and total not 0")
    return to_float32(weight / total)


class WeightedSum:
    """acc ← acc + c·x in float32, one multiply and one add a value, each product below 2^−100 taken as 0."""

    def __init__(self, num_values: int) -> None:
        self._total = torch.zeros(num_values)

    def add(self, values: Tensor, weight_coefficient: float) -> None:
        """Add a vector, contiguous 1-D float32, left as it is. The order of calls is part of the result."""
        check_vectors(values=values, total=self._total)
        for chunk in chunks(values.numel()):
            self._add_(chunk, values[chunk].clone(), weight_coefficient)

    def add_encoded(self, data: Data, codec: Codec, weight_coefficient: float) -> None:
        """Add what bytes that have passed `codec.check` stand for, a chunk at a time.

        The same as adding their decoded vector: tiny values make tiny products, as no coefficient is over 1.
        """
        for chunk, values in codec.checked_chunks(data, self._total.numel()):
            self._add_(chunk, values, weight_coefficient)

    def _add_(self, chunk: slice, values: Tensor, weight_coefficient: float) -> None:
        self._total[chunk].add_(squash_(values.mul_(weight_coefficient)))

    def total(self) -> Tensor:
        """The sum so far, not a copy."""
        return self._total


def aggregate(encoded: Sequence[Data], weights: Sequence[int], codec: Codec, num_values: int) -> Tensor:
    """The mean of the senders' encoded vectors, in the plan's order. All have passed `codec.check`.

    Raises RecordError if one has not its size, ValueError if there is none or the weights sum to 0.
    """
    if not encoded:
        raise ValueError("no sender, no mean")
    total = sum(weights)
    weighted_sum = WeightedSum(num_values)
    for data, weight in zip(encoded, weights, strict=True):
        weighted_sum.add_encoded(data, codec, coefficient(weight, total))
    return weighted_sum.total()
