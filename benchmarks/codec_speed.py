"""How fast the codecs are on one core: values a second of CPU time, the median of several passes."""

import statistics
import time
from collections.abc import Callable

import torch
from made_up_vectors import fill

from swarm_diloco.diloco.aggregate import aggregate
from swarm_diloco.diloco.codec import CODEC_NAMES, Codec, codec

NUM_VALUES = 2**23
BLOCK_VALUES = 256
NUM_PASSES = 9
NUM_SENDERS = 4
AIMS = {("e3m0", "encode"): 150e6, ("e3m0", "decode"): 250e6}
WAYS = ("encode", "decode", "check", "sum")


def values_a_second(work: Callable[[], object], num_values: int) -> float:
    seconds = []
    for _ in range(NUM_PASSES):
        began_at = time.process_time()
        work()
        seconds.append(time.process_time() - began_at)
    return num_values / statistics.median(seconds)


def measure(part_values: int) -> dict[tuple[str, str], float]:
    """(codec, way) -> values a second, and ("memcpy", "") for copying float32 values, all by parts."""
    torch.set_num_threads(1)
    vector = torch.empty(NUM_VALUES)
    fill(vector.numpy(), 0)
    parts = [vector[start : start + part_values] for start in range(0, NUM_VALUES, part_values)]
    scratch = torch.empty(part_values)
    speeds = {("memcpy", ""): values_a_second(lambda: [scratch[: len(p)].copy_(p) for p in parts], NUM_VALUES)}
    for name in CODEC_NAMES:
        speeds |= {(name, way): speed for way, speed in _speeds_of(codec(name, BLOCK_VALUES), parts).items()}
    return speeds


def _speeds_of(form: Codec, parts: list[torch.Tensor]) -> dict[str, float]:
    encoded = [(form.encode(part), len(part)) for part in parts]

    def encode() -> None:
        for part in parts:
            form.encode(part)

    def decode() -> None:
        for data, num_values in encoded:
            form.decode(data, num_values)

    def check() -> None:
        for data, num_values in encoded:
            form.check(data, num_values)

    def sum_() -> None:
        for data, num_values in encoded:
            aggregate([data] * NUM_SENDERS, [1] * NUM_SENDERS, form, num_values)

    speeds = {way: values_a_second(work, NUM_VALUES) for way, work in zip(WAYS, (encode, decode, check), strict=False)}
    return speeds | {"sum": values_a_second(sum_, NUM_SENDERS * NUM_VALUES)}


def report(part_values: int) -> list[str]:
    speeds = measure(part_values)
    rows = [
        f"| {name} | " + " | ".join(f"{speeds[name, way] / 1e6:.0f}" for way in WAYS) + " |" for name in CODEC_NAMES
    ]
    return [
        f"Millions of values a second of CPU time on one core, blocks of {BLOCK_VALUES}, parts of {part_values:,} "
        f"values, median of {NUM_PASSES}.",
        f"`check` is what a part goes through when it comes, `sum` adds {NUM_SENDERS} senders' parts. Copying float32 "
        f"values: {speeds['memcpy', ''] / 1e6:.0f}.",
        "",
        "| codec | " + " | ".join(WAYS) + " |",
        "|---|" + "---|" * len(WAYS),
        *rows,
        "",
        *(
            f"- {name} {way} {speeds[name, way] / 1e6:.0f}M, aim at least {aim / 1e6:.0f}M: "
            f"{'met' if speeds[name, way] >= aim else 'MISSED'}"
            for (name, way), aim in AIMS.items()
        ),
    ]
