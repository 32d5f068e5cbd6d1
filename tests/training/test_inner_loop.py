import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from swarm_diloco.errors import ModelError
from swarm_diloco.training.device import Device
from swarm_diloco.training.inner_loop import InnerLoop, learning_rate_at
from swarm_diloco.training.model import initial_parameters
from swarm_diloco.training.settings import InnerSettings

Models = Callable[..., PreTrainedModel]
Settings = Callable[..., InnerSettings]
Blocks = Callable[..., Tensor]


def only_up_to(num_sequences: int, model: PreTrainedModel) -> list[int]:
    """Make forward passes of more sequences run out of memory; returns the list of all passes' sizes."""
    forward, sizes = model.forward, []

    def limited(*arguments: Any, **named: Any) -> Any:
        size = named["input_ids"].shape[0]
        sizes.append(size)
        if size > num_sequences:
            raise torch.OutOfMemoryError(f"no room for {size}")
        return forward(*arguments, **named)

    model.forward = limited
    return sizes


def test_the_learning_rate_follows_the_swarms_tokens(inner_settings: Settings) -> None:
    wsd = inner_settings(learning_rate=1.0, warmup_tokens=640, total_tokens=10_000, final_fraction=0.1)
    batch = wsd.batch_tokens
    assert batch == 64
    assert learning_rate_at(wsd, 0) == pytest.approx(0.1)
    assert learning_rate_at(wsd, 320 - batch) == pytest.approx(0.5)
    assert learning_rate_at(wsd, 640) == learning_rate_at(wsd, 8_000) == 1.0
    assert learning_rate_at(wsd, 9_000) == pytest.approx(0.55)
    assert learning_rate_at(wsd, 10_000) == learning_rate_at(wsd, 10**9) == pytest.approx(0.1)
    cosine = inner_settings(
        learning_rate=1.0, warmup_tokens=1_000, total_tokens=9_000, final_fraction=0.0, schedule="cosine"
    )
    assert learning_rate_at(cosine, 1_000) == 1.0
    assert learning_rate_at(cosine, 5_000) == pytest.approx(0.5)
    assert learning_rate_at(cosine, 3_000) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert learning_rate_at(cosine, 9_000) == pytest.approx(0.0)


@given(st.sampled_from(["wsd", "cosine"]), st.integers(0, 2**40), st.integers(0, 800), st.floats(0, 1))
def test_the_learning_rate_rises_and_then_never_again(
    schedule: str, tokens: int, warmup_tokens: int, final_fraction: float
) -> None:
    settings = InnerSettings(
        learning_rate=0.5,
        warmup_tokens=warmup_tokens,
        total_tokens=1_000,
        schedule=schedule,
        final_fraction=final_fraction,
        batch_sequences=1,
        sequence_length=2,
    )
    now, later = learning_rate_at(settings, tokens), learning_rate_at(settings, tokens + 17)
    assert (now <= later + 1e-12) if tokens + 17 < warmup_tokens else (tokens < warmup_tokens or later <= now + 1e-12)
    assert 0.5 * final_fraction * (tokens >= warmup_tokens) - 1e-12 <= now <= 0.5


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"learning_rate": 0.0}, "learning_rate is positive, not 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"beta2": 1.0}, "beta2"),
        ({"clip": 0.0}, "clip"),
        ({"batch_sequences": 0}, "batch_sequences"),
        ({"sequence_length": 1}, "sequence_length"),
        ({"schedule": "linear"}, "schedule"),
        ({"total_tokens": 0}, "total_tokens"),
        ({"total_tokens": 100, "warmup_tokens": 81}, "warmup_tokens is at most 80"),
    ],
)
def test_settings_name_the_rule_that_is_broken(changes: dict[str, Any], rule: str, inner_settings: Settings) -> None:
    with pytest.raises(ValueError, match=rule):
        inner_settings(**changes)


