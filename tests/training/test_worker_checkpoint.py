import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from swarm_diloco.errors import DiskError
from swarm_diloco.training import checkpoint as checkpoints
from swarm_diloco.training.checkpoint import Checkpoint, Saved
from swarm_diloco.training.device import Device
from swarm_diloco.training.inner_loop import InnerLoop
from swarm_diloco.training.model import initial_parameters
from swarm_diloco.training.progress import Progress
from swarm_diloco.training.settings import InnerSettings

Loops = Callable[..., InnerLoop]
Blocks = Callable[..., Tensor]
SAVED = Saved(Progress(step=3, offers=2, synced_round=1, pending_tokens=10, pending_weight=9, late=True), b"place")


@pytest.fixture
def loop(
    tiny_model: Callable[..., PreTrainedModel], inner_settings: Callable[..., InnerSettings], cpu: Device
) -> Loops:
    def make(architecture: str = "llama", *, seed: int = 0, **changes: object) -> InnerLoop:
        return InnerLoop(tiny_model(architecture, seed=seed, **changes), inner_settings(), cpu, 4)

    return make


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_training_goes_on_to_the_bit(architecture: str, loop: Loops, random_blocks: Blocks, tmp_path: Path) -> None:
    changes = {"resid_pdrop": 0.2} if architecture == "gpt2" else {}  # random numbers count there
    steady = loop(architecture, **changes)
    for seed in range(3):
        steady.step(random_blocks(seed=seed), 0)
    steady.micro_batch = 2
    Checkpoint(tmp_path).save(steady, SAVED)
    for seed in range(3, 6):
        steady.step(random_blocks(seed=seed), 0)
    resumed = loop(architecture, seed=9, **changes)
    torch.manual_seed(1234)
    assert Checkpoint(tmp_path).load(resumed) == SAVED
    assert resumed.micro_batch == 2
    for seed in range(3, 6):
        resumed.step(random_blocks(seed=seed), 0)
    assert torch.equal(initial_parameters(resumed.model), initial_parameters(steady.model))


def test_a_checkpoint_before_the_first_step_is_one_too(loop: Loops, random_blocks: Blocks, tmp_path: Path) -> None:
    fresh, resumed = loop(), loop(seed=9)
    Checkpoint(tmp_path / "not made yet").save(fresh, SAVED)
    assert Checkpoint(tmp_path / "not made yet").load(resumed) == SAVED
    fresh.step(random_blocks(), 0)
    resumed.step(random_blocks(), 0)
    assert torch.equal(initial_parameters(resumed.model), initial_parameters(fresh.model))


def test_without_a_file_there_is_none(loop: Loops, tmp_path: Path) -> None:
    assert Checkpoint(tmp_path).load(loop()) is None


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.6, 0.95, 0.9999])
@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_damaged_file_is_named_and_changes_nothing(
    share: float, how: str, loop: Loops, random_blocks: Blocks, tmp_path: Path
) -> None:
    checkpoint, inner_loop = Checkpoint(tmp_path), loop()
    inner_loop.step(random_blocks(), 0)
    checkpoint.save(inner_loop, SAVED)
    data = bytearray(checkpoint.path.read_bytes())
    at = int(len(data) * share)
    if how == "cut":
        del data[at:]
    else:
        data[at] ^= 0x20
    checkpoint.path.write_bytes(data)
    other = loop(seed=9)
    theta = initial_parameters(other.model)
    with pytest.raises(DiskError, match=checkpoint.path.name):
        checkpoint.load(other)
    assert torch.equal(initial_parameters(other.model), theta)
    assert other.state().steps == {}


def test_another_models_checkpoint_is_refused(loop: Loops, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(loop("llama"), SAVED)
    for other in (loop("gpt2"), loop("llama", hidden_size=16)):
        with pytest.raises(DiskError, match="another model"):
            checkpoint.load(other)


@pytest.mark.parametrize("call", ["save_file", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_checkpoint(
    call: str, loop: Loops, random_blocks: Blocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, inner_loop = Checkpoint(tmp_path), loop()
    checkpoint.save(inner_loop, SAVED)
    before = checkpoint.path.read_bytes()
    inner_loop.step(random_blocks(), 0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints if call == "save_file" else os, call, full)
    with pytest.raises(DiskError, match="No space left"):
        checkpoint.save(inner_loop, Saved(Progress(step=4), b""))
    monkeypatch.undo()
    assert checkpoint.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name != "config.json"] == [checkpoint.path.name]
