"""What one worker keeps for itself: local model, inner optimizer, counters, place in the text, random numbers.

One safetensors file, replaced whole. A restart from it goes on to the bit; without it, or if it is damaged, a worker
starts from the swarm's θ with a cold optimizer and has lost only what no commit lists.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from swarm_diloco.diloco.records import Field, pack, unpack
from swarm_diloco.disk import sync_folder
from swarm_diloco.errors import DiskError, RecordError
from swarm_diloco.training.inner_loop import AdamState, InnerLoop
from swarm_diloco.training.model import trainable_parameters
from swarm_diloco.training.progress import Progress

FILE_NAME = "worker.safetensors"
FORMAT_VERSION = 1
MAX_RECORD_BYTES = 2**22  # a million parameter tensors' step counts, and the data's state of at most 1 MiB
MAX_STEPS = 100_000  # parameter tensors
RECORD, HASH, THETA, FIRST, SECOND = "record", "hash", "theta/", "first_moment/", "second_moment/"
CPU_RANDOM, DEVICE_RANDOM = "random/cpu", "random/device"


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint holds besides tensors."""

    progress: Progress
    data_state: bytes


class Checkpoint:
    """The file in `folder`; the folder is made when first saved to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME

    def save(self, inner_loop: InnerLoop, saved: Saved) -> None:
        """Replace the file; on a crash or DiskError (full, unwritable) the old one is still there, whole."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _tensors(inner_loop).items()}
        steps = inner_loop.state().steps
        fields: list[Field] = [
            FORMAT_VERSION,
            saved.progress.fields(),
            saved.data_state,
            inner_loop.micro_batch,
            [steps[name] for name in sorted(steps)],
        ]
        tensors[RECORD] = _bytes(pack(fields))
        tensors[HASH] = _bytes(_hash(tensors))
        _write(self.path, tensors)

    def load(self, inner_loop: InnerLoop) -> Saved | None:
        """Set model, optimizer, micro-batch and random numbers from the file; None if there is none.

        Raises DiskError naming the file if it is damaged or of another model; nothing is changed then.
        """
        if not self.path.exists():
            return None
        try:
            tensors = load_file(self.path)
            if not torch.equal(tensors.pop(HASH), _bytes(_hash(tensors))):
                raise RecordError("its bytes are not those that were saved")
            record = unpack(tensors.pop(RECORD).numpy().tobytes(), "checkpoint", limit_bytes=MAX_RECORD_BYTES)
            record.version(FORMAT_VERSION)
            progress = record.required(Progress.read)
            data_state = record.bytes_(limit=MAX_RECORD_BYTES)
            micro_batch = record.integer(maximum=2**16)
            counts = record.integers(limit=MAX_STEPS)
            record.end()
            state = _adam_state(tensors, counts)
            _check(tensors, state, inner_loop)
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError, RecordError) as error:
            raise DiskError(f"{self.path} is damaged or of another model: {error}") from error
        _install(tensors, state, inner_loop)
        inner_loop.micro_batch = max(1, micro_batch)
        return Saved(progress, data_state)


def _tensors(inner_loop: InnerLoop) -> dict[str, Tensor]:
    """All that a restart needs, under its name in the file."""
    adam = inner_loop.state()
    tensors: dict[str, Tensor] = {THETA + name: p for name, p in trainable_parameters(inner_loop.model).items()}
    tensors |= {FIRST + name: moment for name, moment in adam.first_moments.items()}
    tensors |= {SECOND + name: moment for name, moment in adam.second_moments.items()}
    tensors[CPU_RANDOM] = torch.get_rng_state()
    if inner_loop.device.device.type == "cuda":
        tensors[DEVICE_RANDOM] = torch.cuda.get_rng_state(inner_loop.device.device)
    return tensors


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _hash(tensors: Mapping[str, Tensor]) -> bytes:
    """Over names and bytes, in order of names: a flipped bit on the disk must not reach the swarm."""
    hasher = blake3()
    for name in sorted(tensors):
        hasher.update(name.encode())
        hasher.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return hasher.digest()


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Aside, fsynced, renamed; straight from the tensors, whose bytes may be gigabytes."""
    temporary = path.with_name(f".writing-{FILE_NAME}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        raise DiskError(f"cannot write {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _adam_state(tensors: Mapping[str, Tensor], counts: Sequence[int]) -> AdamState:
    first = {name.removeprefix(FIRST): tensor for name, tensor in tensors.items() if name.startswith(FIRST)}
    second = {name.removeprefix(SECOND): tensor for name, tensor in tensors.items() if name.startswith(SECOND)}
    if first.keys() != second.keys() or len(first) != len(counts):
        raise RecordError("the optimizer's moments and step counts do not belong together")
    return AdamState(first, second, dict(zip(sorted(first), counts, strict=True)))


def _check(tensors: Mapping[str, Tensor], state: AdamState, inner_loop: InnerLoop) -> None:
    parameters = trainable_parameters(inner_loop.model)
    if {name.removeprefix(THETA) for name in tensors if name.startswith(THETA)} != parameters.keys():
        raise RecordError("its parameters have other names")
    for name, parameter in parameters.items():
        saved = [tensors[THETA + name]]
        saved += [moments[name] for moments in (state.first_moments, state.second_moments) if name in moments]
        if any(tensor.shape != parameter.shape or tensor.dtype != torch.float32 for tensor in saved):
            raise RecordError(f"parameter {name} has another shape")


def _install(tensors: Mapping[str, Tensor], state: AdamState, inner_loop: InnerLoop) -> None:
    with torch.no_grad():
        for name, parameter in trainable_parameters(inner_loop.model).items():
            parameter.copy_(tensors[THETA + name])
    inner_loop.restore(state)
    torch.set_rng_state(tensors[CPU_RANDOM])
    if DEVICE_RANDOM in tensors and inner_loop.device.device.type == "cuda":
        torch.cuda.set_rng_state(tensors[DEVICE_RANDOM], inner_loop.device.device)
