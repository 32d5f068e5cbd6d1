"""The arithmetic that every replica repeats to the last bit, whatever its processor.

Sum, codec and outer step use comparisons and single correctly rounded float32 operations alone: one multiply or one add
at a time, nothing fused (no `alpha=`, no `addcmul`, no `torch.optim`: their kernels fuse on some processors and not on
others). Values below 2^−100 are set to +0 before use and before storing. So nothing depends on denormal numbers, which
programs with flush-to-zero compute otherwise: what is left, times a factor of at least 2^−20, is a normal number, and
the sums formed here are 0 or normal, because terms that nearly cancel are multiples of 2^−125.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

SMALLEST = 2.0**-100  # smaller magnitudes become +0
LARGEST = (
    2.0**100
)  # larger magnitudes are refused: 2^28 below float32's limit, so that no sum or step of allowed factors overflows
CHUNK_VALUES = 2**16  # 256 KiB a vector: passes over it stay in cache, and torch's cost a call is spread over it

_BELOW_SMALLEST = float(np.nextafter(np.float32(SMALLEST), np.float32(0)))


def squash_(values: Tensor) -> Tensor:
    """Set magnitudes below 2^−100, and −0, to +0: in place, any shape. Not for NaN."""
    return torch.hardshrink(values, _BELOW_SMALLEST, out=values)


def squashed(values: Tensor, out: Tensor) -> Tensor:
    """`squash_` of a copy, written into `out`."""
    return torch.hardshrink(values, _BELOW_SMALLEST, out=out)


def to_float32(value: float) -> float:
    """The nearest float32, as a Python float: torch multiplies a float32 tensor by just this."""
    return float(np.float32(value))


def chunks(num_values: int) -> Iterator[slice]:
    """Consecutive slices of at most CHUNK_VALUES that cover `num_values`."""
    for start in range(0, num_values, CHUNK_VALUES):
        yield slice(start, min(start + CHUNK_VALUES, num_values))


def check_vectors(**vectors: Tensor) -> None:
    """Raise ValueError unless all are contiguous 1-D float32 vectors of one length on the CPU."""
    lengths = set()
    for name, vector in vectors.items():
        if vector.dim() != 1 or vector.dtype != torch.float32 or vector.device.type != "cpu":
            raise ValueError(
                f"{name} is to be a 1-D float32 vector on the CPU, not {vector.dtype} of shape "
                f"{tuple(vector.shape)} on {vector.device}"
            )
        if not vector.is_contiguous():
            raise ValueError(f"{name} is not contiguous")
        lengths.add(vector.numel())
    if len(lengths) > 1:
        raise ValueError("lengths differ: " + ", ".join(f"{name} {v.numel()}" for name, v in vectors.items()))
