"""init: a whole run or none, from any of its sources."""

import functools
import http.server
import json
import socket
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from blake3 import blake3
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from small_init import DOCUMENTS, MODEL, SMALL
from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.errors import DataError, DiskError, ManifestError, ModelError, NetworkError, SwarmDilocoError
from swarm_diloco.network.identity import Identity
from swarm_diloco.rounds.replica import Replica
from swarm_diloco.rounds.snapshot import load_snapshot
from swarm_diloco.training.data.importing import local_documents
from swarm_diloco.training.data.tokenizer import byte_tokenizer, load_tokenizer, save
from swarm_diloco.training.model import build_model, initial_parameters, layout_of
from swarm_diloco_bootstrap.init import NewRun, init
from swarm_diloco_bootstrap.init_options import InitOptions


def theta_of(run: NewRun) -> torch.Tensor:
    return load_file(run.folder.snapshot(0) / "state.safetensors")["theta"]


def documents_of(run: NewRun, name: str) -> list[str]:
    return [text for path in sorted((run.folder.files / "data").glob(name)) for text in local_documents(path)]


def test_a_run_is_made_whole(made: NewRun, tmp_path: Path) -> None:
    manifest, genesis = made.folder.open()
    assert manifest == made.manifest
    assert manifest.run.name == "run"
    assert (manifest.tokenizer.kind, manifest.tokenizer.vocabulary_size) == ("byte", 257)
    assert [member.peer for member in genesis.commit().members] == [Identity.load(made.folder.identity).peer]
    assert Identity.load(made.folder.operator_key).public_key == manifest.operator_key
    for key in (made.folder.identity, made.folder.operator_key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"run", "text.jsonl", "model"}


def test_the_manifest_names_every_file_by_its_hash(made: NewRun) -> None:
    named = {made.folder.file(entry): (entry.blake3, entry.bytes) for entry in made.manifest.files}
    found = {path for path in made.folder.files.rglob("*") if path.is_file()}
    assert named == {path: (blake3(path.read_bytes()).hexdigest(), path.stat().st_size) for path in found}
    assert len(documents_of(made, "train-*.jsonl")) > 0


def test_the_first_snapshot_is_the_state_that_the_genesis_signs(made: NewRun) -> None:
    manifest, genesis = made.folder.open()
    layout = ParameterLayout.decode((made.folder.files / "model/layout.json").read_bytes())
    replica = Replica(manifest.rules(layout), torch.ones(layout.num_values), torch.ones(layout.num_values))
    index = load_snapshot(made.folder.snapshot(0), replica)
    replica.check_genesis(genesis.commit())
    assert (index.round, index.digest, index.applied) == (0, genesis.digest, (0,))
    assert not replica.momentum.any()


def test_the_files_build_the_model_and_the_tokenizer_that_the_manifest_describes(made: NewRun) -> None:
    model = build_model(made.folder.files / "model/config.json", parameters=made.manifest.model.parameters)
    tokenizer = load_tokenizer(made.folder.files / "tokenizer")
    assert layout_of(model).encode() == (made.folder.files / "model/layout.json").read_bytes()
    assert model.get_input_embeddings().num_embeddings == len(tokenizer) == made.manifest.tokenizer.vocabulary_size
    config = json.loads((made.folder.files / "model/config.json").read_bytes())
    assert config["eos_token_id"] == tokenizer.eos_token_id
    assert config["pad_token_id"] is None
    assert "auto_map" not in config


def test_held_out_documents_are_not_trained_on_and_none_is_lost(made: NewRun) -> None:
    train, held_out = documents_of(made, "train-*.jsonl"), documents_of(made, "held-out.jsonl")
    assert held_out
    assert sorted(train + held_out) == sorted(DOCUMENTS)


def test_two_documents_are_enough_and_fall_on_two_sides(tmp_path: Path, options: InitOptions) -> None:
    path = tmp_path / "two.txt"
    path.write_text("first " * 50 + "\n<|endoftext|>\n" + "second " * 50)
    run = init(tmp_path / "run", replace(options, data=str(path), settings={**SMALL, "data.shards": 1}))
    assert (len(documents_of(run, "train-*.jsonl")), len(documents_of(run, "held-out.jsonl"))) == (1, 1)


def test_a_small_text_gets_fewer_shards_and_that_is_said(tmp_path: Path, options: InitOptions) -> None:
    settings = {name: value for name, value in SMALL.items() if name != "data.shards"}
    run = init(tmp_path / "run", replace(options, settings={**settings, "inner.batch_sequences": 8}))
    assert run.manifest.data.shards == len(list((run.folder.files / "data").glob("train-*"))) < 16
    assert "shards" in run.notices[0]


