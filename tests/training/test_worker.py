"""A real trainer, with the test in the client's place: socket pair, shared memory, a model of a few thousand parameters."""

import contextlib
import math
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.errors import DataError, ModelError, SwarmDilocoError
from swarm_diloco.training import channel as messages
from swarm_diloco.training.channel import (
    Channel,
    Due,
    Evaluate,
    Evaluated,
    Failed,
    LogPosition,
    Notice,
    Offer,
    Outcome,
    Pause,
    Ready,
    Resume,
    Stepped,
    Stop,
    Stopped,
)
from swarm_diloco.training.checkpoint import Checkpoint
from swarm_diloco.training.device import Device
from swarm_diloco.training.inner_loop import InnerLoop, StepResult, learning_rate_at
from swarm_diloco.training.local_model import LocalModel
from swarm_diloco.training.model import initial_parameters, layout_of
from swarm_diloco.training.settings import InnerSettings
from swarm_diloco.training.shared_memory import SharedModel
from swarm_diloco.training.worker import MAX_REFUSED, Worker

VOCABULARY, LENGTH, BATCH = 64, 16, 4
BATCH_TOKENS = BATCH * LENGTH
STEPS = 3  # H with pace "steps"
M = TypeVar("M")
POSITION = LogPosition(
    round=0, global_tokens=1000, tokens_per_own_token=4.0, workers=("me", "you"), credited=(), worker="me"
)


