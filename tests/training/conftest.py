"""Models of a few thousand parameters, made here."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from swarm_diloco.training.device import Device
from swarm_diloco.training.model import build_model
from swarm_diloco.training.settings import InnerSettings
from trainer_harness import Swarm

VOCABULARY = 64
LENGTH = 16
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
        "bos_token_id": None,
        "pad_token_id": 0,
    },
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
        "bos_token_id": 0,
    },
    "qwen2": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
    },
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def config_file(tmp_path: Path) -> Callable[..., Path]:
    def write(architecture: str = "llama", **changes: Any) -> Path:
        path = tmp_path / "config.json"
        values = {"model_type": architecture, "vocab_size": VOCABULARY, **CONFIGS.get(architecture, {}), **changes}
        path.write_text(json.dumps(values))
        return path

    return write


@pytest.fixture
def tiny_model(config_file: Callable[..., Path]) -> Callable[..., PreTrainedModel]:
    def build(architecture: str = "llama", *, seed: int = 0, **changes: Any) -> PreTrainedModel:
        torch.manual_seed(seed)
        return build_model(config_file(architecture, **changes))

    return build


@pytest.fixture
def inner_settings() -> Callable[..., InnerSettings]:
    def make(**changes: Any) -> InnerSettings:
        values = {
            "learning_rate": 1e-2,
            "batch_sequences": 4,
            "sequence_length": LENGTH,
            "warmup_tokens": 0,
            "total_tokens": 10**9,
        }
        return InnerSettings(**{**values, **changes})

    return make


@pytest.fixture
def cpu() -> Device:
    return Device(torch.device("cpu"), torch.float32)


@pytest.fixture
def random_blocks() -> Callable[..., torch.Tensor]:
    def make(num_sequences: int = 4, *, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, VOCABULARY, (num_sequences, LENGTH), generator=generator)

    return make


@pytest.fixture
def swarm(
    tiny_model: Callable[..., PreTrainedModel], inner_settings: Callable[..., InnerSettings], tmp_path: Path
) -> Iterator[Callable[..., Swarm]]:
    with contextlib.ExitStack() as stack:

        def make(*, model: PreTrainedModel | None = None, **schedule: Any) -> Swarm:
            settings = inner_settings(learning_rate=1e-2, warmup_tokens=5000)
            made = Swarm(model or tiny_model(), settings, tmp_path / "checkpoint", **schedule)
            stack.callback(made.end)
            return made

        yield make
