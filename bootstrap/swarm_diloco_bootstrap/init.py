"""`init`: from a few options to a whole run on disk, that anybody can be invited to."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from blake3 import blake3

from swarm_diloco.disk import sync_folder, write_durably
from swarm_diloco.errors import DataError, DiskError, ManifestError
from swarm_diloco.genesis import make_genesis
from swarm_diloco.manifest import FileEntry, Manifest, RunTables, write_manifest
from swarm_diloco.network.identity import Identity
from swarm_diloco.rounds.replica import fragment_base
from swarm_diloco.rounds.snapshot import write_snapshot
from swarm_diloco.run_folder import OPERATOR_MANIFEST, RunFolder
from swarm_diloco.training.data.importing import local_documents
from swarm_diloco.training.data.settings import held_out_path
from swarm_diloco_bootstrap.config_file import COMMENTS, HEADING
from swarm_diloco_bootstrap.init_options import ChosenSettings, InitOptions, choose_settings
from swarm_diloco_bootstrap.operator_folder import (
    BootstrapSettings,
    OperatorFolder,
    free_port,
    write_bootstrap_settings,
)
from swarm_diloco_bootstrap.run_model import PreparedModel, RunModel, has_tokens
from swarm_diloco_bootstrap.run_text import PreparedText, TextRequest, prepare_text

CHARACTERS_PER_TOKEN = 4  # of BPE on English text, rounded up
FEW_INNER_STEPS = 5

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRun:
    """What `init` made. `notices` are for the operator to read."""

    folder: OperatorFolder
    manifest: Manifest
    notices: tuple[str, ...]


def init(folder: Path, options: InitOptions, *, say: Say = lambda _: None) -> NewRun:
    """Make a new run in `folder`, which may be there if it is empty. `say` is told what takes long.

    Raises SwarmDilocoError, one line each (ManifestError, DataError, ModelError, DiskError, NetworkError). Whatever
    happens, `folder` is then whole or as it was before.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 - resolve() would follow a link, absolute() keeps ".."
    _check_empty(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.init-", dir=folder.parent))
    except OSError as error:
        raise DiskError(f"cannot make {folder}: {error.strerror or error}") from error
    try:
        manifest, notices = _make(OperatorFolder(aside), folder.name, options, say)
        sync_folder(aside)
        aside.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise DiskError(f"cannot make {folder}: {error.strerror or error}") from error
    except ValueError as error:
        raise ManifestError(str(error)) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return NewRun(folder=OperatorFolder(folder), manifest=manifest, notices=notices)


def _check_empty(folder: Path) -> None:
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise DiskError(f"{folder} is not a folder; name another one for the run")
        if folder.is_dir() and any(folder.iterdir()):
            raise DiskError(f"{folder} is not empty; name another folder for the run")
    except OSError as error:
        raise DiskError(f"cannot look into {folder}: {error.strerror or error}") from error


def _make(run: OperatorFolder, name: str, options: InitOptions, say: Say) -> tuple[Manifest, tuple[str, ...]]:
    """Everything of the run, in a folder that is not yet in its place."""
    operator, bootstrap = Identity.generate(), Identity.generate()
    port = free_port(options.port)
    chosen = choose_settings(options, folder_name=name, operator=operator, bootstrap=bootstrap)
    with tempfile.TemporaryDirectory(prefix=".cache-", dir=run.path) as cache:
        source = RunModel.find(options, chosen, _earlier_run(options), Path(cache))
        say("preparing the text")
        text = prepare_text(_text_request(options, chosen), run.files, Path(cache))
        say(f"preparing the tokenizer ({source.tokenizer.kind}) and the model")
        model = source.prepare(
            text.documents(), run.files, sequence_length=chosen.inner.sequence_length, seed=options.seed
        )
        _check_lengths(chosen, text, model, run)
    tables = RunTables(
        run=chosen.run,
        model=model.settings,
        tokenizer=model.tokenizer_settings,
        data=text.settings,
        inner=chosen.inner,
        outer=chosen.outer,
        schedule=chosen.schedule,
        codec=chosen.codec,
        rounds=chosen.rounds,
        evaluation=chosen.evaluation,
        files=file_entries(run.files),
    )
    manifest = Manifest.parse(write_manifest(tables, heading=HEADING, comments=COMMENTS))
    manifest.rules(model.layout)  # the last check before anything large is written
    write_durably(run.path / OPERATOR_MANIFEST, manifest.bytes_)
    operator.save(run.operator_key)
    bootstrap.save(run.identity)
    write_durably(run.settings_file, write_bootstrap_settings(BootstrapSettings(port=port)))
    say(f"writing θ_0: {model.layout.num_values:,} parameters")
    _write_start(run, manifest, model, operator)
    return manifest, (*text.notices, *_notices(manifest))


def _earlier_run(options: InitOptions) -> RunFolder | None:
    """The run that the given run.toml belongs to, if its files lie beside it."""
    run = RunFolder(options.config.absolute().parent) if options.config else None
    return run if run and run.files.is_dir() else None


def _text_request(options: InitOptions, chosen: ChosenSettings) -> TextRequest:
    earlier = _earlier_run(options)
    given = {name.removeprefix("data.") for name in chosen.given if name.startswith("data.")}
    data = options.data
    if data is None and "source" not in given and earlier is None:
        data = chosen.preset.default_data
        if data is None:
            raise DataError(f"the preset {chosen.preset.name} needs more text than the built-in one; give --data")
    return TextRequest(
        data=data,
        held_out=options.held_out,
        settings=chosen.data,
        given=given,
        earlier=earlier.files if earlier else None,
        sets=chosen.evaluation.sets,
        batch_characters=CHARACTERS_PER_TOKEN * chosen.inner.batch_tokens,
    )


def _check_lengths(chosen: ChosenSettings, text: PreparedText, model: PreparedModel, run: RunFolder) -> None:
    """Raises DataError if there is not one sequence to train on, or to measure with."""
    length = chosen.inner.sequence_length
    texts = {"the training text": text.documents()}
    for name in chosen.evaluation.sets:
        if (path := run.files / held_out_path(name)).exists():
            texts[f"the held-out set {name!r}"] = local_documents(path)
    for what, documents in texts.items():
        if not has_tokens(documents, model.tokenizer, least=length):
            raise DataError(f"{what} is shorter than one sequence of {length} tokens (inner.sequence_length)")


def file_entries(files: Path) -> tuple[FileEntry, ...]:
    """The manifest's entries for all files under `files`, in order of their paths."""
    entries = []
    for path in sorted(path for path in files.rglob("*") if path.is_file()):
        content_hash = blake3(max_threads=1).update_mmap(path).hexdigest()
        name = path.relative_to(files).as_posix()
        entries.append(FileEntry(path=name, blake3=content_hash, bytes=path.stat().st_size))
    return tuple(entries)


def _write_start(run: OperatorFolder, manifest: Manifest, model: PreparedModel, operator: Identity) -> None:
    """The genesis, and θ_0 with a momentum of zeros as the snapshot of round 0."""
    theta, momentum = model.theta, torch.zeros_like(model.theta)
    header = make_genesis(
        manifest,
        operator,
        bases=[fragment_base(theta[where], momentum[where]) for where in model.layout.fragment_slices],
        first_due_ms=0,  # nobody knows yet how long a step takes: each worker does H
        wall_ms=time.time_ns() // 1_000_000,
    )
    write_durably(run.genesis, header.encode())
    write_snapshot(
        run.snapshot(0),
        run=manifest.run_id,
        round_=0,
        digest=header.digest,
        theta=theta,
        momentum=momentum,
        applied=[0] * manifest.schedule.fragments,
    )


def _notices(manifest: Manifest) -> list[str]:
    notices = []
    if manifest.schedule.inner_steps < FEW_INNER_STEPS:
        steps = manifest.schedule.inner_steps
        notices.append(f"schedule.inner_steps is {steps}: the whole model is exchanged every {steps} steps")
    texts = {
        "run.purpose": manifest.run.purpose,
        "run.contact": manifest.run.contact,
        "data.licence": manifest.data.licence,
        "model.licence": manifest.model.licence,
    }
    if empty := [name for name, text in texts.items() if not text]:
        notices.append(f"empty in run.toml: {', '.join(empty)}; who is invited to help will want to know")
    return notices
