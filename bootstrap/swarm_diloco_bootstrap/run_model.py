"""A new run's tokenizer, model and θ_0, written as files of the run."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from swarm_diloco.diloco.arithmetic import LARGEST, squash_
from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.disk import read_file, write_durably
from swarm_diloco.errors import DiskError, ModelError
from swarm_diloco.manifest import MODEL_CONFIG, MODEL_LAYOUT
from swarm_diloco.rounds.snapshot import STATE_FILE
from swarm_diloco.run_folder import RunFolder
from swarm_diloco.training.data import tokenizer as tokenizers
from swarm_diloco.training.data.settings import BYTE_VOCABULARY, TokenizerSettings
from swarm_diloco.training.model import (
    IGNORED_KEYS,
    MAX_CONFIG_BYTES,
    build_model,
    check_model,
    initial_parameters,
    layout_of,
    load_parameters,
    load_pretrained,
)
from swarm_diloco.training.settings import ModelSettings
from swarm_diloco_bootstrap.init_options import ChosenSettings, InitOptions

TOKENIZER_FOLDER = "tokenizer"
CONFIG_FILE = "config.json"
MODEL_VOCABULARY = BYTE_VOCABULARY  # stands in until the copied tokenizer says
TOKENIZER_CHARACTERS = 50_000_000  # BPE sees so much of the text: some 25 s, and more changes few merges
HUB_MODEL = re.compile(r"([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?")
MODEL_FILES = ("*.json", "*.safetensors")


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedModel:
    settings: ModelSettings
    tokenizer_settings: TokenizerSettings
    tokenizer: PreTrainedTokenizerFast
    layout: ParameterLayout
    theta: Tensor  # θ_0, float32 [num_values], as every replica will hold it


@dataclass(frozen=True, kw_only=True, slots=True)
class RunModel:
    """Which model and tokenizer a run is to have, before there are files of them."""

    settings: ModelSettings
    tokenizer: TokenizerSettings
    config: Mapping[str, Any]  # of the model
    weights: Path | None  # the folder of a pretrained model
    start: Path | None  # the θ_0 of a run that continued one; with neither, θ_0 is drawn
    tokenizer_source: Path | None  # the folder of a tokenizer to copy, for kind "model"

    @classmethod
    def find(cls, options: InitOptions, chosen: ChosenSettings, earlier: RunFolder | None, cache: Path) -> "RunModel":
        """From --model, else from the run whose run.toml was given, else the preset's. Raises ModelError."""
        settings, tokenizer, weights, start, source = chosen.model, chosen.tokenizer, None, None, None
        config: Mapping[str, Any] = {"model_type": "llama", "tie_word_embeddings": True, **chosen.preset.model}
        if options.model is not None:
            folder = model_folder(options.model, cache=cache)
            config, source = read_config(folder / CONFIG_FILE), folder
            weights = None if options.from_scratch or not any(folder.glob("*.safetensors")) else folder
            if "tokenizer.kind" not in chosen.given and (folder / tokenizers.TOKENIZER_FILE).is_file():
                tokenizer = replace(tokenizer, kind="model", vocabulary_size=MODEL_VOCABULARY)
        elif earlier is not None:
            config, source = read_config(earlier.files / MODEL_CONFIG), earlier.files / TOKENIZER_FOLDER
            if settings.source == "weights" and not options.from_scratch:
                start = earlier.snapshot(0) / STATE_FILE
        if options.tokenizer is not None and options.tokenizer not in ("bpe", "byte", "model"):
            source = model_folder(options.tokenizer, cache=cache)
        if (weights or start) and tokenizer.kind != "model":
            raise ModelError(
                f"trained weights know only their own tokens, not those of tokenizer.kind {tokenizer.kind!r}; "
                'take "model", or the config alone (--from-scratch)'
            )
        return cls(
            settings=settings,
            tokenizer=tokenizer,
            config=config,
            weights=weights,
            start=start,
            tokenizer_source=source,
        )

    def prepare(self, documents: Iterable[str], files: Path, *, sequence_length: int, seed: int) -> PreparedModel:
        """Write tokenizer/, model/config.json and model/layout.json under `files`, and make θ_0.

        θ_0 is drawn with `seed` (the same on one machine with one torch), or is what the weights hold. A model from
        scratch gets the tokenizer's vocabulary; a trained one must have room for it.
        Raises ModelError, DataError, DiskError.
        """
        tokenizer_settings, tokenizer = _write_tokenizer(self.tokenizer, documents, self.tokenizer_source, files)
        path = files / MODEL_CONFIG
        is_trained = self.weights is not None or self.start is not None
        write_durably(path, config_bytes(self.config, tokenizer, keep_vocabulary=is_trained))
        model = self._build(path, seed)
        check_model(model, vocabulary_size=len(tokenizer), sequence_length=sequence_length)
        layout, theta = layout_of(model), initial_parameters(model)
        if not bool(theta.abs().max() <= LARGEST):
            raise ModelError(f"the weights hold values that are not finite, in {_first_bad(layout, theta)}")
        squash_(theta)  # as every outer step leaves it
        write_durably(files / MODEL_LAYOUT, layout.encode())
        settings = replace(
            self.settings,
            architecture=str(self.config["model_type"]),
            parameters=layout.num_values,
            source="weights" if is_trained else "config",
        )
        return PreparedModel(
            settings=settings, tokenizer_settings=tokenizer_settings, tokenizer=tokenizer, layout=layout, theta=theta
        )

    def _build(self, config: Path, seed: int) -> PreTrainedModel:
        if self.weights is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = build_model(config)
            if self.start is not None:
                load_parameters(model, layout_of(model), _theta_of(self.start))
            return model
        model = load_pretrained(self.weights)
        with torch.device("meta"):
            rebuilt = layout_of(build_model(config))
        if rebuilt != layout_of(model):
            raise ModelError(f"{self.weights}: the weights are not those of its {CONFIG_FILE}")
        return model


