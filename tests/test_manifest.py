"""manifest: one file says everything, its bytes are the run, and a fault in it is named."""

import unicodedata
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_run import BOOTSTRAP, LAYOUT, OPERATOR, PATHS, example_manifest, example_run_settings, example_tables
from swarm_diloco.diloco.codec import CODEC_NAMES, CodecSettings
from swarm_diloco.diloco.outer_optimizer import OuterSettings
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.errors import ManifestError, RunRefused
from swarm_diloco.manifest import MAX_MANIFEST_BYTES, FileEntry, Manifest, RunTables, write_manifest
from swarm_diloco.rounds.settings import RoundSettings
from swarm_diloco.run_folder import RunFolder
from swarm_diloco.training.data.settings import DataSettings, TokenizerSettings
from swarm_diloco.training.settings import InnerSettings, ModelSettings

TEXT = write_manifest(example_tables(), heading="An example.", comments={"run": {"name": "Its name."}}).decode()

letters = st.characters(exclude_categories=("C", "Z"), include_characters=" '\"\\#")
texts = st.text(letters, max_size=64).map(lambda text: unicodedata.normalize("NFC", text).strip()[:60].strip())
lines = texts.filter(lambda text: unicodedata.normalize("NFC", text) == text)
shares = st.floats(0, 1)
tables = st.builds(
    example_tables,
    run=st.builds(example_run_settings, name=lines.filter(bool), purpose=lines, contact=lines, code_licence=lines),
    model=st.builds(
        ModelSettings,
        architecture=texts.filter(bool),
        parameters=st.integers(1, 2**40),
        source=st.sampled_from(["config", "weights"]),
        licence=texts,
    ),
    tokenizer=st.builds(
        TokenizerSettings,
        kind=st.sampled_from(["bpe", "model"]),
        vocabulary_size=st.integers(257, 2**20),
        eos_token=texts.filter(bool),
    ),
    data=st.builds(DataSettings, shards=st.integers(1, 2), licence=texts, text_field=texts.filter(bool)),
    inner=st.builds(
        InnerSettings,
        learning_rate=st.floats(1e-9, 9),
        beta1=st.floats(0, 0.999),
        weight_decay=shares,
        clip=st.floats(1e-6, 1e6),
        batch_sequences=st.integers(1, 2**16),
        sequence_length=st.integers(2, 4096),
        warmup_tokens=st.just(0),
        total_tokens=st.integers(1, 2**53 - 1),
        decay_fraction=shares,
        final_fraction=shares,
        schedule=st.sampled_from(["wsd", "cosine"]),
    ),
    outer=st.builds(OuterSettings, learning_rate=st.floats(0.001, 10), momentum_ramp=st.integers(0, 1000)),
    schedule=st.builds(ScheduleSettings, inner_steps=st.integers(1, 100_000), pace=st.sampled_from(["time", "steps"])),
    codec=st.builds(CodecSettings, upload=st.sampled_from(CODEC_NAMES), download=st.sampled_from(CODEC_NAMES)),
    rounds=st.builds(RoundSettings, minimum_workers=st.integers(1, 64), maximum_norm=st.floats(1e-9, 1e30)),
)


def refused(text: str) -> str:
    with pytest.raises(ManifestError) as raised:
        Manifest.parse(text.encode())
    assert str(raised.value).isprintable()
    return str(raised.value)


def changed(setting: str, value: str) -> str:
    """The example with `setting = value` in place of its line."""
    before = TEXT.split("\n")
    after = [f"{setting} = {value}" if line.startswith(f"{setting} = ") else line for line in before]
    assert before != after
    return "\n".join(after)


@given(tables)
def test_a_manifest_reads_back_as_it_was_written(written: RunTables) -> None:
    manifest = Manifest.parse(write_manifest(written, comments={}))
    for field in fields(RunTables):
        assert getattr(manifest, field.name) == getattr(written, field.name)


