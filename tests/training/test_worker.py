"""What happens in a round: a real trainer with the test in the client's place."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from swarm_diloco.errors import ModelError
from swarm_diloco.training.channel import (
    Due,
    Evaluate,
    Evaluated,
    Failed,
    Offer,
    Pause,
    Ready,
    Resume,
    Stepped,
)
from swarm_diloco.training.inner_loop import StepResult, learning_rate_at
from swarm_diloco.training.model import layout_of
from swarm_diloco.training.progress import MAX_MISSED
from swarm_diloco.training.worker import MAX_REFUSED
from trainer_harness import BATCH, BATCH_TOKENS, LENGTH, POSITION, STEPS, Swarm, shifted


def test_the_trainer_says_what_it_is_and_starts_from_the_swarms_parameters(swarm: Callable[..., Swarm]) -> None:
    one = swarm()
    theta = shifted(one.local(), 1)
    one.apply(theta, 7)
    one.start(POSITION, Pause())
    ready = one.expect(Ready)
    assert ready == Ready(device="cpu", precision="float32", micro_batch=BATCH, parameters=theta.numel())
    one.echo()
    assert torch.equal(one.local(), theta)
    assert one.data.assigned == [POSITION]


def test_an_offer_comes_after_h_steps_with_delta_against_the_current_theta(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start()
    theta = one.shared.theta.clone()
    offer = one.expect(Offer)
    delta = theta - one.local()
    assert torch.equal(one.shared.delta, delta)
    assert float(delta.norm()) > 0
    assert offer.norm == pytest.approx(float(delta.double().norm()))
    assert replace(offer, norm=0.0, step_seconds=0.0) == Offer(
        number=1,
        round=0,
        weight=STEPS * BATCH_TOKENS,
        tokens=STEPS * BATCH_TOKENS,
        ranges=((0, 0, 0, STEPS * BATCH),),
        norm=0.0,
        step_seconds=0.0,
        num_steps=STEPS,
    )
    assert offer.step_seconds == pytest.approx(sum(step.seconds for step in one.stepped) / STEPS)
    assert [step.step for step in one.stepped] == [1, 2, 3]
    assert {step.tokens for step in one.stepped} == {BATCH_TOKENS}


def test_the_learning_rate_follows_the_log_and_between_its_words_the_swarms_pace(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start()
    offer = one.expect(Offer)
    later = replace(POSITION, round=1, global_tokens=4000, tokens_per_own_token=2.0)
    one.send(later)
    one.answer(offer, 1.0, 1, pause=False)
    one.expect(Offer)
    expected = [1000 + 4 * BATCH_TOKENS * step for step in range(3)] + [4000 + 2 * BATCH_TOKENS * s for s in range(3)]
    rates = [learning_rate_at(one.inner_loop.settings, tokens) for tokens in expected]
    assert [step.learning_rate for step in one.stepped] == rates
    assert len(set(rates)) > 4


def test_a_listed_worker_takes_theta_and_its_claim_is_settled(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start()
    offer = one.expect(Offer)
    theta = shifted(one.shared.theta, 1)
    one.apply(theta, 1)
    one.answer(offer, 1.0, 1)
    assert torch.equal(one.local(), theta)
    one.send(Resume())
    second = one.expect(Offer)
    assert (second.number, second.round, second.weight, second.tokens) == (2, 1, offer.weight, offer.tokens)
    assert second.ranges == ((0, 0, STEPS * BATCH, 2 * STEPS * BATCH),)
    assert torch.equal(one.shared.delta, theta - one.local())


def test_a_worker_that_is_not_listed_keeps_its_model_and_forms_the_next_delta_against_the_new_theta(
    swarm: Callable[..., Swarm],
) -> None:
    one = swarm().start()
    offer = one.expect(Offer)
    local, theta = one.local(), shifted(one.shared.theta, 1)
    one.apply(theta, 1)
    one.answer(offer, 0.0, 1)
    assert torch.equal(one.local(), local), "shifting it by the others' step ruins the run"
    one.send(Resume())
    second = one.expect(Offer)
    assert torch.equal(one.shared.delta, theta - one.local())
    assert (second.round, second.tokens) == (1, 2 * offer.tokens)
    assert second.weight == offer.weight, "a late Δ has one round's weight"
    assert second.ranges == ((0, 0, 0, 2 * STEPS * BATCH),)
    one.apply(shifted(theta, 2), 2)
    one.answer(second, 1.0, 2)
    one.send(Resume())
    third = one.expect(Offer)
    assert (third.weight, third.tokens) == (offer.weight, offer.tokens)


def test_a_partly_listed_worker_takes_theta_where_it_is_listed_and_claims_the_rest_later(
    swarm: Callable[..., Swarm],
) -> None:
    one = swarm().start()
    offer = one.expect(Offer)
    before, theta = one.local(), shifted(one.shared.theta, 1)
    one.apply(theta, 1)
    one.answer(offer, 0.3, 1, taken=((0, 100), (200, 300)))
    expected = before.clone()
    expected[0:100], expected[200:300] = theta[0:100], theta[200:300]
    assert torch.equal(one.local(), expected), "elsewhere its Δ is formed anew, against the newest θ"
    one.send(Resume())
    second = one.expect(Offer)
    assert torch.equal(one.shared.delta, theta - one.local())
    rest = offer.tokens - math.floor(0.3 * offer.tokens)
    assert 0 < rest < offer.tokens
    assert (second.weight, second.tokens) == (offer.weight, rest + offer.tokens), "a late part has one round's weight"
    assert second.ranges == ((0, 0, STEPS * BATCH, 2 * STEPS * BATCH),), "one listed part credits the range"


def test_values_that_eight_commits_did_not_list_start_over_though_others_were_listed(
    swarm: Callable[..., Swarm],
) -> None:
    one = swarm().start()
    theta = one.shared.theta.clone()
    for round_ in range(1, MAX_MISSED + 1):
        offer = one.expect(Offer)
        theta = shifted(theta, 1)
        one.apply(theta, round_)
        one.answer(offer, 0.1, round_, taken=((0, 100),))
        assert torch.equal(one.local()[:100], theta[:100])
        assert torch.equal(one.local(), theta) == (round_ == MAX_MISSED)
        one.send(Resume())


def test_a_late_result_keeps_what_was_trained_since_delta(swarm: Callable[..., Swarm]) -> None:
    one = swarm(pace="time").start(POSITION, Due(round=1))
    offer = one.expect(Offer)
    at_delta = one.local()
    one.answer(offer, 0.0, 0, pause=False)  # undecided: train on
    before = len(one.stepped)
    one.expect(Stepped)
    one.expect(Stepped)
    one.send(Pause())
    one.echo()
    local, since = one.local(), len(one.stepped) - before
    theta = shifted(one.shared.theta, 1)
    one.apply(theta, 1)
    one.answer(offer, 1.0, 1)
    expected = theta + (local - at_delta)
    assert torch.equal(one.local(), expected)
    assert not torch.equal(expected, theta)
    one.send(Due(round=2), Resume())
    second = one.expect(Offer)
    since = len(one.stepped) - before
    assert (second.round, second.tokens, second.weight) == (1, since * BATCH_TOKENS, since * BATCH_TOKENS)
    assert second.num_steps == since


def test_with_pace_time_a_step_comes_before_every_offer(swarm: Callable[..., Swarm]) -> None:
    one = swarm(pace="time", inner_steps=1).start(POSITION, Due(round=1), Due(round=1))
    offer = one.expect(Offer)
    assert len(one.stepped) == offer.num_steps == 1
    one.send(Due(round=2))
    one.answer(offer, 1.0, 1, pause=False)
    assert one.expect(Offer).num_steps >= 1
    one.send(Pause())


def test_an_offer_against_a_later_round_settles_that_rounds_due_too(swarm: Callable[..., Swarm]) -> None:
    """Else a worker that was overtaken once offers after a single step for ever: each Due finds it waiting."""
    one = swarm(pace="time").start(POSITION)
    one.expect(Stepped)
    one.send(Pause())
    one.echo()
    one.apply(shifted(one.shared.theta, 1), 1)  # round 1 is decided without it
    one.send(Due(round=1))
    overtaken = one.expect(Offer)
    assert overtaken.round == 1, "it is for round 2"
    one.send(Due(round=2))
    one.answer(overtaken, 1.0, 2)
    steps = len(one.stepped)
    one.send(Resume())
    one.expect(Stepped)
    one.expect(Stepped)
    one.send(Pause(), Due(round=3))
    assert one.expect(Offer).num_steps == len(one.stepped) - steps >= 2


def test_a_paused_worker_trains_no_step_and_still_offers_what_is_due(swarm: Callable[..., Swarm]) -> None:
    one = swarm(pace="time").start()
    one.expect(Stepped)
    one.send(Pause())
    one.echo()
    steps = len(one.stepped)
    one.echo()
    assert len(one.stepped) == steps
    one.send(Due(round=1))
    offer = one.expect(Offer)
    assert offer.num_steps == len(one.stepped) == steps
    one.answer(offer, 1.0, 1)
    one.send(Due(round=2))  # nothing to offer
    one.echo()
    one.send(Resume())
    assert one.expect(Offer).num_steps >= 1


def test_after_eight_missed_commits_the_delta_is_dropped_and_said(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start()
    theta = one.shared.theta.clone()
    for missed in range(1, 8):
        offer = one.expect(Offer)
        one.apply(shifted(theta, missed), missed)
        one.answer(offer, 0.0, missed, pause=False)
        assert offer.tokens == missed * STEPS * BATCH_TOKENS
    assert one.notices == []
    offer = one.expect(Offer)
    assert offer.tokens == 8 * STEPS * BATCH_TOKENS
    newest = shifted(theta, 8)
    one.apply(newest, 8)
    one.answer(offer, 0.0, 8)
    assert torch.equal(one.local(), newest)
    assert one.notices == [f"dropped what 8 commits did not list: {offer.tokens} tokens"]
    one.send(Resume())
    next_offer = one.expect(Offer)
    assert (next_offer.round, next_offer.weight, next_offer.tokens) == (8, STEPS * BATCH_TOKENS, STEPS * BATCH_TOKENS)
    assert next_offer.ranges == ((0, 0, 0, STEPS * BATCH),), "its text comes again"


def test_a_worker_that_slept_through_eight_commits_offers_nothing_from_before(swarm: Callable[..., Swarm]) -> None:
    """Its Outcome comes while the log is caught up with, and names the first commit that it missed."""
    one = swarm().start()
    offer, theta = one.expect(Offer), one.shared.theta.clone()
    for missed in range(1, 9):
        one.apply(shifted(theta, missed), missed)
    one.answer(offer, 0.0, 1, pause=False)
    next_offer = one.expect(Offer)
    assert one.notices == [f"dropped what 8 commits did not list: {2 * offer.tokens} tokens"]
    assert (next_offer.round, next_offer.tokens) == (8, STEPS * BATCH_TOKENS)


def test_rounds_that_bring_no_result_do_not_count_as_missed(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start()
    for _ in range(10):
        one.answer(one.expect(Offer), 0.0, 0, pause=False)
    assert one.expect(Offer).tokens == 11 * STEPS * BATCH_TOKENS
    assert one.notices == []


@pytest.mark.parametrize("trains_on", [False, True])
def test_an_outcome_that_crosses_the_next_offer_settles_its_own_claim_only(
    trains_on: bool, swarm: Callable[..., Swarm]
) -> None:
    one = swarm().start()
    first = one.expect(Offer)
    one.answer(first, 0.0, 0, pause=False)
    second = one.expect(Offer)
    assert second.tokens == 2 * first.tokens
    if trains_on:
        one.data.at_batch[2 * STEPS + 1] = lambda: one.send(Pause())
        one.answer(second, 0.0, 0, pause=False)
        one.expect(Stepped)
        one.echo()
    local = one.local()
    one.apply(shifted(one.shared.theta, 1), 1)
    one.answer(first, 1.0, 1)
    assert torch.equal(one.local(), local)
    one.answer(second, 0.0, 1)
    assert torch.equal(one.local(), local)
    one.send(Resume())
    third = one.expect(Offer)
    assert third.tokens == 2 * first.tokens, "of three rounds' tokens one is claimed"
    assert third.ranges == ((0, 0, STEPS * BATCH, 3 * STEPS * BATCH),)


def test_a_delta_that_is_not_finite_never_leaves_and_the_model_starts_anew(swarm: Callable[..., Swarm]) -> None:
    one = swarm()
    theta, step, results = one.shared.theta.clone(), one.inner_loop.step, []

    def broken_at_last(batch: Tensor, global_tokens: int) -> StepResult:
        results.append(step(batch, global_tokens))
        if len(results) == STEPS:
            with torch.no_grad():
                one.model.get_input_embeddings().weight[1, 1] = float("inf")
        return results[-1]

    one.inner_loop.step = broken_at_last
    one.start()
    offer = one.expect(Offer)
    assert torch.isfinite(one.shared.delta).all()
    assert "not finite" in one.notices[0]
    assert (offer.number, offer.tokens) == (1, STEPS * BATCH_TOKENS)
    assert torch.equal(one.shared.delta, theta - one.local())
    assert set(one.inner_loop.state().steps.values()) == {STEPS}, "the optimizer has started anew"


def test_steps_that_are_not_finite_weigh_nothing_and_in_a_row_end_the_trainer(swarm: Callable[..., Swarm]) -> None:
    one = swarm()
    calls: list[None] = []

    def sometimes(*call: Any) -> Any:
        calls.append(None)
        return call[-1] * float("nan") if len(calls) == 2 or len(calls) > STEPS else call[-1]

    one.model.lm_head.register_forward_hook(sometimes)
    one.start()
    offer = one.expect(Offer)
    assert (offer.num_steps, offer.tokens, offer.weight) == (STEPS, 2 * BATCH_TOKENS, 2 * BATCH_TOKENS)
    assert [step.tokens for step in one.stepped] == [BATCH_TOKENS, 0, BATCH_TOKENS]
    one.answer(offer, 1.0, 1, pause=False)
    assert f"not finite in {MAX_REFUSED} steps in a row" in one.expect(Failed).reason
    one.thread.join(60)
    assert isinstance(one.error, ModelError)


def test_out_of_memory_is_survived_with_half_the_micro_batch(swarm: Callable[..., Swarm]) -> None:
    one = swarm()
    forward = one.model.forward

    def small(*arguments: Any, **named: Any) -> Any:
        if named["input_ids"].shape[0] > 2:
            raise torch.OutOfMemoryError("no room")
        return forward(*arguments, **named)

    one.model.forward = small
    one.start()
    offer = one.expect(Offer)
    assert [step.micro_batch for step in one.stepped] == [2, 2, 2]
    assert offer.tokens == STEPS * BATCH_TOKENS


def test_evaluation_measures_the_swarms_parameters_and_leaves_the_local_ones(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start()
    one.expect(Offer)
    local, theta = one.local(), shifted(one.shared.theta, 1)
    one.apply(theta, 5)
    one.send(Evaluate(round=5, set_names=("missing", "held-out")))
    evaluated = one.expect(Evaluated)
    assert (evaluated.set_name, evaluated.round, evaluated.tokens) == ("held-out", 5, 4 * (LENGTH - 1))
    assert "missing: nobody has it" in one.notices[0]
    assert torch.equal(one.local(), local)
    blocks = one.data.held_out("held-out", max_tokens=4 * LENGTH)
    at_local = float(one.model(input_ids=blocks, labels=blocks).loss.detach())
    with torch.no_grad():
        for name, view in layout_of(one.model).views(theta).items():
            one.model.get_parameter(name).copy_(view)
        assert evaluated.loss == pytest.approx(float(one.model(input_ids=blocks, labels=blocks).loss), rel=1e-5)
    assert evaluated.loss != pytest.approx(at_local, rel=1e-5)
