from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from swarm_diloco.training.evaluation import evaluate
from swarm_diloco.training.model import initial_parameters

CPU = torch.device("cpu")


def test_the_loss_is_the_mean_over_all_predictions_however_they_are_cut(
    tiny_model: Callable[..., PreTrainedModel], random_blocks: Callable[..., Tensor]
) -> None:
    model, blocks = tiny_model(), random_blocks(7)
    with torch.no_grad():
        expected = float(model(input_ids=blocks, labels=blocks).loss)
    for micro_batch in (1, 3, 7, 100):
        loss, tokens = evaluate(model, blocks.int(), device=CPU, micro_batch=micro_batch)
        assert loss == pytest.approx(expected, rel=1e-6)
        assert tokens == 7 * 15


def test_dropout_is_off_and_training_goes_on_afterwards(
    tiny_model: Callable[..., PreTrainedModel], random_blocks: Callable[..., Tensor]
) -> None:
    model, blocks = tiny_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5), random_blocks()
    theta = initial_parameters(model)
    first = evaluate(model, blocks, device=CPU, micro_batch=2)
    assert evaluate(model, blocks, device=CPU, micro_batch=2) == first
    assert model.training
    assert torch.equal(initial_parameters(model), theta)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_empty_set_is_refused(tiny_model: Callable[..., PreTrainedModel]) -> None:
    with pytest.raises(ValueError, match="no block"):
        evaluate(tiny_model(), torch.empty(0, 16, dtype=torch.int64), device=CPU, micro_batch=1)