class CountedText:
    """One shard without an end: sequence i is drawn from seed i. What TrainingData does, in memory."""

    def __init__(self) -> None:
        self.first = self.next = 0  # [first, next) is trained and not credited
        self.assigned: list[LogPosition] = []
        self.fails = False

    def assign(self, position: LogPosition, me: str) -> None:
        assert me == position.worker
        self.assigned.append(position)

    def next_batch(self, num_sequences: int) -> Tensor:
        if self.fails:
            raise DataError("no text came")
        self.next += num_sequences
        return torch.stack([self.sequence(index) for index in range(self.next - num_sequences, self.next)])

    def sequence(self, index: int) -> Tensor:
        return torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))

    def ranges(self) -> tuple[messages.TrainedRange, ...]:
        return ((0, 0, self.first, self.next),) if self.next > self.first else ()

    def credit(self, ranges: Iterable[messages.TrainedRange]) -> None:
        for _, _, first, end in ranges:
            assert first == self.first
            self.first = end

    def forget(self) -> None:
        self.next = self.first

    def state(self) -> bytes:
        return f"{self.first} {self.next}".encode()

    def restore(self, state: bytes) -> None:
        self.first, self.next = map(int, state.split())

    def notices(self) -> tuple[str, ...]:
        return ()

    def held_out(self, set_name: str, *, max_tokens: int) -> Tensor:
        if set_name == "missing":
            raise DataError("nobody has it")
        return torch.stack([self.sequence(10**6 + index) for index in range(max_tokens // LENGTH)])


class Swarm:
    """The client's side. The trainer runs in a thread; the test looks at its model while it waits for an answer."""

    def __init__(self, model: PreTrainedModel, settings: InnerSettings, folder: Path, **schedule: Any) -> None:
        layout = layout_of(model)
        self.model, self.data, self.now = model, CountedText(), 0.0
        self.shared = SharedModel.create(layout.num_values, 1)
        self.shared.theta.copy_(initial_parameters(model))
        self.inner_loop = InnerLoop(model, settings, Device(torch.device("cpu"), torch.float32), BATCH)
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        self._connection, self._channel = ours, Channel(theirs)
        self.checkpoint = Checkpoint(folder)
        self.worker = Worker(
            local=LocalModel(model, layout, SharedModel.attach(self.shared.descriptor)),
            inner_loop=self.inner_loop,
            data=self.data,
            channel=self._channel,
            schedule=ScheduleSettings(**{"inner_steps": STEPS, "pace": "steps", **schedule}),
            checkpoint=self.checkpoint,
            evaluation_tokens=4 * LENGTH,
            clock=lambda: self.now,
        )
        self.error: BaseException | None = None
        self.stepped: list[Stepped] = []
        self.notices: list[str] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # the test looks at it
            self.error = error
        finally:
            self._channel.__exit__(None, None, None)

    def start(self, *sent: messages.FromClient) -> "Swarm":
        self.thread.start()
        self.send(*(sent or (POSITION,)))
        return self

    def send(self, *sent: messages.FromClient) -> None:
        self._connection.sendall(b"".join(map(messages.encode, sent)))

    def expect(self, kind: type[M]) -> M:
        """The next message of this kind; what may come before it is kept, anything else is an error."""
        while True:
            header = self._connection.recv(messages.HEADER_BYTES, socket.MSG_WAITALL)
            assert header, f"the trainer ended before {kind.__name__}: {self.error!r}"
            message = messages.decode(self._connection.recv(messages.payload_bytes(header), socket.MSG_WAITALL))
            if isinstance(message, Stepped):
                self.stepped.append(message)
            elif isinstance(message, Notice):
                self.notices.append(message.text)
            if isinstance(message, kind):
                return message
            assert isinstance(message, Ready | Stepped | Notice), f"{message} instead of {kind.__name__}"

    def echo(self) -> None:
        """Everything sent before has been done, and with Pause the trainer stands still."""
        self.send(Evaluate(round=0, set_names=("held-out",)))
        self.expect(Evaluated)

    def local(self) -> Tensor:
        return initial_parameters(self.model)

    def apply(self, theta: Tensor, round_: int) -> None:
        """A result arrives in shared memory."""
        with self.shared.writing(0):
            self.shared.theta.copy_(theta)
            self.shared.set_round(0, round_)

    def answer(self, offer: Offer, listed: float, newest: int, *, pause: bool = True) -> None:
        """Tell the Outcome; with `pause` the trainer then stands still, having done no step."""
        self.send(
            *((Pause(),) if pause else ()), Outcome(offer=offer.number, round=newest, listed=listed, newest=newest)
        )
        if pause:
            self.echo()

    def end(self) -> None:
        self._connection.close()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.shared.close()


@pytest.fixture
def swarm(
    tiny_model: Callable[..., PreTrainedModel], inner_settings: Callable[..., InnerSettings], tmp_path: Path
) -> Iterator[Callable[..., Swarm]]:
    with contextlib.ExitStack() as stack:

        def make(*, model: PreTrainedModel | None = None, **schedule: Any) -> Swarm:
            settings = inner_settings(learning_rate=1e-2, warmup_tokens=5000)
            made = Swarm(model or tiny_model(), settings, tmp_path / "checkpoint", **schedule)
            stack.callback(made.end)
            return made

        yield make


def shifted(theta: Tensor, seed: int) -> Tensor:
    """Another θ, as the other workers might have made it."""
    return theta + 0.01 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(seed))


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


def test_a_partly_listed_worker_takes_theta_and_claims_the_rest_later(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start()
    offer = one.expect(Offer)
    theta = shifted(one.shared.theta, 1)
    one.apply(theta, 1)
    one.answer(offer, 0.3, 1)
    assert torch.equal(one.local(), theta)
    one.send(Resume())
    second = one.expect(Offer)
    rest = offer.tokens - math.floor(0.3 * offer.tokens)
    assert 0 < rest < offer.tokens
    assert (second.weight, second.tokens) == (rest + offer.weight, rest + offer.tokens)
    assert second.ranges == ((0, 0, STEPS * BATCH, 2 * STEPS * BATCH),), "one listed part credits the range"


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


def test_rounds_that_bring_no_result_do_not_count_as_missed(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start()
    for _ in range(10):
        one.answer(one.expect(Offer), 0.0, 0, pause=False)
    assert one.expect(Offer).tokens == 11 * STEPS * BATCH_TOKENS
    assert one.notices == []


def test_an_outcome_that_crosses_the_next_offer_settles_its_own_claim_only(swarm: Callable[..., Swarm]) -> None:
    one = swarm().start()
    first = one.expect(Offer)
    one.answer(first, 0.0, 0, pause=False)
    second = one.expect(Offer)
    assert second.tokens == 2 * first.tokens
    local = one.local()
    one.apply(shifted(one.shared.theta, 1), 1)
    one.answer(first, 1.0, 1, pause=False)
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


def test_the_trainer_ends_with_its_client(swarm: Callable[..., Swarm]) -> None:
    for wait_for in (Ready, Stepped, Offer):
        one = swarm().start()
        one.expect(wait_for)
        one._connection.close()
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

    first = swarm(pace="time").start()
    first.expect(Stepped)
    first.send(Stop())
    stopped = first.expect(Stopped)
    assert 1 <= stopped.step < 6, "the machine was too fast for this test"
    assert len(first.stepped) == stopped.step

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
