"""What the operator's tests start from."""

import json
from pathlib import Path

import pytest

from small_init import DOCUMENTS, MODEL, SMALL
from swarm_diloco_bootstrap.init import NewRun, init
from swarm_diloco_bootstrap.init_options import InitOptions


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


@pytest.fixture
def options(text: Path, model: Path) -> InitOptions:
    return InitOptions(data=str(text), model=str(model), tokenizer="byte", settings=SMALL)


@pytest.fixture
def made(tmp_path: Path, options: InitOptions) -> NewRun:
    return init(tmp_path / "run", options)
