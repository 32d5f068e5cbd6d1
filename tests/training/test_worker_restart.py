"""How a trainer begins, ends and begins again, with the test in the client's place."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swarm_diloco.errors import SwarmDilocoError
from swarm_diloco.training.channel import (
    Failed,
    Offer,
    Pause,
    Ready,
    Resume,
    Stepped,
    Stop,
    Stopped,
)
from trainer_harness import BATCH, BATCH_TOKENS, POSITION, STEPS, Swarm, shifted


def test_the_trainer_ends_with_its_client(swarm: Callable[..., Swarm]) -> None:
    for wait_for in (Ready, Stepped, Offer):
        one = swarm().start()
        one.expect(wait_for)
        one.leave()
        one.thread.join(60)
        assert not one.thread.is_alive()
        assert one.error is None


def test_missing_text_ends_the_trainer_with_a_reason_and_a_checkpoint(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start()
    offer = one.expect(Offer)
    one.data.fails = True
    one.answer(offer, 1.0, 1, pause=False)
    assert one.expect(Failed).reason == "no text came"
    one.thread.join(60)
    assert isinstance(one.error, SwarmDilocoError)
    assert one.checkpoint.path.exists()


def test_a_stop_before_the_start_writes_nothing(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start(Stop())
    assert one.expect(Stopped) == Stopped(step=0)
    assert not one.checkpoint.path.exists()


def test_a_worker_that_was_stopped_in_mid_round_goes_on_to_the_bit(
    swarm: Callable[..., Swarm], tiny_model: Callable[..., PreTrainedModel]
) -> None:
    steady = swarm(inner_steps=6).start()
    expected = steady.expect(Offer)
    steady_delta = steady.shared.delta.clone()
    losses = [step.loss for step in steady.stepped]

    first = swarm(inner_steps=6)
    first.data.at_batch[2] = lambda: first.send(Stop())
    first.start()
    stopped = first.expect(Stopped)
    assert stopped.step == len(first.stepped) == 2

    second = swarm(model=tiny_model(seed=5), inner_steps=6)
    second.shared.theta.copy_(first.shared.theta)
    own = replace(POSITION, global_tokens=POSITION.global_tokens + 4 * stopped.step * BATCH_TOKENS)
    second.start(own)
    offer = second.expect(Offer)
    assert [step.loss for step in (*first.stepped, *second.stepped)] == losses
    assert torch.equal(second.shared.delta, steady_delta)
    assert replace(offer, step_seconds=0.0) == replace(expected, step_seconds=0.0)
    assert second.stepped[0].step == stopped.step + 1


def stopped_with_pending(swarm: Callable[..., Swarm]) -> tuple[Swarm, Offer, Tensor]:
    """A worker that stopped while it waited for an Outcome."""
    one = swarm().start()
    offer = one.expect(Offer)
    local = one.local()
    one.send(Stop())
    assert one.expect(Stopped) == Stopped(step=STEPS)
    return one, offer, local


def test_after_a_restart_the_counters_go_on(swarm: Callable[..., Swarm]) -> None:
    _, offer, local = stopped_with_pending(swarm)
    again = swarm().start(POSITION, Pause())
    again.expect(Ready)
    again.echo()
    assert torch.equal(again.local(), local)
    again.send(Resume())
    second = again.expect(Offer)
    assert (second.number, second.tokens, second.weight) == (2, 2 * offer.tokens, offer.weight)
    assert second.ranges == ((0, 0, 0, 2 * STEPS * BATCH),)
    assert again.stepped[0].step == STEPS + 1


def test_what_the_log_listed_meanwhile_is_not_claimed_again(swarm: Callable[..., Swarm]) -> None:
    _, offer, _ = stopped_with_pending(swarm)
    again = swarm()
    theta = shifted(again.shared.theta, 1)
    again.apply(theta, 1)
    again.start(replace(POSITION, round=1, credited=((0, 0, STEPS * BATCH),)), Pause())
    again.expect(Ready)
    again.echo()
    assert torch.equal(again.local(), theta)
    again.send(Resume())
    second = again.expect(Offer)
    assert (second.number, second.tokens, second.weight) == (2, offer.tokens, offer.weight)
    assert second.ranges == ((0, 0, STEPS * BATCH, 2 * STEPS * BATCH),)
    assert set(again.inner_loop.state().steps.values()) == {2 * STEPS}, "the optimizer has stayed warm"


def test_a_worker_that_was_away_too_long_drops_and_says_so(swarm: Callable[..., Swarm]) -> None:
    _, offer, local = stopped_with_pending(swarm)
    late = swarm()
    late.apply(shifted(late.shared.theta, 1), 7)
    late.start(POSITION, Pause(), Stop())
    late.expect(Stopped)
    assert torch.equal(late.local(), local)
    assert late.notices == []
    too_late = swarm()
    theta = shifted(too_late.shared.theta, 1)
    too_late.apply(theta, 8)
    too_late.start(POSITION, Pause(), Stop())
    too_late.expect(Stopped)
    assert torch.equal(too_late.local(), theta)
    assert too_late.notices == [
        f"dropped what 8 commits did not list while this worker was away: {offer.tokens} tokens"
    ]


def test_a_damaged_checkpoint_means_starting_from_the_swarms_parameters(swarm: Callable[..., Swarm]) -> None:
    one, _, local = stopped_with_pending(swarm)
    data = bytearray(one.checkpoint.path.read_bytes())
    data[len(data) // 2] ^= 1
    one.checkpoint.path.write_bytes(data)
    again = swarm()
    theta = again.shared.theta.clone()
    again.start(POSITION, Pause())
    again.expect(Ready)
    again.echo()
    assert torch.equal(again.local(), theta)
    assert not torch.equal(local, theta)
    assert str(one.checkpoint.path) in again.notices[0]


def test_checkpoints_are_a_minute_apart(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start()
    offer = one.expect(Offer)
    one.now = 59.0
    one.answer(offer, 1.0, 1)
    assert not one.checkpoint.path.exists()
    one.send(Resume())
    offer = one.expect(Offer)
    one.now = 60.0
    one.answer(offer, 1.0, 2)
    assert one.checkpoint.path.exists()


def test_a_full_disk_costs_the_checkpoint_and_not_the_training(swarm: Callable[..., Swarm], tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("a file where the folder should be")
    one = swarm().start()
    offer = one.expect(Offer)
    one.now = 60.0
    one.answer(offer, 1.0, 1, pause=False)
    second = one.expect(Offer)
    assert second.number == 2
    assert "no checkpoint: cannot write" in one.notices[0]
