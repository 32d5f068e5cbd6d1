"""The model as a folder, what it says, and how well it predicts."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from stored_run import add_rounds, make_run
from swarm_diloco.errors import DiskError, ManifestError, ModelError
from swarm_diloco.training.model import layout_of, read_parameters
from swarm_diloco_bootstrap.operator_folder import OperatorFolder
from swarm_diloco_client import cli
from swarm_diloco_client.export import CARD, export, outer_model
from swarm_diloco_client.generation import continue_text
from swarm_diloco_client.held_out import measure
from swarm_diloco_client.observer import open_run


def names_in(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def text_of(path: Path) -> str:
    return path.read_text()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OperatorFolder:
    run = make_run(tmp_path_factory.mktemp("runs") / "three")
    add_rounds(run, 3)
    return run


async def test_the_exported_folder_loads_with_transformers_and_holds_theta(run: OperatorFolder, tmp_path: Path) -> None:
    seen = open_run(run)
    state = await seen.state()
    await export(seen, state, tmp_path / "model")

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", local_files_only=True)
    layout = layout_of(model)
    assert torch.equal(read_parameters(model, layout, torch.empty(layout.num_values)), state.theta)
    assert model.config.use_cache

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model", local_files_only=True)
    _, own = await outer_model(seen, state)
    text = "The hill of São Tomé, 1,234 m.\n\n<|endoftext|>"
    assert tokenizer(text).input_ids == own(text).input_ids
    assert tokenizer.eos_token_id == own.eos_token_id == model.config.eos_token_id


async def test_the_card_names_run_round_digest_data_and_licences(run: OperatorFolder, tmp_path: Path) -> None:
    seen = open_run(run)
    state = await seen.state()
    await export(seen, state, tmp_path / "model")
    card = text_of(tmp_path / "model" / CARD)
    for fact in (
        seen.manifest.run_id.hex(),
        "round 3",
        seen.log.head.digest.hex(),
        state.state_hash.hex(),
        "public domain",
        "Apache-2.0",
        f"{3 * 64:,} tokens",
        "to be looked at",
        "4.970 nats a token on held-out, after round 2",
    ):
        assert fact in card


async def test_a_folder_with_something_in_it_is_left_alone(run: OperatorFolder, tmp_path: Path) -> None:
    seen = open_run(run)
    out = tmp_path / "model"
    out.mkdir()
    await export(seen, await seen.state(), out)  # an empty one may be there
    before = names_in(tmp_path)
    with pytest.raises(DiskError, match="not an empty folder"):
        await export(seen, await seen.state(), out)
    assert names_in(tmp_path) == before


async def test_a_failed_export_leaves_nothing(
    run: OperatorFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swarm_diloco_client.export.model_card", full)
    seen = open_run(run)
    with pytest.raises(DiskError, match="No space left"):
        await export(seen, await seen.state(), tmp_path / "model")
    assert names_in(tmp_path) == []


async def test_the_measured_loss_is_the_models_own(run: OperatorFolder) -> None:
    seen = open_run(run)
    state = await seen.state()
    measured = await measure(seen, state, "held-out")

    model, tokenizer = await outer_model(seen, state)
    lines = text_of(run.files / "data" / "held-out.jsonl").splitlines()
    text = "".join(json.loads(line)["text"] + "<|endoftext|>" for line in lines)
    ids = torch.tensor(tokenizer(text).input_ids)
    blocks = ids[: len(ids) // 32 * 32].view(-1, 32)[: 512 // 32]
    with torch.no_grad():
        expected = float(model(input_ids=blocks, labels=blocks).loss)
    assert measured.tokens == blocks.shape[0] * 31
    assert measured.loss == pytest.approx(expected, abs=1e-5)

    shares = torch.bincount(blocks.flatten()).double() / blocks.numel()
    entropy = float(-(shares[shares > 0] * shares[shares > 0].log()).sum())
    assert measured.unigram_entropy == pytest.approx(entropy)


async def test_an_unknown_set_is_named_with_those_there_are(run: OperatorFolder) -> None:
    seen = open_run(run)
    with pytest.raises(ManifestError, match="no evaluation set 'other', but held-out"):
        await measure(seen, await seen.state(), "other")


async def test_text_is_continued_as_the_seed_says(run: OperatorFolder) -> None:
    seen = open_run(run)
    model, tokenizer = await outer_model(seen, await seen.state())

    def text(seed: int, temperature: float = 1.0) -> str:
        return continue_text(model, tokenizer, "River", num_tokens=12, temperature=temperature, seed=seed)

    assert text(1) == text(1)
    assert text(1) != text(2)
    assert text(1, temperature=0.0) == text(2, temperature=0.0)
    assert text(1).startswith("River")


async def test_text_past_the_models_positions_is_cut_or_refused(run: OperatorFolder) -> None:
    seen = open_run(run)
    _, tokenizer = await outer_model(seen, await seen.state())
    model = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_positions=64, n_embd=16, n_layer=1, n_head=2))  # no more fit
    long = "River " * 40  # 240 tokens
    assert continue_text(model, tokenizer, long, num_tokens=8, temperature=0, seed=0).startswith(long)
    with pytest.raises(ModelError, match="64 positions"):
        continue_text(model, tokenizer, "River", num_tokens=64, temperature=0, seed=0)


def test_the_commands_take_a_folder_and_print_what_they_found(
    run: OperatorFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str) -> str:
        assert cli.run(arguments) == 0
        return capsys.readouterr().out

    folder, out = str(run.path), str(tmp_path / "model")
    digest = open_run(run).log.head.digest.hex()
    assert digest in printed("status", folder)
    assert json.loads(printed("status", "--json", folder))["round"] == 3
    assert "round 3, held-out: " in printed("evaluate", folder)
    assert printed("generate", folder, "River", "--tokens", "5").startswith("River")
    assert f"round 3, digest {digest[:16]}" in printed("export", folder, "--out", out)
    assert cli.run(["export", folder, "--out", out]) == DiskError.exit_status
    assert "not an empty folder" in capsys.readouterr().err
    assert cli.run(["generate", folder, "a", "b"]) == 2
    assert "in quotes" in capsys.readouterr().err