def test_the_run_id_is_the_hash_of_the_bytes_comments_included() -> None:
    manifest = Manifest.parse(TEXT.encode())
    assert manifest.run_id == hash_of(TEXT.encode())
    for other in (TEXT + "# a remark\n", TEXT.replace("Its name.", "Its title."), changed("momentum", "0.90")):
        assert Manifest.parse(other.encode()).run_id != manifest.run_id


def test_an_integer_where_a_fraction_may_stand_is_the_same_setting_and_another_run() -> None:
    whole, fraction = (Manifest.parse(changed("clip", value).encode()) for value in ("2", "2.0"))
    assert whole.inner == fraction.inner
    assert isinstance(whole.inner.clip, float)
    assert whole.run_id != fraction.run_id


def test_reordered_settings_mean_the_same_and_are_another_run() -> None:
    lines = TEXT.split("\n")
    first, second = (next(i for i, line in enumerate(lines) if line.startswith(name)) for name in ("beta1", "beta2"))
    lines[first], lines[second] = lines[second], lines[first]
    manifest, reordered = Manifest.parse(TEXT.encode()), Manifest.parse("\n".join(lines).encode())
    assert replace(reordered, bytes_=manifest.bytes_) == manifest
    assert reordered.run_id != manifest.run_id


@pytest.mark.parametrize("line", [line for line in TEXT.split("\n") if " = " in line])
def test_a_manifest_without_one_of_its_settings_is_refused(line: str) -> None:
    message = refused(TEXT.replace(f"{line}\n", "", 1))
    assert f"{line.split(' = ')[0]} is missing" in message or "[[file]]" in message


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("name", '""', "run.name must have 1 to 64 characters, not 0"),
        ("name", f'"{"x" * 300}"', "run.name must have 1 to 64 characters, not 300"),
        ("name", '"a\\nb"', "run.name: has control or invisible characters"),
        ("name", '"\\u202Eabc"', "run.name: has control or invisible characters"),
        ("name", '" abc"', "without control characters or blanks around it"),
        ("name", '"e\\u0301"', "composed form"),
        ("format", "2", "this program reads 1; update it"),
        ("operator_key", '"12"', "run.operator_key must be 64 hexadecimal digits"),
        ("bootstrap_peers", "[]", "run.bootstrap_peers must name 1 to 16 peers"),
        ("bootstrap_peers", f'["{BOOTSTRAP.peer}", "{BOOTSTRAP.peer}"]', "none twice"),
        ("bootstrap_peers", '["Qm"]', "must be ids of Ed25519 peers"),
        ("bootstrap_peers", f'["{BOOTSTRAP.peer} "]', "must be ids of Ed25519 peers"),
        ("minimum_client_version", '"new"', "must be like 0.1.0"),
        ("inner_steps", "10.0", "valid integer"),
        ("fragments", "2", "fragments"),
        ("upload", '"int4"', "upload"),
        ("learning_rate", "inf", "not a finite number"),
        ("part_values", "3", "rounds.part_values must be from"),
        ("tokens", "1", "evaluation.tokens must be from 256"),
        ("sets", '["../secret"]', "evaluation.sets must be names that a file can have"),
        ("sets", '["a", "a"]', "none twice"),
        ("sets", '["other"]', "names no [[file]] data/other.jsonl"),
        ("shards", "3", "names no [[file]] data/train-00002.jsonl"),
        ("sequence_length", "20000", "less than one sequence"),
    ],
)
def test_a_wrong_value_is_refused_with_its_rule(setting: str, value: str, message: str) -> None:
    assert message in refused(changed(setting, value))


@pytest.mark.parametrize("name", ["a.b", "llama-1.1b", "two words", "Überwachtes Lernen", "模型", "🦙"])
def test_a_run_may_have_any_name_that_can_be_shown(name: str) -> None:
    assert example_manifest(run=example_run_settings(name=name)).run.name == name


def test_a_mistyped_setting_is_named_with_its_line_and_the_nearest() -> None:
    text = TEXT.replace("group_limit", "group_limits")
    line = next(number for number, line in enumerate(text.split("\n"), 1) if line.startswith("group_limits"))
    assert refused(text) == (
        f"run.toml line {line}: unknown setting rounds.group_limits; did you mean rounds.group_limit?"
    )


