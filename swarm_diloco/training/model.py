"""A causal language model from the run's config.json, and its parameters as the flat vector θ."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.errors import ModelError
from swarm_diloco.training.settings import ModelSettings as ModelSettings

MAX_CONFIG_BYTES = 2**20  # a config.json has some kilobytes
IGNORED_KEYS = ("auto_map", "quantization_config", "dtype", "torch_dtype", "use_cache", "attn_implementation")


def build_model(config_path: Path, *, parameters: int | None = None) -> PreTrainedModel:
    """The config's model in float32 on the CPU, in training mode, its parameters drawn at random.

    No code of the config's author runs (`auto_map` is ignored). With `parameters` the model's size is checked before
    memory is taken. The padding id is dropped: sequences are packed, and a padding id that is also the end of a
    document's would keep that embedding from being trained. Raises ModelError.
    """
    config = _read_config(config_path)
    if parameters is not None:
        with torch.device("meta"):
            built = num_parameters(_from_config(config, config_path))
        if built != parameters:
            raise ModelError(f"{config_path} builds a model of {built} parameters, the manifest says {parameters}")
    model = _from_config(config, config_path)
    model.train()
    return model


def load_pretrained(folder: Path) -> PreTrainedModel:
    """A pretrained model from its folder (config.json and safetensors), float32; no hub is asked. Raises ModelError."""
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"no pretrained model in {folder}: {error}") from error
    return _prepared(model)


def _read_config(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            values = json.loads(file.read(MAX_CONFIG_BYTES))
        kept = {key: value for key, value in values.items() if key not in IGNORED_KEYS}
        return CONFIG_MAPPING[values["model_type"]].from_dict({**kept, "pad_token_id": None})
    except KeyError as error:
        raise ModelError(f"{path}: no such model type: {error}") from error
    except Exception as error:  # transformers lets through whatever a wrong value runs into
        raise ModelError(f"{path} is not a model's config: {error}") from error


def _from_config(config: Any, path: Path) -> PreTrainedModel:
    try:
        return _prepared(AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False))
    except Exception as error:  # as above
        raise ModelError(f"{path} does not build a causal language model: {error}") from error


def _prepared(model: PreTrainedModel) -> PreTrainedModel:
    model.config.use_cache = False
    other = sorted({str(parameter.dtype) for parameter in model.parameters() if parameter.dtype != torch.float32})
    if other:
        raise ModelError(f"parameters are float32, not {', '.join(other)}")
    return model


def check_model(model: PreTrainedModel, *, vocabulary_size: int, sequence_length: int) -> None:
    """Raise ModelError if some token has no embedding or a sequence is longer than the model's positions."""
    embeddings = model.get_input_embeddings().num_embeddings
    if embeddings < vocabulary_size:
        raise ModelError(f"the tokenizer has {vocabulary_size} tokens, the model {embeddings} embeddings")
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and positions < sequence_length:
        raise ModelError(f"inner.sequence_length is {sequence_length}, the model has {positions} positions")


def trainable_parameters(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """By name, a tied weight once. Never of a compiled model, whose names differ."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def num_parameters(model: PreTrainedModel) -> int:
    """How many values θ has."""
    return sum(parameter.numel() for parameter in trainable_parameters(model).values())


def layout_of(model: PreTrainedModel, num_fragments: int = 1) -> ParameterLayout:
    """Where each parameter lies in θ."""
    shapes = ((name, tuple(parameter.shape)) for name, parameter in trainable_parameters(model).items())
    return ParameterLayout.of(shapes, num_fragments)


def initial_parameters(model: PreTrainedModel) -> Tensor:
    """θ as the model holds it now: a new float32 vector on the CPU."""
    layout = layout_of(model)
    return read_parameters(model, layout, torch.empty(layout.num_values))


def read_parameters(model: PreTrainedModel, layout: ParameterLayout, out: Tensor) -> Tensor:
    """Copy the model's parameters into `out` (float32 CPU [num_values]) and return it."""
    return layout.flatten(trainable_parameters(model), out)


def load_parameters(model: PreTrainedModel, layout: ParameterLayout, flat: Tensor) -> None:
    """Set the model's parameters from `flat` (float32 [num_values]) in place, on whatever device they are.

    Raises ValueError if the layout is not the model's.
    """
    parameters, views = trainable_parameters(model), layout.views(flat)
    if parameters.keys() != views.keys():
        raise ValueError(f"the layout's {len(views)} parameters are not the model's {len(parameters)}")
    with torch.no_grad():
        for name, view in views.items():
            parameters[name].copy_(view.view(parameters[name].shape))


def next_token_nats(model: PreTrainedModel, blocks: Tensor) -> Tensor:
    """Sum over all predictions of −ln p(next token): a scalar that can be differentiated, in float32.

    `blocks`: int64 [n, L] on the model's device; n (L − 1) predictions. No token is masked, the end of a document
    counts like any other. Written out, not left to `labels=`, so that a sum over micro-batches is a sum over tokens.
    """
    logits = model(input_ids=blocks, use_cache=False).logits[:, :-1].float()
    return functional.cross_entropy(logits.flatten(0, 1), blocks[:, 1:].flatten(), reduction="sum")
