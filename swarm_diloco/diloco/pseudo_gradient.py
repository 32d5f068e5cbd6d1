"""The pseudo-gradient Δ = θ(global) − θ(local), of arXiv 2311.08105, algorithm 1.

Old minus new, so that it acts as a gradient.
"""

import math

import torch
from torch import Tensor

from swarm_diloco.diloco.arithmetic import check_vectors, chunks


def pseudo_gradient(theta_global: Tensor, theta_local: Tensor, out: Tensor) -> Tensor:
    """Write Δ into `out` and return it. All are contiguous 1-D float32 on the CPU; `out` may be one of the two.

    `theta_global` is the *current* global θ, never that of the worker's last round: that would count progress twice.
    """
    check_vectors(theta_global=theta_global, theta_local=theta_local, out=out)
    return torch.sub(theta_global, theta_local, out=out)


def norm(values: Tensor) -> float:
    """The Euclidean norm, summed in float64; its last digits depend on the processor.

    Raises ValueError naming the first value that is not finite: the norm is the cheapest check of that.
    """
    check_vectors(values=values)
    total = 0.0
    for chunk in chunks(values.numel()):
        wide = values[chunk].double()
        total += float(torch.dot(wide, wide))
    if not math.isfinite(total):
        index = int(values.isfinite().logical_not().nonzero()[0])
        raise ValueError(f"value {index} of {values.numel()} is {values[index].item()}")
    return math.sqrt(total)