def test_a_step_is_clipped_adamw_with_decay_of_matrices_only(
    tiny_model: Models, inner_settings: Settings, cpu: Device, random_blocks: Blocks
) -> None:
    settings = inner_settings(clip=0.01, weight_decay=0.5, learning_rate=0.1, warmup_tokens=640)  # 0.01 at the start
    model, reference, batch = tiny_model("gpt2"), tiny_model("gpt2"), random_blocks()
    result = InnerLoop(model, settings, cpu, 4).step(batch, 0)

    loss = reference(input_ids=batch, labels=batch).loss
    loss.backward()
    loss = loss.detach()
    norm = math.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in reference.parameters()))
    assert result.grad_norm == pytest.approx(norm, rel=1e-4)
    assert norm > 0.01, "the gradient is to be clipped here"
    assert result.loss == pytest.approx(float(loss), rel=1e-5)
    assert (result.tokens, result.learning_rate, result.micro_batch) == (batch.numel(), pytest.approx(1e-2), 4)
    for name, parameter in reference.named_parameters():
        gradient = parameter.grad * (0.01 / norm)
        decay = 0.5 if parameter.dim() >= 2 else 0.0
        expected = parameter * (1 - 1e-2 * decay) - 1e-2 * gradient / (gradient.abs() + 1e-8)  # Adam's first step
        torch.testing.assert_close(
            model.get_parameter(name), expected, rtol=1e-4, atol=2e-5, msg=lambda m, n=name: n + m
        )


@pytest.mark.parametrize("micro_batch", [1, 3, 4])
def test_accumulation_is_the_whole_batch(
    micro_batch: int, tiny_model: Models, inner_settings: Settings, cpu: Device, random_blocks: Blocks
) -> None:
    whole, parts, batch = tiny_model(), tiny_model(), random_blocks(7)
    settings = inner_settings(batch_sequences=7)
    one = InnerLoop(whole, settings, cpu, 7).step(batch, 0)
    other = InnerLoop(parts, settings, cpu, micro_batch).step(batch, 0)
    assert other.loss == pytest.approx(one.loss, rel=1e-6)
    assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    assert other.tokens == one.tokens == batch.numel()


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2"])
def test_a_repeated_sentence_is_learnt_by_heart(
    architecture: str, tiny_model: Models, inner_settings: Settings, cpu: Device
) -> None:
    batch = torch.tensor([[1, 2, 3, 0] * 4])
    inner_loop = InnerLoop(tiny_model(architecture), inner_settings(batch_sequences=1), cpu, 1)
    losses = [inner_loop.step(batch, 0).loss for _ in range(60)]
    assert losses[0] > 3.5
    assert losses[-1] < 0.05


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(
    where: str, tiny_model: Models, inner_settings: Settings, cpu: Device, random_blocks: Blocks
) -> None:
    model = tiny_model()
    inner_loop = InnerLoop(model, inner_settings(), cpu, 4)
    inner_loop.step(random_blocks(seed=1), 0)
    theta, adam = initial_parameters(model), inner_loop.state()
    moments = {name: moment.clone() for name, moment in adam.first_moments.items()}
    parameter = model.get_input_embeddings().weight
    if where == "loss":
        handle = model.lm_head.register_forward_hook(lambda *call: call[-1] * float("nan"))
    else:
        handle = parameter.register_hook(lambda gradient: gradient * float("inf"))
    broken = inner_loop.step(random_blocks(seed=2), 0)
    handle.remove()
    assert broken.refused
    assert broken.tokens == 0
    assert math.isfinite(broken.loss) is (where == "gradient")
    assert torch.equal(initial_parameters(model), theta)
    assert all(torch.equal(inner_loop.state().first_moments[name], moment) for name, moment in moments.items())
    assert set(inner_loop.state().steps.values()) == {1}
    sound = inner_loop.step(random_blocks(seed=2), 0)
    assert not sound.refused
    assert not torch.equal(initial_parameters(model), theta)