def test_an_edited_manifest_starts_another_run_on_the_same_files(made: NewRun, tmp_path: Path) -> None:
    text = made.folder.manifest.read_text()
    made.folder.manifest.write_text(text.replace("inner_steps = 20", "inner_steps = 30"))
    again = init(tmp_path / "again", InitOptions(config=made.folder.manifest))
    assert again.manifest.schedule.inner_steps == 30
    assert again.manifest.files == made.manifest.files
    assert torch.equal(theta_of(again), theta_of(made))
    assert again.manifest.run_id != made.manifest.run_id
    assert again.manifest.operator_key != made.manifest.operator_key
    assert again.manifest.run.bootstrap_peers != made.manifest.run.bootstrap_peers
    assert again.manifest.run.name == made.manifest.run.name
    again.folder.open()


def test_what_an_edit_changes_is_made_anew(made: NewRun, tmp_path: Path) -> None:
    settings = {"tokenizer.vocabulary_size": 300, "data.shards": 2}
    again = init(tmp_path / "again", InitOptions(config=made.folder.manifest, tokenizer="bpe", settings=settings))
    assert (again.manifest.tokenizer.kind, again.manifest.tokenizer.vocabulary_size) == ("bpe", 300)
    assert again.manifest.data.shards == 2
    assert sorted(documents_of(again, "train-*.jsonl")) == sorted(documents_of(made, "train-*.jsonl"))
    assert again.manifest.model.parameters > made.manifest.model.parameters


def test_a_part_of_a_run_toml_is_settings_too(tmp_path: Path, options: InitOptions) -> None:
    path = tmp_path / "my.toml"
    path.write_text('[run]\nname = "mine"\n[schedule]\ninner_steps = 7\npace = "steps"\n')
    run = init(tmp_path / "run", replace(options, config=path, settings={**SMALL, "schedule.inner_steps": "9"}))
    assert (run.manifest.run.name, run.manifest.schedule.inner_steps, run.manifest.schedule.pace) == (
        "mine",
        9,
        "steps",
    )


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    folder = tmp_path / "pretrained"
    torch.manual_seed(5)
    config = LlamaConfig(**{key: MODEL[key] for key in MODEL if key not in ("auto_map", "pad_token_id", "model_type")})
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    save(byte_tokenizer(), folder)
    return folder


def test_a_pretrained_model_goes_on_from_its_own_weights(tmp_path: Path, text: Path, pretrained: Path) -> None:
    run = init(tmp_path / "run", InitOptions(data=str(text), model=str(pretrained), settings=SMALL))
    model = LlamaForCausalLM.from_pretrained(pretrained, dtype=torch.float32)
    assert torch.equal(theta_of(run), initial_parameters(model))
    assert (run.manifest.model.source, run.manifest.tokenizer.kind) == ("weights", "model")
    assert json.loads((run.folder.files / "model/config.json").read_bytes())["vocab_size"] == 999
    again = init(tmp_path / "again", InitOptions(config=run.folder.manifest))
    assert torch.equal(theta_of(again), theta_of(run))


def test_a_pretrained_models_config_alone_gives_a_new_model(tmp_path: Path, text: Path, pretrained: Path) -> None:
    options = InitOptions(data=str(text), model=str(pretrained), from_scratch=True, tokenizer="byte", settings=SMALL)
    run = init(tmp_path / "run", options)
    assert run.manifest.model.source == "config"
    assert run.manifest.tokenizer.kind == "byte"
    assert json.loads((run.folder.files / "model/config.json").read_bytes())["vocab_size"] == 257


