"""A run of the algorithm as a program of its own, for test_bits: `python outer_bits.py FLUSH_TO_ZERO`, 0 or 1.

Three workers' pseudo-gradients go through codec, sum and outer step for 240 rounds; half of the rows are trained in
the first round alone, so that their momentum decays into nothing. Prints, as JSON, for each way to do the outer step,
hashes of all bytes sent and of the state. The environment's ATEN_CPU_CAPABILITY picks the processor.
"""

import json
import sys
from collections.abc import Callable

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor
from torch.optim.sgd import sgd

from swarm_diloco.diloco.aggregate import aggregate
from swarm_diloco.diloco.codec import CODEC_NAMES, codec
from swarm_diloco.diloco.outer_optimizer import OuterSettings, momentum_at, outer_step_

NUM_VALUES = 80_000  # more than torch gives to one thread
TRAINED_ALWAYS = 40_000
NUM_ROUNDS = 240
SETTINGS = OuterSettings()
Step = Callable[[Tensor, Tensor, Tensor, int], None]


def our_step(theta: Tensor, m: Tensor, delta: Tensor, num_applied: int) -> None:
    outer_step_(theta, m, delta, SETTINGS, num_applied)


def step_without_squashing(theta: Tensor, m: Tensor, delta: Tensor, num_applied: int) -> None:
    mu = float(np.float32(momentum_at(SETTINGS, num_applied)))
    m.mul_(mu).add_(delta)
    theta.sub_(m.mul(mu).add_(delta).mul_(float(np.float32(SETTINGS.learning_rate))))


def torchs_step(theta: Tensor, m: Tensor, delta: Tensor, num_applied: int) -> None:
    mu = momentum_at(SETTINGS, num_applied)
    # The function that torch.optim.SGD calls.
    sgd(
        [theta],
        [delta],
        [m],
        lr=SETTINGS.learning_rate,
        momentum=mu,
        nesterov=True,
        dampening=0,
        weight_decay=0,
        maximize=False,
        foreach=False,
    )
    if mu == 0:
        m.copy_(delta)


STEPS: dict[str, Step] = {"ours": our_step, "without squashing": step_without_squashing, "torch's": torchs_step}


def run(step: Step) -> str:
    generator = np.random.Generator(np.random.Philox(7))

    def exact(exponent: int, num_values: int) -> Tensor:
        """Random multiples of 2^exponent, the same on any processor: seeded `torch.randn` is not."""
        return torch.from_numpy(
            generator.integers(-(2**20), 2**20, num_values).astype(np.float32) * np.float32(2.0**exponent)
        )

    hasher = blake3()
    theta, m = exact(-22, NUM_VALUES), torch.zeros(NUM_VALUES)
    for num_applied in range(NUM_ROUNDS):
        upload, download = (codec(CODEC_NAMES[(num_applied + k) % 4], 256) for k in (3, 2))
        encoded = []
        for exponent in (-25, -28, -100):
            delta = torch.zeros(NUM_VALUES)
            delta[:TRAINED_ALWAYS] = exact(exponent, TRAINED_ALWAYS)
            if num_applied == 0:
                delta[TRAINED_ALWAYS:] = exact(exponent, NUM_VALUES - TRAINED_ALWAYS)
            encoded.append(upload.encode(delta))
        result = download.encode(aggregate(encoded, [3, 7, 1000], upload, NUM_VALUES))
        step(theta, m, download.decode(result, NUM_VALUES), num_applied)
        hasher.update(b"".join(encoded) + result)
    return hasher.update(theta.numpy().tobytes() + m.numpy().tobytes()).hexdigest()


def main() -> None:
    flush_to_zero = sys.argv[1] == "1"
    assert torch.set_flush_denormal(flush_to_zero) or not flush_to_zero
    torch.set_num_threads(2)  # the second thread starts after the switch and takes it on
    with_two_threads = run(our_step)
    torch.set_num_threads(1)
    hashes = {name: [run(step)] for name, step in STEPS.items()}
    hashes["ours"].append(with_two_threads)
    print(json.dumps({"capability": torch.backends.cpu.get_cpu_capability(), "hashes": hashes}))


main()