def test_a_newer_format_is_named_before_what_is_new_in_it() -> None:
    assert "update it" in refused(changed("format", "2").replace("[outer]", "[outside]"))


def test_a_wrong_setting_is_named_with_its_line() -> None:
    text = changed("momentum", "5.0")
    line = next(number for number, line in enumerate(text.split("\n"), 1) if line.startswith("momentum"))
    assert refused(text).startswith(f"run.toml line {line}: outer")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "data/../../x",
        "data//x",
        "data/.hidden",
        "a\\b",
        "data/x\n",
        "data/é",
        "a/b/c/d/e",
        "x/",
    ],
)
def test_a_path_that_could_leave_the_runs_folder_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="relative path"):
        FileEntry(path=path, blake3="0" * 64, bytes=1)


@given(st.text(max_size=40))
def test_a_path_that_is_accepted_stays_under_the_folder(path: str) -> None:
    try:
        entry = FileEntry(path=path, blake3="0" * 64, bytes=0)
    except ValueError:
        return
    folder = RunFolder(Path("/run"))
    assert folder.file(entry).resolve().is_relative_to(folder.files.resolve())


@pytest.mark.parametrize("path", ["data/held-out.jsonl", "data/HELD-out.jsonl", "data", "model/config.json/x"])
def test_two_files_cannot_lie_in_one_place(path: str) -> None:
    entries = tuple(FileEntry(path=name, blake3="0" * 64, bytes=1) for name in (*PATHS, path))
    with pytest.raises(ValueError, match="twice, or is a folder"):
        example_tables(files=entries)


@pytest.mark.parametrize("path", PATHS)
def test_a_manifest_names_every_file_that_members_need(path: str) -> None:
    entries = tuple(FileEntry(path=name, blake3="0" * 64, bytes=1) for name in PATHS if name != path)
    with pytest.raises(ValueError, match=r"names no \[\[file\]\]"):
        example_tables(files=entries)


def test_a_hubs_evaluation_split_needs_no_file() -> None:
    entries = tuple(FileEntry(path=name, blake3="0" * 64, bytes=1) for name in PATHS if "data/" not in name)
    hub = DataSettings(source="hub", dataset="a/b", revision="0" * 40, shards=9, evaluation_split="test")
    assert example_manifest(files=entries, data=hub).data == hub
    with pytest.raises(ValueError, match=r"data/held-out.jsonl"):
        example_tables(files=entries, data=replace(hub, evaluation_split=""))


def test_a_manifest_past_its_size_is_refused_unread() -> None:
    assert "1048577 bytes, at most" in refused("#" * (MAX_MANIFEST_BYTES + 1))


def test_the_rules_are_the_manifests() -> None:
    manifest = example_manifest(rounds=RoundSettings(snapshot_interval=4))
    rules = manifest.rules(LAYOUT)
    assert (rules.run_id, rules.operator_key, rules.layout) == (manifest.run_id, OPERATOR.public_key, LAYOUT)
    assert (rules.outer, rules.codec, rules.schedule, rules.rounds.snapshot_interval) == (
        manifest.outer,
        manifest.codec,
        manifest.schedule,
        4,
    )
    with pytest.raises(ManifestError, match="snapshot_interval"):
        example_manifest(rounds=RoundSettings(snapshot_interval=9)).rules(LAYOUT)


@pytest.mark.parametrize("version", ["0.2.0", "0.10.0", "1.0.0", "0.2.1.dev3"])
def test_a_client_that_is_new_enough_is_admitted(version: str) -> None:
    example_manifest(run=example_run_settings(minimum_client_version="0.2.0")).check_client(version)


@pytest.mark.parametrize("version", ["0.1.9", "0.1.10", "0.0.1"])
def test_an_older_client_is_told_to_update(version: str) -> None:
    with pytest.raises(RunRefused, match=r"needs swarm-diloco 0.2.0 or newer.*pip install --upgrade"):
        example_manifest(run=example_run_settings(minimum_client_version="0.2.0")).check_client(version)
