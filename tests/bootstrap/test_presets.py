"""presets and comments: every preset is a valid run of its size, every setting is explained."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from swarm_diloco.manifest import TABLES
from swarm_diloco.network.identity import Identity
from swarm_diloco.settings_file import field_types
from swarm_diloco.training.model import build_model, num_parameters
from swarm_diloco_bootstrap.config_file import COMMENTS
from swarm_diloco_bootstrap.init_options import InitOptions, choose_settings
from swarm_diloco_bootstrap.presets import PRESETS


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("tiny", 0.9e6, 1.2e6), ("small", 10e6, 20e6), ("150m", 140e6, 160e6), ("1b", 1.1e9, 1.4e9)],
)
def test_a_preset_is_valid_and_has_its_size(tmp_path: Path, name: str, least: float, most: float) -> None:
    identity = Identity.from_seed(bytes(32))
    chosen = choose_settings(InitOptions(preset=name), folder_name="x", operator=identity, bootstrap=identity)
    config = {**PRESETS[name].model, "model_type": "llama", "tie_word_embeddings": True}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "vocab_size": chosen.tokenizer.vocabulary_size}))
    with torch.device("meta"):
        assert least <= num_parameters(build_model(path)) <= most
    assert chosen.inner.sequence_length <= PRESETS[name].model["max_position_embeddings"]


def test_presets_are_offered_without_torch() -> None:
    program = (
        "import sys, swarm_diloco_bootstrap.presets; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_setting_has_its_comment() -> None:
    for table, kind in TABLES.items():
        assert set(COMMENTS[table]) == ({""} if table == "file" else {"", *field_types(kind)})
