"""The client's place beside a real trainer: socket pair, shared memory, text in memory. The test looks at its model."""

import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.errors import DataError
from swarm_diloco.training import channel as messages
from swarm_diloco.training.channel import (
    Channel,
    Evaluate,
    Evaluated,
    LogPosition,
    Notice,
    Offer,
    Outcome,
    Pause,
    Ready,
    Stepped,
)
from swarm_diloco.training.checkpoint import Checkpoint
from swarm_diloco.training.device import Device
from swarm_diloco.training.inner_loop import InnerLoop
from swarm_diloco.training.local_model import LocalModel
from swarm_diloco.training.model import initial_parameters, layout_of
from swarm_diloco.training.settings import InnerSettings
from swarm_diloco.training.shared_memory import SharedModel
from swarm_diloco.training.worker import Worker

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
        self.at_batch: dict[int, Callable[[], None]] = {}  # what happens while that batch is made, counted from 1

    def assign(self, position: LogPosition, me: str) -> None:
        assert me == position.worker
        self.assigned.append(position)

    def next_batch(self, num_sequences: int) -> Tensor:
        if self.fails:
            raise DataError("no text came")
        self.next += num_sequences
        self.at_batch.get(self.next // num_sequences, lambda: None)()
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

    def answer(
        self,
        offer: Offer,
        listed: float,
        newest: int,
        *,
        pause: bool = True,
        taken: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Tell the Outcome; with `pause` the trainer then stands still, having done no step."""
        self.send(
            *((Pause(),) if pause else ()),
            Outcome(
                offer=offer.number,
                round=newest,
                listed=listed,
                credited_tokens=int(offer.tokens * listed),
                newest=newest,
                taken=taken,
            ),
        )
        if pause:
            self.echo()

    def leave(self) -> None:
        """The client is gone, without a word."""
        self._connection.close()

    def end(self) -> None:
        self.leave()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.shared.close()


def shifted(theta: Tensor, seed: int) -> Tensor:
    """Another θ, as the other workers might have made it."""
    return theta + 0.01 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(seed))
