"""The trainer: what happens in a round, at the worker's side (PROTOCOL rules 5 and 9; arXiv 2311.08105, algorithm 1).

The client process holds the log and the network; here is the local model. Read `run` and downward: a round is one turn
of its loop.
"""

import time
from collections.abc import Callable, Sequence

from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.errors import DataError, DiskError, ModelError, SwarmDilocoError
from swarm_diloco.training.channel import (
    Channel,
    Due,
    Evaluate,
    Evaluated,
    Failed,
    FromClient,
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
    StopRequested,
    TrainedRange,
)
from swarm_diloco.training.checkpoint import Checkpoint, Saved
from swarm_diloco.training.data.source import TrainingData
from swarm_diloco.training.evaluation import evaluate
from swarm_diloco.training.inner_loop import InnerLoop
from swarm_diloco.training.local_model import LocalModel
from swarm_diloco.training.progress import MAX_MISSED, Progress
from swarm_diloco.training.staleness import Staleness

CHECKPOINT_SECONDS = 60.0  # between two checkpoints: short rounds should not spend their time on the disk
MAX_REFUSED = 10  # steps in a row whose numbers are not finite; then something is broken


class Worker:
    """Trains θ_local, offers Δ, takes θ. One thread; nothing starts before `run`."""

    def __init__(
        self,
        *,
        local: LocalModel,
        inner_loop: InnerLoop,
        data: TrainingData,
        channel: Channel,
        schedule: ScheduleSettings,
        checkpoint: Checkpoint,
        evaluation_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._local, self._inner_loop, self._data, self._channel = local, inner_loop, data, channel
        self._schedule, self._checkpoint, self._evaluation_tokens = schedule, checkpoint, evaluation_tokens
        self._clock = clock
        self._progress = Progress()
        self._staleness = Staleness(local.layout.num_values, 0)
        self._has_told_of_stale = False
        self._position: LogPosition | None = None
        self._tokens_since_position = 0
        self._offers: dict[int, Offer] = {}  # the last two, as far as no commit lists them, by number
        self._answered = 0  # number of the last Offer that has an Outcome
        self._due_round = self._offered_due_round = 0
        self._steps_timed, self._seconds = 0, 0.0  # since the last Offer, or since the restart
        self._refused_in_a_row = 0
        self._is_paused = self._has_begun = False
        self._saved_at = clock()

    def run(self) -> None:
        """Train until Stop (a checkpoint is then on disk) or until the client is gone. Raises why it failed."""
        try:
            self._begin()
            while True:
                self._train_until_due()
                if self._offer():
                    self._await_outcome()
        except StopRequested:
            self._save()
            self._channel.send(Stopped(step=self._progress.step))
        except EOFError:  # nobody is left to tell
            return
        except (SwarmDilocoError, TimeoutError) as error:
            if isinstance(error, DataError):  # text is missing, but the model is sound
                self._save()
            self._channel.send(Failed(reason=str(error)))
            raise

    def _train_until_due(self) -> None:
        self._handle_what_has_come()
        while not self._is_due():
            if self._is_paused:
                self._handle(self._channel.receive())
            else:
                self._step()
            self._handle_what_has_come()

    def _is_due(self) -> bool:
        """After H steps, or when the client says so; in any case after one step, and with something to claim."""
        steps, claim = self._progress.steps_since_offer, self._progress.pending_tokens
        if self._schedule.pace == "steps":
            return steps >= self._schedule.round_steps and claim > 0
        return steps > 0 and claim > 0 and self._due_round > self._offered_due_round

    def _step(self) -> None:
        batch = self._data.next_batch(self._inner_loop.settings.batch_sequences)
        result = self._inner_loop.step(batch, self._global_tokens())
        self._progress.stepped(result.tokens)
        self._tokens_since_position += result.tokens
        self._steps_timed, self._seconds = self._steps_timed + 1, self._seconds + result.seconds
        self._channel.send(
            Stepped(
                step=self._progress.step,
                tokens=result.tokens,
                loss=result.loss,
                learning_rate=result.learning_rate,
                seconds=result.seconds,
                micro_batch=result.micro_batch,
            )
        )
        for text in self._data.notices():
            self._channel.send(Notice(text=text))
        self._refused_in_a_row = self._refused_in_a_row + 1 if result.refused else 0
        if self._refused_in_a_row >= MAX_REFUSED:
            raise ModelError(f"loss or gradient not finite in {MAX_REFUSED} steps in a row, last loss {result.loss}")

    def _offer(self) -> bool:
        """Δ against the current θ, and what is claimed for it: everything since the last commit that lists us.

        False if Δ is not finite, or from before too many commits (this machine slept): it is dropped here, and nobody
        sees it.
        """
        try:
            round_, length = self._local.form_delta()
        except ValueError as error:
            self._inner_loop.reset()
            self._start_over(f"a pseudo-gradient that is not finite ({error})")
            return False
        if self._progress.missed(round_) >= MAX_MISSED:
            self._start_over(f"what {MAX_MISSED} commits did not list")
            return False
        num_steps, step_seconds = self._progress.steps_since_offer, self._seconds / max(1, self._steps_timed)
        self._progress.offered()
        self._steps_timed, self._seconds = 0, 0.0
        self._offered_due_round = max(self._due_round, round_ + 1)  # θ may have moved on past a Due that came late
        offer = Offer(
            number=self._progress.offers,
            round=round_,
            weight=self._progress.pending_weight,
            tokens=self._progress.pending_tokens,
            ranges=self._data.ranges(),
            norm=length,
            step_seconds=step_seconds,
            num_steps=num_steps,
        )
        self._offers = {number: kept for number, kept in self._offers.items() if number == offer.number - 1}
        self._offers[offer.number] = offer
        self._channel.send(offer)
        return True

    def _await_outcome(self) -> None:
        while self._answered < self._progress.offers:
            self._handle(self._channel.receive())

    def _take(self, outcome: Outcome) -> None:
        """Listed: the claim is settled, θ_new is taken. Not listed: θ_local goes on, for up to MAX_MISSED commits."""
        self._answered = max(self._answered, outcome.offer)
        is_last = outcome.offer == self._progress.offers  # θ_at_Δ is that of the last Offer only
        if outcome.listed > 0 and (offer := self._offers.pop(outcome.offer, None)) is not None:
            credited_tokens = outcome.credited_tokens
            self._progress.listed(weight=offer.weight, fraction=outcome.listed, credited_tokens=credited_tokens)
            self._data.credit(offer.ranges)
            if is_last:
                self._take_values(outcome)
        elif is_last and self._progress.missed(outcome.newest) >= MAX_MISSED:
            self._start_over(f"what {MAX_MISSED} commits did not list")
        if self._clock() - self._saved_at >= CHECKPOINT_SECONDS:
            self._save()

    def _take_values(self, outcome: Outcome) -> None:
        """θ_new where the commit lists this worker; elsewhere θ_local goes on, for up to MAX_MISSED commits too."""
        if self._progress.steps_since_offer > self._schedule.overlap_steps:
            round_ = self._local.take_late_result(outcome.taken)
        else:
            round_ = self._local.take_result(mixing=self._schedule.mixing, taken=outcome.taken)
        self._progress.synced_round = round_
        self._staleness.took(outcome.taken, round_)
        if stale := self._staleness.stale(round_, MAX_MISSED):
            self._local.take_global(stale)
            self._staleness.took(stale, round_)
            if not self._has_told_of_stale:
                self._has_told_of_stale = True
                text = f"this line is slow: parts of the model that {MAX_MISSED} commits did not list start over"
                self._channel.send(Notice(text=text))

    def _start_over(self, what: str) -> None:
        """Drop what is pending: it is never claimed, and its text comes again. θ_local ← θ."""
        self._channel.send(Notice(text=f"dropped {what}: {self._progress.pending_tokens} tokens"))
        self._progress.restarted(self._local.take_global())
        self._staleness.took((), self._progress.synced_round)
        self._offers.clear()
        self._data.forget()

    # What the client says

    def _handle_what_has_come(self) -> None:
        while (message := self._channel.poll()) is not None:
            self._handle(message)

    def _handle(self, message: FromClient | None) -> None:
        match message:
            case LogPosition():
                self._position, self._tokens_since_position = message, 0
                self._data.assign(message, message.worker)
            case Due(round=round_):
                self._due_round = max(self._due_round, round_)
            case Outcome():
                self._take(message)
            case Evaluate(set_names=set_names):
                self._evaluate(set_names)
            case Pause():
                self._is_paused = True
            case Resume():
                self._is_paused = False
            case Stop():
                raise StopRequested
            case _:
                raise AssertionError(f"the channel keeps {message} to itself")

    def _global_tokens(self) -> int:
        """The log's count, carried on by this worker's own steps since."""
        assert self._position is not None
        return self._position.global_tokens + round(self._tokens_since_position * self._position.tokens_per_own_token)

    def _evaluate(self, set_names: tuple[str, ...]) -> None:
        """The outer parameters' loss: θ is what the swarm trains, θ_local one worker's excursion from it."""
        device, micro_batch = self._inner_loop.device.device, self._inner_loop.micro_batch
        for name in set_names:
            try:
                blocks = self._data.held_out(name, max_tokens=self._evaluation_tokens)
            except DataError as error:
                self._channel.send(Notice(text=f"no evaluation on {name}: {error}"))
                continue
            with self._local.holding_global() as round_:
                loss, tokens = evaluate(self._local.model, blocks, device=device, micro_batch=micro_batch)
            self._channel.send(Evaluated(set_name=name, round=round_, loss=loss, tokens=tokens))

    # Start and checkpoint

    def _begin(self) -> None:
        """From the checkpoint, as far as it holds what no commit lists; else from θ, the optimizer still warm."""
        while self._position is None:
            self._handle(self._channel.receive())
        self._resume(self._position)
        if self._progress.pending_tokens == 0:
            self._progress.restarted(self._local.take_global())
        elif self._progress.missed(self._local.global_round) >= MAX_MISSED:
            self._start_over(f"what {MAX_MISSED} commits did not list while this worker was away")
        self._staleness.took((), self._progress.synced_round)
        self._has_begun = True
        self._channel.send(
            Ready(
                device=self._inner_loop.device.name,
                precision=self._inner_loop.device.precision,
                micro_batch=self._inner_loop.micro_batch,
                parameters=self._local.layout.num_values,
            )
        )

    def _resume(self, position: LogPosition) -> None:
        """Take up the checkpoint. What the log credits meanwhile was listed by a commit that no Outcome told of."""
        try:
            saved = self._checkpoint.load(self._inner_loop)
            if saved is None:
                return
            self._data.restore(saved.data_state)
        except (DiskError, DataError) as error:
            self._channel.send(Notice(text=f"starting from the swarm's parameters: {error}"))
            return
        self._progress = saved.progress
        ends = {(data_pass, shard): end for data_pass, shard, end in position.credited}
        pending = self._data.ranges()
        listed = [each for each in pending if ends.get(each[:2], 0) >= each[3]]
        if listed:
            self._progress.listed_unseen(_num_sequences(listed) / _num_sequences(pending))
            self._data.credit(listed)

    def _save(self) -> None:
        """Keep the checkpoint; a full disk costs the checkpoint, not the training."""
        if not self._has_begun:
            return
        try:
            self._checkpoint.save(self._inner_loop, Saved(self._progress, self._data.state()))
        except DiskError as error:
            self._channel.send(Notice(text=f"no checkpoint: {error}"))
        self._saved_at = self._clock()


def _num_sequences(ranges: Sequence[TrainedRange]) -> int:
    return sum(end - first for _, _, first, end in ranges)