def _theta_of(state: Path) -> Tensor:
    try:
        return load_file(state)["theta"]
    except (OSError, SafetensorError, KeyError) as error:
        raise ModelError(f"{state}, the model that the earlier run began with, cannot be read; give --model") from error


def model_folder(name: str, *, cache: Path) -> Path:
    """The folder of a model that is a folder, a config.json, or a name of the hub (owner/name@revision).

    Raises ModelError.
    """
    path = Path(name)
    if path.is_dir() or path.is_file():
        return path if path.is_dir() else path.parent
    found = HUB_MODEL.fullmatch(name)
    if found is None:
        raise ModelError(f"{name} is no folder and no model of the hub (owner/name, or owner/name@revision)")
    try:
        return Path(snapshot_download(found[1], revision=found[2], allow_patterns=list(MODEL_FILES), cache_dir=cache))
    except Exception as error:  # one of many of the hub's and the network's
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{name} is no folder here, and the hub does not give it: {reason}") from error


def _write_tokenizer(
    settings: TokenizerSettings, documents: Iterable[str], source: Path | None, files: Path
) -> tuple[TokenizerSettings, PreTrainedTokenizerFast]:
    """Write the tokenizer under `files` and return it with the settings that describe it.

    `source` is the folder of a tokenizer to copy, for kind "model". Raises DataError, ModelError.
    """
    if settings.kind == "model":
        if source is None:
            raise ModelError('tokenizer.kind is "model", and there is no model to copy it from; give --model')
        made = tokenizers.copy_from(source)
    else:
        made = tokenizers.make_tokenizer(settings, _limited(documents, TOKENIZER_CHARACTERS))
    folder = files / TOKENIZER_FOLDER
    tokenizers.save(made, folder)
    made = tokenizers.load_tokenizer(folder)  # what the others will read, not what lies in memory
    vocabulary_size = max(len(made), BYTE_VOCABULARY) if settings.kind != "byte" else settings.vocabulary_size
    return replace(settings, vocabulary_size=vocabulary_size, eos_token=str(made.eos_token)), made


def _limited(documents: Iterable[str], most_characters: int) -> Iterator[str]:
    seen = 0
    for document in documents:
        yield document
        seen += len(document)
        if seen > most_characters:
            return


def has_tokens(documents: Iterable[str], tokenizer: PreTrainedTokenizerFast, *, least: int) -> bool:
    """Whether the documents, with an end-of-document token each, have `least` tokens; reads no more than it must."""
    encoder = tokenizers.Encoder(tokenizer)
    counts = (len(encoder.encode([document])[0]) for document in documents)
    return any(total >= least for total in itertools.accumulate(counts))


def read_config(path: Path) -> dict[str, Any]:
    """A model's config.json. Raises ModelError."""
    try:
        config = json.loads(read_file(path, limit_bytes=MAX_CONFIG_BYTES))
    except DiskError as error:
        raise ModelError(f"no model there: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not a model's config: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"{path} is not a model's config: it names no model_type")
    return config


def config_bytes(config: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast, *, keep_vocabulary: bool) -> bytes:
    """The run's model/config.json: without what would run code or concern one machine, EOS as the tokenizer has it."""
    kept = {key: value for key, value in config.items() if key not in IGNORED_KEYS}
    if not keep_vocabulary:
        kept |= {"vocab_size": len(tokenizer), "bos_token_id": tokenizer.eos_token_id}
    kept |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    return (json.dumps(kept, indent=2, sort_keys=True) + "\n").encode()


def _first_bad(layout: ParameterLayout, theta: Tensor) -> str:
    views = layout.views(theta)
    return next(name for name, view in views.items() if not bool(view.abs().max() <= LARGEST))