def test_out_of_memory_halves_the_micro_batch_and_repeats_the_whole_step(
    tiny_model: Models, inner_settings: Settings, cpu: Device, random_blocks: Blocks
) -> None:
    limited, free, batch = tiny_model(), tiny_model(), random_blocks(8)
    settings = inner_settings(batch_sequences=8)
    sizes = only_up_to(2, limited)
    inner_loop = InnerLoop(limited, settings, cpu, 8)
    result = inner_loop.step(batch, 0)
    assert sizes == [8, 4, 2, 2, 2, 2]
    assert (result.micro_batch, inner_loop.micro_batch) == (2, 2)
    InnerLoop(free, settings, cpu, 2).step(batch, 0)
    assert torch.equal(initial_parameters(limited), initial_parameters(free)), "nothing of the failed tries remains"


def test_out_of_memory_in_the_middle_leaves_no_half_gradient(
    tiny_model: Models, inner_settings: Settings, cpu: Device, random_blocks: Blocks
) -> None:
    limited, free, batch = tiny_model(), tiny_model(), random_blocks(8)
    settings = inner_settings(batch_sequences=8)
    forward, calls = limited.forward, []

    def second_fails(*arguments: Any, **named: Any) -> Any:
        calls.append(named["input_ids"].shape[0])
        if len(calls) == 2:
            raise torch.OutOfMemoryError("just now")
        return forward(*arguments, **named)

    limited.forward = second_fails
    InnerLoop(limited, settings, cpu, 4).step(batch, 0)
    InnerLoop(free, settings, cpu, 2).step(batch, 0)
    assert calls == [4, 4, 2, 2, 2, 2]
    assert torch.equal(initial_parameters(limited), initial_parameters(free))


def test_a_machine_too_small_for_one_sequence_is_told_so(
    tiny_model: Models, inner_settings: Settings, cpu: Device, random_blocks: Blocks
) -> None:
    model = tiny_model()
    only_up_to(0, model)
    with pytest.raises(ModelError, match="one sequence of 16 tokens does not fit into the memory of cpu"):
        InnerLoop(model, inner_settings(), cpu, 4).step(random_blocks(), 0)


def test_the_optimizers_memory_comes_back_to_the_bit(
    tiny_model: Models, inner_settings: Settings, cpu: Device, random_blocks: Blocks
) -> None:
    settings = inner_settings()
    steady, broken_off = tiny_model(), tiny_model()
    one, other = InnerLoop(steady, settings, cpu, 4), InnerLoop(broken_off, settings, cpu, 4)
    assert one.state().steps == {}
    for seed in range(3):
        one.step(random_blocks(seed=seed), 0)
        other.step(random_blocks(seed=seed), 0)
    resumed = InnerLoop(broken_off, settings, cpu, 4)
    resumed.restore(other.state())
    cold = InnerLoop(tiny_model(seed=9), settings, cpu, 4)
    for seed in range(3, 6):
        one.step(random_blocks(seed=seed), 0)
        resumed.step(random_blocks(seed=seed), 0)
    assert torch.equal(initial_parameters(steady), initial_parameters(broken_off))
    resumed.reset()
    assert resumed.state().steps == cold.state().steps == {}


def test_bfloat16_autocast_keeps_weights_in_float32_and_trains(
    tiny_model: Models, inner_settings: Settings, random_blocks: Blocks
) -> None:
    model, batch = tiny_model(), random_blocks()
    device = Device(torch.device("cpu"), torch.bfloat16)
    inner_loop = InnerLoop(model, inner_settings(), device, 4)
    losses = [inner_loop.step(batch, 0).loss for _ in range(20)]
    assert losses[-1] < losses[0] - 0.5
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    exact = InnerLoop(tiny_model(), inner_settings(), Device(torch.device("cpu"), torch.float32), 4)
    assert exact.step(batch, 0).loss != losses[0]
    assert exact.step(batch, 0).loss == pytest.approx(losses[1], rel=0.05)
