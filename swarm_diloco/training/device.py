"""What this machine trains on: device, precision, and how many sequences go through it at once."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

import psutil
import torch
from transformers import PreTrainedModel

from swarm_diloco.errors import ModelError
from swarm_diloco.training.model import num_parameters
from swarm_diloco.training.settings import InnerSettings

PROBE_SIZE = 512  # a product of 0.3 GFLOP: milliseconds on one core, and past what the caches decide
PROBE_REPEATS = 4
BFLOAT16_GAIN = 1.3  # autocast converts weights at every step; a smaller gain in the product is lost in that
BFLOAT16_CAPABILITY = (8, 0)  # the first CUDA devices with bfloat16 units
ACTIVATION_VALUES = 40  # float32 values a token, layer and hidden unit that backward keeps, attention and MLP together
LOGIT_VALUES = 4  # float32 values a token and vocabulary entry: logits, their float32 copy, log-softmax, gradient
MEMORY_FRACTION = 0.5  # of what is free; the estimate is rough, and the machine has an owner


@dataclass(frozen=True, slots=True)
class Device:
    """Where forward and backward run, and in which precision their products are taken. Weights are float32."""

    device: torch.device
    dtype: torch.dtype  # of autocast

    @property
    def name(self) -> str:
        """For people: "cpu", or the card's name."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def autocast(self) -> AbstractContextManager[None]:
        """Around forward passes."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def forget(self) -> None:
        """Give cached memory back to the card, after a lack of it."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def choose_device(name: str | None = None, precision: str | None = None) -> Device:
    """The device asked for ("cuda", "cuda:1", "mps", "cpu"), else the fastest kind there is; the precision likewise.

    bfloat16 is taken only where it gains: on CUDA devices that have units for it, on a CPU whose matrix product is
    measured to be faster with it (some milliseconds). Raises ModelError if the device is not there.
    """
    if precision not in (None, "float32", "bfloat16"):
        raise ModelError(f'precision is "float32" or "bfloat16", not {precision!r}')
    try:
        device = torch.device(name) if name is not None else torch.device(_fastest_kind())
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for the device
        raise ModelError(f"no device {name!r} here: {error}") from error
    if precision is None:
        return Device(device, torch.bfloat16 if _gains_from_bfloat16(device) else torch.float32)
    return Device(device, torch.bfloat16 if precision == "bfloat16" else torch.float32)


def _fastest_kind() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _gains_from_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY
    if device.type == "cpu":
        return _product_seconds(torch.float32) > BFLOAT16_GAIN * _product_seconds(torch.bfloat16)
    return False


def _product_seconds(dtype: torch.dtype) -> float:
    """The best of a few: the first ones warm up, others may be disturbed."""
    left, right = torch.ones(PROBE_SIZE, PROBE_SIZE, dtype=dtype), torch.ones(PROBE_SIZE, PROBE_SIZE, dtype=dtype)
    seconds = []
    for _ in range(PROBE_REPEATS):
        started_at = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - started_at)
    return min(seconds)


def free_bytes(device: torch.device) -> int:
    """Memory that is free on the device now; on the host for a CPU and for devices that share its memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return int(psutil.virtual_memory().available)


def choose_micro_batch(model: PreTrainedModel, settings: InnerSettings, free: int) -> int:
    """Sequences in one forward pass: the batch, halved until what backward keeps fits into half of `free` bytes.

    An estimate to start from; a step that runs out of memory all the same halves it again (inner_loop). At least 1.
    """
    config = model.config
    values_a_token = (
        ACTIVATION_VALUES * config.num_hidden_layers * config.hidden_size + LOGIT_VALUES * config.vocab_size
    )
    sequence_bytes = 4 * values_a_token * settings.sequence_length
    optimizer_bytes = 4 * 3 * num_parameters(model)  # gradient and Adam's two moments
    room = MEMORY_FRACTION * free - optimizer_bytes
    micro_batch = settings.batch_sequences
    while micro_batch > 1 and micro_batch * sequence_bytes > room:
        micro_batch = (micro_batch + 1) // 2
    return micro_batch
