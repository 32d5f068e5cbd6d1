import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from swarm_diloco.errors import ModelError
from swarm_diloco.training.model import (
    build_model,
    check_model,
    initial_parameters,
    layout_of,
    load_parameters,
    load_pretrained,
    next_token_nats,
    num_parameters,
    read_parameters,
)
from swarm_diloco.training.settings import ModelSettings

ARCHITECTURES = ("llama", "gpt2", "qwen2")
EOS = 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_loss_is_the_cross_entropy_of_each_next_token(
    architecture: str, tiny_model: Callable[..., PreTrainedModel], random_blocks: Callable[..., Tensor]
) -> None:
    model, blocks = tiny_model(architecture), random_blocks()
    with torch.no_grad():
        probabilities = model(input_ids=blocks).logits.double().softmax(dim=-1)
        by_hand = sum(
            -torch.log(probabilities[sequence, position, blocks[sequence, position + 1]])
            for sequence in range(blocks.shape[0])
            for position in range(blocks.shape[1] - 1)
        )
        nats = next_token_nats(model, blocks)
        by_labels = model(input_ids=blocks, labels=blocks).loss
    num_predictions = blocks.shape[0] * (blocks.shape[1] - 1)
    torch.testing.assert_close(nats.double(), by_hand, rtol=1e-5, atol=0)
    torch.testing.assert_close(nats / num_predictions, by_labels, rtol=1e-5, atol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_end_of_a_document_is_predicted_and_its_embedding_trained(
    architecture: str, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    model = tiny_model(architecture)
    block = torch.tensor([[5, 6, EOS, 7]])
    with torch.no_grad():
        log_p = model(input_ids=block).logits.log_softmax(dim=-1)[0]
    expected = -(log_p[0, 6] + log_p[1, EOS] + log_p[2, 7])
    nats = next_token_nats(model, block)
    torch.testing.assert_close(nats.detach(), expected, rtol=1e-5, atol=0)
    nats.backward()
    gradient = model.get_input_embeddings().weight.grad
    assert gradient is not None
    assert float(gradient[EOS].abs().sum()) > 0
    if not model.config.tie_word_embeddings:  # as an input alone
        assert torch.count_nonzero(gradient[8:]) == 0


def test_a_padding_id_of_the_config_is_dropped(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("llama", pad_token_id=EOS)
    assert model.config.pad_token_id is None
    assert model.get_input_embeddings().padding_idx is None
    assert model.config.eos_token_id == EOS


@pytest.mark.parametrize(("architecture", "head"), [("llama", 0), ("gpt2", 0), ("qwen2", 1)])
def test_a_tied_weight_is_in_theta_once(
    architecture: str, head: int, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    model = tiny_model(architecture)
    layout = layout_of(model)
    assert sum(name.startswith("lm_head") for name in layout.names) == head
    assert layout.num_values == num_parameters(model) == sum(p.numel() for p in model.parameters())
    flat = initial_parameters(model)
    load_parameters(model, layout, flat + 1)
    assert torch.equal(model.get_output_embeddings().weight, layout.views(flat + 1)[layout.names[0]]) is not head
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert tied is (head == 0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_parameters_come_back_from_theta_to_the_bit(
    architecture: str, tiny_model: Callable[..., PreTrainedModel], random_blocks: Callable[..., Tensor]
) -> None:
    one, other = tiny_model(architecture, seed=1), tiny_model(architecture, seed=2)
    layout, flat = layout_of(one), initial_parameters(one)
    assert flat.dtype == torch.float32
    load_parameters(other, layout_of(other), flat)
    assert torch.equal(read_parameters(other, layout, torch.empty(layout.num_values)), flat)
    assert torch.equal(other(input_ids=random_blocks()).logits, one(input_ids=random_blocks()).logits)
    flat.zero_()  # a copy, not the model's memory
    assert not torch.equal(initial_parameters(one), flat)


def test_another_models_layout_is_refused(tiny_model: Callable[..., PreTrainedModel]) -> None:
    layout = layout_of(tiny_model("llama"))
    with pytest.raises(ValueError, match="parameters"):
        load_parameters(tiny_model("gpt2"), layout, torch.zeros(layout.num_values))


def test_the_model_is_built_for_training(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("llama", torch_dtype="bfloat16", use_cache=True)
    assert model.training
    assert model.config.use_cache is False
    assert model.config._attn_implementation == "sdpa"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_no_code_of_the_configs_author_runs(config_file: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "modeling.py").write_text("raise SystemExit('foreign code ran')")
    path = config_file("llama", auto_map={"AutoConfig": "modeling.Config", "AutoModelForCausalLM": "modeling.Model"})
    assert type(build_model(path)).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not a model's config"),
        ("[]", "not a model's config"),
        ("{}", "model_type"),
        ('{"model_type": "unheard-of"}', "no such model type: 'unheard-of'"),
        ('{"model_type": "vit"}', "does not build a causal language model"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "config"),
        ('{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 0}', "config"),
    ],
)
def test_a_config_that_builds_no_language_model_is_a_model_error(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=what):
        build_model(path)
    with pytest.raises(ModelError, match=r"missing\.json"):
        build_model(tmp_path / "missing.json")


def test_a_model_of_another_size_is_refused_before_its_memory_is_taken(config_file: Callable[..., Path]) -> None:
    huge = config_file("llama", vocab_size=10**10)  # 1.3 TB
    with pytest.raises(ModelError, match=r"320000018592 parameters, the manifest says 7"):
        build_model(huge, parameters=7)
    path = config_file("llama")
    assert num_parameters(build_model(path, parameters=num_parameters(build_model(path)))) > 0


def test_a_model_too_small_for_its_tokens_or_sequences_is_refused(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model("gpt2")
    check_model(model, vocabulary_size=64, sequence_length=64)
    with pytest.raises(ModelError, match="65 tokens, the model 64 embeddings"):
        check_model(model, vocabulary_size=65, sequence_length=64)
    with pytest.raises(ModelError, match="64 positions"):
        check_model(model, vocabulary_size=64, sequence_length=65)


def test_a_pretrained_model_loads_from_its_folder_alone(
    tiny_model: Callable[..., PreTrainedModel], tmp_path: Path
) -> None:
    model, folder = tiny_model("llama"), tmp_path / "pretrained"
    model.save_pretrained(folder)
    loaded = load_pretrained(folder)
    assert torch.equal(initial_parameters(loaded), initial_parameters(model))
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    with pytest.raises(ModelError, match="no pretrained model"):
        load_pretrained(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [({"architecture": ""}, "architecture"), ({"parameters": 0}, "at least 1, not 0"), ({"source": "hub"}, "source")],
)
def test_settings_name_the_rule_that_is_broken(changes: dict[str, object], rule: str) -> None:
    values = {"architecture": "llama", "parameters": 1, **changes}
    with pytest.raises(ValueError, match=rule):
        ModelSettings(**values)
