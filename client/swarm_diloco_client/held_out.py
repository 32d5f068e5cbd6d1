"""A run's outer parameters measured on its held-out text, as its workers do it."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from swarm_diloco.errors import ManifestError
from swarm_diloco.training.data.settings import held_out_path
from swarm_diloco.training.data.source import TrainingData
from swarm_diloco.training.data.unigram import unigram_entropy
from swarm_diloco.training.evaluation import evaluate
from swarm_diloco_client.export import outer_model
from swarm_diloco_client.observer import GlobalState, ObservedRun

MICRO_BATCH = 8  # sequences at once


@dataclass(frozen=True, slots=True)
class Measured:
    """Nats a token of one held-out set."""

    loss: float
    tokens: int  # predicted
    unigram_entropy: float  # of the set's own token frequencies: what no model without context can be below


async def measure(run: ObservedRun, state: GlobalState, set_name: str) -> Measured:
    """Raises ManifestError if the run has no such set, DataError, ModelError."""
    model, tokenizer = await outer_model(run, state)
    return measure_model(model, await held_out_blocks(run, tokenizer, set_name))


async def held_out_blocks(run: ObservedRun, tokenizer: PreTrainedTokenizerFast, set_name: str) -> Tensor:
    """The set as every worker of the run takes it: int64 [n, sequence_length]. Raises ManifestError, DataError."""
    manifest = run.manifest
    if set_name not in manifest.evaluation.sets:
        raise ManifestError(f"the run has no evaluation set {set_name!r}, but {', '.join(manifest.evaluation.sets)}")
    has_file = any(entry.path == held_out_path(set_name) for entry in manifest.files)  # else a split of a hub data set
    local = {held_out_path(set_name): await run.file(held_out_path(set_name))} if has_file else {}
    with TrainingData(
        manifest.data,
        run.folder.path / "data",
        tokenizer,
        sequence_length=manifest.inner.sequence_length,
        seed=0,  # of the training text's order, which is not read
        fetch=local.__getitem__,
    ) as data:
        return data.held_out(set_name, max_tokens=manifest.evaluation.tokens)


def measure_model(model: PreTrainedModel, blocks: Tensor) -> Measured:
    """`model`, on the CPU, on blocks of tokens."""
    loss, tokens = evaluate(model, blocks, device=torch.device("cpu"), micro_batch=MICRO_BATCH)
    return Measured(loss, tokens, unigram_entropy(blocks, blocks).own)
