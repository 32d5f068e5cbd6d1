"""Between trainer and rounds: an Offer becomes a contribution, its outcome goes back, the log's news too."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from swarm_diloco.diloco.ledger import DataRange, Evaluation
from swarm_diloco.errors import DataError, DiskError, ManifestError
from swarm_diloco.manifest import Manifest
from swarm_diloco.rounds.contribution import Contribution
from swarm_diloco.rounds.engine import Engine
from swarm_diloco.rounds.engine import Outcome as RoundOutcome
from swarm_diloco.rounds.follower import Applied, Follower
from swarm_diloco.training.channel import (
    Due,
    Evaluate,
    Evaluated,
    File,
    FromTrainer,
    NeedFile,
    Notice,
    Offer,
    Outcome,
    Ready,
    Stepped,
)
from swarm_diloco.training.shared_memory import SharedModel
from swarm_diloco_client.log_position import evaluates, log_position
from swarm_diloco_client.trainer_process import TrainerProcess

FILE_PAUSES_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)  # between two tries to fetch a file; then the last for ever
FRAGMENT = 0  # the only one in this version

Say = Callable[[str], None]


class Contributor:
    """What one worker's client does for its trainers, one after the other."""

    def __init__(
        self,
        engine: Engine,
        follower: Follower,
        shared: SharedModel,
        manifest: Manifest,
        *,
        fetch: Callable[[str], Awaitable[Path]],
        say: Say,
        file_pauses: Sequence[float] = FILE_PAUSES_SECONDS,
    ) -> None:
        """`fetch` brings a file of the run to this machine."""
        self._engine, self._follower, self._shared, self._manifest = engine, follower, shared, manifest
        self._fetch, self._say, self._file_pauses = fetch, say, file_pauses
        self._me = follower.network.peer
        self._trainer: TrainerProcess | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._open_round: int | None = None  # in which a contribution is undecided
        self._one_at_a_time = asyncio.Lock()  # held while a contribution is undecided
        self._fetching: set[asyncio.Task[None]] = set()
        self._evaluations: dict[str, Evaluation] = {}  # by set: measured, and not in the log yet
        self._due_round = 0  # the newest that was said to be due
        self._steps = 0  # since the last Offer
        self._brought_something = False
        self._losses: list[tuple[float, int]] = []  # loss and tokens of steps nobody was told of yet
        engine.on_due(self._on_due)
        follower.subscribe(self._on_applied)

    def own_loss(self) -> float | None:
        """The mean training loss since this was asked last, nats a token."""
        losses, self._losses = self._losses, []
        tokens = sum(num for _, num in losses)
        return sum(loss * num for loss, num in losses) / tokens if tokens else None

    async def run(self, train: Callable[[], Awaitable[None]]) -> None:
        """Do `train` (which calls `converse`) with everything around it; all of it ends when this is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await train()

    async def converse(self, trainer: TrainerProcess) -> bool:
        """Serve one trainer until it is gone. Returns whether it offered anything."""
        await self._settle()
        self._trainer, self._steps, self._brought_something = trainer, 0, False
        self._send_position(trainer)
        self._send_due(trainer)
        try:
            async for message in trainer.messages():
                self._handle(trainer, message)
        finally:
            self._trainer = None
            for task in self._fetching:
                task.cancel()
        return self._brought_something

    async def _settle(self) -> None:
        """Wait for what a former trainer contributed: a new one resumes from the log, which should know of it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._manifest.rounds.deadline_ceiling_seconds), self._one_at_a_time:
                pass

    async def wait_for_outcome(self, seconds: float) -> None:
        """Before leaving: until the round is decided in which a contribution is under way, if it is in time."""
        if self._open_round is not None and self._engine.status().phase in ("exchanging", "voting"):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._follower.wait_past(self._open_round - 1)

    # --- what the trainer says

    def _handle(self, trainer: TrainerProcess, message: FromTrainer) -> None:
        match message:
            case Ready():
                self._say(
                    f"training on {message.device} in {message.precision}, {message.micro_batch} sequences at once, "
                    f"{message.parameters:,} parameters"
                )
                self._start(self._engine.begin_training())
            case Stepped():
                self._stepped(trainer, message)
            case Offer():
                self._steps, self._brought_something = 0, True
                self._engine.due_lead_seconds = message.step_seconds
                self._start(self._contribute(trainer, message))
            case Evaluated():
                self._evaluations[message.set_name] = Evaluation(
                    message.set_name, message.round, round(message.loss * 1e6), message.tokens
                )
            case NeedFile(path=path):
                task = self._start(self._bring_file(trainer, path))
                self._fetching.add(task)
                task.add_done_callback(self._fetching.discard)
            case Notice(text=text):
                self._say(text)
            case _:
                raise AssertionError(f"{message} is not for here")

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        assert self._tasks is not None
        return self._tasks.create_task(work)

    def _stepped(self, trainer: TrainerProcess, message: Stepped) -> None:
        """Count steps, for a first round that nobody can time: each worker's is due after H of its own."""
        self._steps += 1
        if message.tokens:
            self._losses.append((message.loss, message.tokens))
        head = self._follower.log.head.round
        if (
            self._manifest.schedule.pace == "time"
            and self._steps >= self._manifest.schedule.round_steps
            and self._due_round <= head
            and not self._follower.log.commit(head).next_due_ms
        ):
            self._on_due(head + 1)

    async def _contribute(self, trainer: TrainerProcess, offer: Offer) -> None:
        """Bring the Offer to the round. If that is not decided in time, the trainer goes on meanwhile."""
        async with self._one_at_a_time:
            contribution = self._contribution(offer)
            self._open_round = contribution.base_round + 1
            deciding = asyncio.create_task(self._engine.contribute(contribution))
            try:
                done, _ = await asyncio.wait({deciding}, timeout=self._manifest.rounds.deadline_ceiling_seconds)
                if not done:
                    self._send_outcome(
                        trainer, offer, RoundOutcome(self._open_round, 0.0, self._follower.replica.round)
                    )
                outcome = await deciding
            finally:
                deciding.cancel()
            self._open_round = None
            self._send_outcome(trainer, offer, outcome)

    def _send_outcome(self, trainer: TrainerProcess, offer: Offer, outcome: RoundOutcome) -> None:
        newest = self._shared.round_of(FRAGMENT)  # not the replica's round: a void round leaves θ as it was
        trainer.send(
            Outcome(
                offer=offer.number,
                round=outcome.round,
                listed=outcome.listed,
                credited_tokens=outcome.credited_tokens,
                newest=newest,
                taken=outcome.taken,
            )
        )

    def _contribution(self, offer: Offer) -> Contribution:
        """A void round leaves θ as it was: what was taken against the newest θ is good for the round after it."""
        is_against_newest = offer.round == self._shared.round_of(FRAGMENT)
        known = {(found.set_name, found.round) for found in self._follower.log.totals.evaluations}
        return Contribution(
            delta=self._shared.delta,
            base_round=self._follower.replica.round if is_against_newest else offer.round,
            weight=offer.weight,
            tokens=offer.tokens,
            ranges=tuple(DataRange(*entry) for entry in offer.ranges),
            norm=offer.norm,
            step_seconds=offer.step_seconds,
            evaluation=tuple(
                found for found in self._evaluations.values() if (found.set_name, found.round) not in known
            ),
        )

    async def _bring_file(self, trainer: TrainerProcess, path: str) -> None:
        tries = 0
        while True:
            try:
                trainer.send(File(path=path, location=str(await self._fetch(path))))
            except (DataError, DiskError) as error:
                pause = self._file_pauses[min(tries, len(self._file_pauses) - 1)]
                self._say(f"{error}\nThe next try is in {pause:g} s")
                await asyncio.sleep(pause)
                tries += 1
            except ManifestError as error:
                trainer.send(File(path=path, error=str(error)))
                return
            else:
                return

    # --- what the rounds say

    def _on_applied(self, _applied: Applied) -> None:
        if self._trainer is not None:
            self._send_position(self._trainer)

    def _send_position(self, trainer: TrainerProcess) -> None:
        log = self._follower.log
        trainer.send(log_position(log, self._me, self._manifest.data.shards))
        if evaluates(log.commit(log.head.round), self._me, self._manifest.evaluation):
            trainer.send(Evaluate(round=log.head.round, set_names=self._manifest.evaluation.sets))

    def _on_due(self, round_: int) -> None:
        self._due_round = round_
        if self._trainer is not None:
            self._send_due(self._trainer)

    def _send_due(self, trainer: TrainerProcess) -> None:
        if self._due_round > self._follower.log.head.round:
            trainer.send(Due(round=self._due_round))