def test_the_seed_decides_the_new_model(tmp_path: Path, options: InitOptions) -> None:
    first, same, other = (init(tmp_path / str(i), replace(options, seed=seed)) for i, seed in enumerate((1, 1, 2)))
    assert torch.equal(theta_of(first), theta_of(same))
    assert not torch.equal(theta_of(first), theta_of(other))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "web"
    folder.mkdir()
    for part in range(3):
        lines = (json.dumps({"text": document}) for document in DOCUMENTS[part::3])
        (folder / f"{part:02d}.jsonl").write_text("\n".join(lines) + "\n")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_text_of_a_web_server_stays_there(tmp_path: Path, options: InitOptions, text: Path, web: str) -> None:
    address = f"{web}/{{00..02}}.jsonl"
    run = init(
        tmp_path / "run",
        replace(options, data=address, held_out=str(text), tokenizer="bpe", settings={**SMALL, "data.shards": 3}),
    )
    data = run.manifest.data
    assert (data.source, data.dataset, data.format, data.shards) == ("url", address, "jsonl", 3)
    assert [path.name for path in (run.folder.files / "data").iterdir()] == ["held-out.jsonl"]
    with pytest.raises(DataError, match="held out"):
        init(tmp_path / "other", replace(options, data=address))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"preset": "huge"}, ManifestError, "no preset 'huge', but tiny"),
        ({"settings": {**SMALL, "rounds.group_limits": 3}}, ManifestError, "did you mean rounds.group_limit"),
        ({"settings": {**SMALL, "rounds.group_limit": "many"}}, ManifestError, "rounds.group_limit"),
        ({"settings": {**SMALL, "rounds.group_limit": 1}}, ManifestError, "group_limit must be from 2"),
        ({"settings": {**SMALL, "run.operator_key": "x"}}, ManifestError, "not for you to choose"),
        ({"settings": {**SMALL, "run.name": "a\nb"}}, ManifestError, "control"),
        ({"settings": {**SMALL, "run.name": ""}}, ManifestError, "1 to 64 characters"),
        ({"settings": {**SMALL, "rounds.snapshot_interval": 9}}, ManifestError, "snapshot_interval"),
        ({"settings": {**SMALL, "inner.sequence_length": 65}}, ModelError, "64 positions"),
        ({"settings": {**SMALL, "data.shards": 1000}}, DataError, "do not fill 1000"),
        ({"settings": {**SMALL, "evaluation.sets": "held-out,other"}}, ManifestError, "other"),
        ({"config": Path("/nowhere/run.toml")}, DiskError, "/nowhere/run.toml"),
        ({"data": "/nowhere/text.jsonl"}, DataError, "no file, folder, glob, address or data set"),
        ({"data": "/nowhere/*.txt"}, DataError, "/nowhere"),
        ({"data": "http://127.0.0.1/text"}, DataError, "data.format"),
        ({"preset": "150m", "data": None}, DataError, "give --data"),
        ({"model": "/nowhere/model"}, ModelError, "/nowhere/model"),
        ({"tokenizer": "model"}, DataError, "tokenizer.json"),
        ({"model": None, "tokenizer": "model"}, ModelError, "no model to copy it from"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line_and_leaves_nothing(
    tmp_path: Path, options: InitOptions, change: dict[str, object], error: type[SwarmDilocoError], message: str
) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error) as raised:
        init(tmp_path / "run", replace(options, **change))  # type: ignore[arg-type]
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_text_of_one_document_is_refused(tmp_path: Path, options: InitOptions) -> None:
    path = tmp_path / "one.txt"
    path.write_text("all of it " * 50)
    with pytest.raises(DataError, match=r"holds one document.*<\|endoftext\|>"):
        init(tmp_path / "run", replace(options, data=str(path)))


def test_an_empty_held_out_text_is_refused(tmp_path: Path, options: InitOptions) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("\n\n")
    with pytest.raises(DataError, match=r"empty\.txt holds no text to measure with"):
        init(tmp_path / "run", replace(options, held_out=str(path)))


def test_a_text_shorter_than_one_sequence_is_refused(tmp_path: Path, options: InitOptions) -> None:
    path = tmp_path / "short.txt"
    path.write_text("some\n<|endoftext|>\nmore")
    with pytest.raises(DataError, match="shorter than one sequence of 32 tokens"):
        init(tmp_path / "run", replace(options, data=str(path), settings={**SMALL, "data.shards": 1}))


def test_weights_that_are_not_finite_are_refused(tmp_path: Path, text: Path, pretrained: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(pretrained)
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    model.save_pretrained(pretrained)
    with pytest.raises(ModelError, match=r"not finite, in model\.norm\.weight"):
        init(tmp_path / "run", InitOptions(data=str(text), model=str(pretrained), settings=SMALL))


def test_other_tokens_than_the_weights_know_are_refused(tmp_path: Path, text: Path, pretrained: Path) -> None:
    with pytest.raises(ModelError, match="know only their own tokens"):
        init(tmp_path / "run", InitOptions(data=str(text), model=str(pretrained), tokenizer="byte", settings=SMALL))


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, options: InitOptions) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    with pytest.raises(DiskError, match="not empty"):
        init(folder, options)
    assert [path.name for path in folder.iterdir()] == ["mine"]
    with pytest.raises(DiskError, match="not a folder"):
        init(folder / "mine", options)
    (folder / "mine").unlink()
    init(folder, options).folder.open()


def test_an_interrupted_init_leaves_nothing(tmp_path: Path, options: InitOptions) -> None:
    before = sorted(tmp_path.iterdir())

    def stop_late(message: str) -> None:
        if "θ_0" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        init(tmp_path / "run", options, say=stop_late)
    assert sorted(tmp_path.iterdir()) == before


def test_a_port_in_use_is_refused(tmp_path: Path, options: InitOptions) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(NetworkError, match=f"port {port}: it is in use"):
            init(tmp_path / "run", replace(options, port=port))
