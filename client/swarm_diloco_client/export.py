"""The outer model as a folder that transformers loads, with a card that says where it comes from."""

import html
import os
import shutil
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from swarm_diloco.disk import sync_folder
from swarm_diloco.errors import DiskError
from swarm_diloco.manifest import MODEL_CONFIG, Manifest
from swarm_diloco.rounds.totals import Totals
from swarm_diloco.training.data.tokenizer import load_tokenizer
from swarm_diloco.training.model import build_model, load_parameters
from swarm_diloco_client.observer import GlobalState, ObservedRun

TOKENIZER_PREFIX = "tokenizer/"
CARD = "README.md"
FRONT_MATTER = """---
library_name: transformers
pipeline_tag: text-generation
tags: [diloco, swarm-diloco]
---
"""
INTRODUCTION = """The outer parameters of a run of swarm-diloco: workers over the internet trained one model with DiLoCo
(arXiv 2311.08105). Whoever replays the run's log to the digest below has these parameters to the bit."""


async def outer_model(run: ObservedRun, state: GlobalState) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The run's model holding θ, float32 on the CPU, in evaluation mode, and the run's tokenizer.

    Raises DataError, ModelError.
    """
    config = await run.file(MODEL_CONFIG)
    for entry in run.manifest.files:
        if entry.path.startswith(TOKENIZER_PREFIX):
            tokenizer_file = await run.file(entry.path)
    model = build_model(config, parameters=run.manifest.model.parameters)
    load_parameters(model, run.rules.layout, state.theta)
    return model.eval(), load_tokenizer(tokenizer_file.parent)


async def export(run: ObservedRun, state: GlobalState, out: Path) -> None:
    """Write the model, its tokenizer and a card to the folder `out`, whole or not at all.

    Raises DiskError if `out` is there and not empty, or cannot be written; DataError, ModelError.
    """
    check_empty(out)
    model, tokenizer = await outer_model(run, state)
    model.config.use_cache = True  # off in training only
    disable_progress_bar()
    aside = out.parent / f".{out.name}.export-{os.getpid()}"
    try:
        aside.mkdir(parents=True)
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        (aside / CARD).write_text(model_card(run.manifest, _totals_at(run, state.round), state), encoding="utf-8")
        for path in aside.iterdir():
            path.chmod((aside / CARD).stat().st_mode)  # safetensors' writer lets only its owner read
        aside.rename(out)
        sync_folder(out.parent)
    except OSError as error:
        raise DiskError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _totals_at(run: ObservedRun, round_: int) -> Totals:
    """Sums up to `round_`, which may be before the log's head."""
    totals = Totals()
    for each in range(round_ + 1):
        totals.add(run.log.commit(each))
    return totals


def check_empty(out: Path) -> None:
    """Raises DiskError if something is at `out` that an export would have to replace."""
    try:
        is_taken = out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir())))
    except OSError as error:
        raise DiskError(f"cannot export to {out}: {error.strerror or error}") from error
    if is_taken:
        raise DiskError(f"{out} is there and not an empty folder; name another one with --out")


def model_card(manifest: Manifest, totals: Totals, state: GlobalState) -> str:
    """README.md of the exported folder. Texts of the manifest are its operator's; they cannot become markup."""
    rows = {
        "Run": manifest.run.name,
        "Purpose": manifest.run.purpose,
        "Contact": manifest.run.contact,
        "Run id": manifest.run_id.hex(),
        "Round": str(state.round),
        "Digest": state.digest.hex(),
        "State hash": state.state_hash.hex(),
        "Model": f"{manifest.model.architecture}, {manifest.model.parameters:,} parameters, {_start(manifest)}",
        "Model licence": manifest.model.licence,
        "Tokenizer": f"{manifest.tokenizer.kind}, {manifest.tokenizer.vocabulary_size:,} tokens",
        "Data": manifest.data.dataset or "the run's own text",
        "Data revision": manifest.data.revision,
        "Data licence": manifest.data.licence,
        "Code licence": manifest.run.code_licence,
        "Trained on": f"{totals.tokens:,} tokens, by {len(+totals.tokens_by_peer)} workers",
        "Held-out loss": _newest_loss(totals),
        "Inner steps": _inner_steps(manifest),
        "Outer step": f"Nesterov, learning rate {manifest.outer.learning_rate:g}, momentum {manifest.outer.momentum:g}",
    }
    title = f"# {_plain(manifest.run.name)}, round {state.round}"
    lines = [f"- **{name}:** {_plain(value)}" for name, value in rows.items() if value]
    return "\n".join([FRONT_MATTER, title, "", INTRODUCTION, "", *lines, ""])


def _plain(text: str) -> str:
    return html.escape(text, quote=False)


def _start(manifest: Manifest) -> str:
    return "trained from scratch" if manifest.model.source == "config" else "from pretrained weights"


def _newest_loss(totals: Totals) -> str:
    if not totals.evaluations:
        return ""
    newest = max(totals.evaluations, key=lambda each: each.round)
    return f"{newest.loss_micronats / 1e6:.3f} nats a token on {newest.set_name}, after round {newest.round}"


def _inner_steps(manifest: Manifest) -> str:
    inner = manifest.inner
    batch = f"{inner.batch_sequences} × {inner.sequence_length} tokens"
    return f"AdamW, learning rate {inner.learning_rate:g}, {batch}, H = {manifest.schedule.inner_steps}"
