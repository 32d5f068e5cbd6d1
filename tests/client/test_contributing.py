"""What a worker's client does with its trainer's messages and with the rounds' news. Trainer and rounds are fakes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from example_run import BOOTSTRAP, LAYOUT, example_manifest
from swarm_diloco.diloco.ledger import Commit, Evaluation, Head, Kind, Member
from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.errors import DataError, ManifestError
from swarm_diloco.rounds.contribution import Contribution
from swarm_diloco.rounds.engine import Outcome as RoundOutcome
from swarm_diloco.rounds.settings import RoundSettings
from swarm_diloco.rounds.totals import Totals
from swarm_diloco.training.channel import (
    Due,
    Evaluate,
    Evaluated,
    File,
    FromClient,
    FromTrainer,
    LogPosition,
    NeedFile,
    Offer,
    Outcome,
    Stepped,
)
from swarm_diloco.training.shared_memory import SharedModel
from swarm_diloco_client.contributing import Contributor

STEPPED = Stepped(step=1, tokens=8, loss=2.0, learning_rate=0.1, seconds=0.1, micro_batch=1)


def offer(number: int, *, round_: int = 0) -> Offer:
    return Offer(
        number=number, round=round_, weight=8, tokens=8, ranges=((0, 1, 0, 4),), norm=1.0, step_seconds=0.5, num_steps=1
    )


def commit(round_: int, next_due_ms: int = 0) -> Commit:
    members = (Member("me", 8, 0, 8, True, (), bytes(32)), Member(BOOTSTRAP.peer, 0, 0, 0, True, (), bytes(32)))
    kind = Kind.NORMAL if round_ else Kind.GENESIS
    return Commit(
        run=bytes(32),
        round=round_,
        fragment=0,
        prev=bytes(32),
        kind=kind,
        base=bytes(32),
        members=members,
        parts=(),
        next_due_ms=next_due_ms,
        wall_ms=0,
    )


class FakeTrainer:
    """Says what it is told to say; `sent` is what it was sent."""

    def __init__(self) -> None:
        self.sent: list[FromClient] = []
        self._said: asyncio.Queue[FromTrainer | None] = asyncio.Queue()
        self._was_sent = asyncio.Event()

    def say(self, *messages: FromTrainer | None) -> None:
        """None: it is gone."""
        for message in messages:
            self._said.put_nowait(message)

    def send(self, message: FromClient) -> None:
        self.sent.append(message)
        self._was_sent.set()

    async def messages(self) -> AsyncIterator[FromTrainer]:
        while (message := await self._said.get()) is not None:
            yield message

    async def was_sent(self, kind: type, number: int = 1) -> Any:
        """The message of this kind that is the `number`th one sent."""
        while len(found := [message for message in self.sent if isinstance(message, kind)]) < number:
            self._was_sent.clear()
            await self._was_sent.wait()
        return found[number - 1]


class Rounds:
    """Engine, follower and log in one: decided when `decide` says so."""

    def __init__(self) -> None:
        self.contributions: asyncio.Queue[tuple[Contribution, asyncio.Future[RoundOutcome]]] = asyncio.Queue()
        self.due: Callable[[int], None] = lambda _: None
        self.applied: Callable[[object], None] = lambda _: None
        self.due_lead_seconds = 0.0
        self.commits = [commit(0)]
        self.moved = asyncio.Event()
        self.log = SimpleNamespace(
            head=Head(0, bytes(32)),
            totals=Totals(),
            commit=self.commits.__getitem__,
            newest=lambda n: self.commits[-n:],
        )
        self.replica = SimpleNamespace(round=0)
        self.network = SimpleNamespace(peer="me")
        self.phase = "exchanging"

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(phase=self.phase)

    def on_due(self, callback: Callable[[int], None]) -> None:
        self.due = callback

    def subscribe(self, callback: Callable[[object], None]) -> None:
        self.applied = callback

    async def begin_training(self) -> None:
        pass

    async def contribute(self, contribution: Contribution) -> RoundOutcome:
        outcome: asyncio.Future[RoundOutcome] = asyncio.get_running_loop().create_future()
        self.contributions.put_nowait((contribution, outcome))
        return await outcome

    async def wait_past(self, round_: int) -> None:
        while self.log.head.round <= round_:
            await self.moved.wait()

    def apply(self, *, next_due_ms: int = 0) -> None:
        """One more round is in the log and the replica."""
        self.commits.append(commit(len(self.commits), next_due_ms))
        self.log.head = Head(len(self.commits) - 1, bytes(32))
        self.replica.round += 1
        self.moved.set()
        self.applied(None)


class Client:
    """A contributor between a fake trainer and fake rounds."""

    def __init__(self, **changes: object) -> None:
        self.rounds, self.trainer, self.said = Rounds(), FakeTrainer(), list[str]()
        self.shared = SharedModel.create(LAYOUT.num_values, 1)
        self.files: dict[str, list[Path | Exception]] = {}
        self.contributor = Contributor(
            self.rounds,  # type: ignore[arg-type]
            self.rounds,  # type: ignore[arg-type]
            self.shared,
            example_manifest(**changes),
            fetch=self.fetch,
            say=self.said.append,
            file_pauses=(0.0,),
        )
        self.conversations: list[asyncio.Task[bool]] = []
        self._hold = asyncio.Event()

    async def fetch(self, path: str) -> Path:
        answer = self.files[path].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def converse(self) -> None:
        self.conversations.append(asyncio.create_task(self.contributor.converse(self.trainer)))  # type: ignore[arg-type]

    async def train(self) -> None:
        self.converse()
        await self._hold.wait()


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Client]]:
    started: list[tuple[Client, asyncio.Task[None]]] = []

    def make(**changes: object) -> Client:
        client = Client(**changes)
        started.append((client, asyncio.create_task(client.contributor.run(client.train))))
        return client

    yield make
    for client, task in started:
        work = [task, *client.conversations]
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        client.shared.close()


async def test_a_trainer_first_hears_where_the_log_stands(start: Callable[..., Client]):
    client = start()
    position = await client.trainer.was_sent(LogPosition)
    assert (position.round, position.global_tokens, position.worker) == (0, 0, "me")


async def test_an_offer_becomes_a_contribution_and_its_outcome_goes_back(start: Callable[..., Client]):
    client = start()
    client.trainer.say(offer(1))
    contribution, outcome = await client.rounds.contributions.get()
    assert (contribution.base_round, contribution.weight, contribution.tokens) == (0, 8, 8)
    assert contribution.delta.data_ptr() == client.shared.delta.data_ptr()
    outcome.set_result(RoundOutcome(1, 0.75, 1, 6))
    sent = await client.trainer.was_sent(Outcome)
    assert sent == Outcome(offer=1, round=1, listed=0.75, credited_tokens=6, newest=0)


async def test_past_the_deadline_training_goes_on_and_the_late_outcome_follows(start: Callable[..., Client]):
    bounds = RoundSettings(deadline_ceiling_seconds=0.05, deadline_floor_seconds=0.05)
    client = start(rounds=bounds)
    client.trainer.say(offer(1))
    _, outcome = await client.rounds.contributions.get()
    sent = await client.trainer.was_sent(Outcome)
    assert sent == Outcome(offer=1, round=1, listed=0.0, credited_tokens=0, newest=0)
    outcome.set_result(RoundOutcome(1, 1.0, 1))
    assert (await client.trainer.was_sent(Outcome, 2)).listed == 1.0


async def test_a_second_offer_waits_for_the_first_ones_outcome(start: Callable[..., Client]):
    client = start()
    client.trainer.say(offer(1), offer(2))
    _, first = await client.rounds.contributions.get()
    assert client.rounds.contributions.empty()
    first.set_result(RoundOutcome(1, 0.0, 1))
    _, second = await client.rounds.contributions.get()
    second.set_result(RoundOutcome(2, 1.0, 2))
    await client.trainer.was_sent(Outcome, 2)
    assert [message.offer for message in client.trainer.sent if isinstance(message, Outcome)] == [1, 2]


async def test_an_offer_against_the_newest_parameters_is_good_after_a_void_round(start: Callable[..., Client]):
    client = start()
    await client.trainer.was_sent(LogPosition)
    client.rounds.apply()  # a void one: θ in shared memory is that of round 0 still
    client.trainer.say(offer(1, round_=0))
    contribution, _ = await client.rounds.contributions.get()
    assert contribution.base_round == 1


async def test_an_offer_that_crossed_a_result_keeps_its_own_base(start: Callable[..., Client]):
    client = start()
    await client.trainer.was_sent(LogPosition)
    client.rounds.apply()
    with client.shared.writing(0):
        client.shared.set_round(0, 1)
    client.trainer.say(offer(1, round_=0))
    contribution, _ = await client.rounds.contributions.get()
    assert contribution.base_round == 0


async def test_the_first_round_is_due_after_h_own_steps(start: Callable[..., Client]):
    client = start(schedule=ScheduleSettings(inner_steps=3))
    client.trainer.say(STEPPED, STEPPED, offer(1))  # an Offer begins the count anew
    await client.rounds.contributions.get()
    client.trainer.say(STEPPED, STEPPED, Evaluated(set_name="held-out", round=0, loss=1.0, tokens=1))
    client.trainer.say(STEPPED, NeedFile(path="data/held-out.jsonl"))
    client.files["data/held-out.jsonl"] = [Path("there")]
    await client.trainer.was_sent(File)
    assert [message for message in client.trainer.sent if isinstance(message, Due)] == [Due(round=1)]


async def test_later_rounds_are_due_when_the_engine_says_so(start: Callable[..., Client]):
    client = start(schedule=ScheduleSettings(inner_steps=1))
    await client.trainer.was_sent(LogPosition)
    client.rounds.apply(next_due_ms=1000)
    client.trainer.say(STEPPED, STEPPED, NeedFile(path="data/held-out.jsonl"))
    client.files["data/held-out.jsonl"] = [Path("there")]
    await client.trainer.was_sent(File)
    assert not any(isinstance(message, Due) for message in client.trainer.sent)
    client.rounds.due(2)
    assert await client.trainer.was_sent(Due) == Due(round=2)


async def test_a_measured_loss_goes_with_contributions_until_the_log_has_it(start: Callable[..., Client]):
    client = start()
    await client.trainer.was_sent(Evaluate)  # θ_0
    client.trainer.say(Evaluated(set_name="held-out", round=0, loss=3.5, tokens=100), offer(1))
    contribution, outcome = await client.rounds.contributions.get()
    assert contribution.evaluation == (Evaluation("held-out", 0, 3_500_000, 100),)
    outcome.set_result(RoundOutcome(1, 0.0, 1))
    client.rounds.log.totals.evaluations.append(Evaluation("held-out", 0, 3_400_000, 100))  # somebody was faster
    client.trainer.say(offer(2))
    contribution, _ = await client.rounds.contributions.get()
    assert contribution.evaluation == ()


async def test_a_file_is_tried_until_it_can_be_had(start: Callable[..., Client]):
    client = start()
    client.files["data/train-00000.jsonl"] = [DataError("nobody"), DataError("nobody"), Path("there")]
    client.trainer.say(NeedFile(path="data/train-00000.jsonl"))
    assert await client.trainer.was_sent(File) == File(path="data/train-00000.jsonl", location="there")
    assert len(client.said) == 2


async def test_a_file_that_the_run_does_not_have_is_refused_at_once(start: Callable[..., Client]):
    client = start()
    client.files["data/other.jsonl"] = [ManifestError("no such file")]
    client.trainer.say(NeedFile(path="data/other.jsonl"))
    assert await client.trainer.was_sent(File) == File(path="data/other.jsonl", error="no such file")


async def test_a_new_trainer_begins_after_the_dead_ones_contribution_is_decided(start: Callable[..., Client]):
    client = start()
    client.trainer.say(offer(1), None)
    _, outcome = await client.rounds.contributions.get()
    assert await client.conversations[0] is True
    client.trainer = FakeTrainer()
    client.converse()
    for _ in range(10):
        await asyncio.sleep(0)
    assert client.trainer.sent == []
    client.rounds.apply()
    outcome.set_result(RoundOutcome(1, 1.0, 1))
    assert (await client.trainer.was_sent(LogPosition)).round == 1


async def test_a_trainer_that_offered_nothing_did_not_work(start: Callable[..., Client]):
    client = start()
    client.trainer.say(STEPPED, None)
    await client.trainer.was_sent(LogPosition)
    assert await client.conversations[0] is False


async def test_a_due_that_came_while_no_trainer_was_there_is_told_to_the_next_one(start: Callable[..., Client]):
    client = start()
    client.trainer.say(None)
    await client.trainer.was_sent(LogPosition)
    await client.conversations[0]
    client.rounds.due(1)
    client.trainer = FakeTrainer()
    client.converse()
    assert await client.trainer.was_sent(Due) == Due(round=1)


async def test_the_own_loss_is_the_mean_of_the_tokens_since_it_was_asked_last(start: Callable[..., Client]):
    client = start()
    client.trainer.say(STEPPED, Stepped(step=2, tokens=24, loss=4.0, learning_rate=0.1, seconds=0.1, micro_batch=1))
    client.trainer.say(Stepped(step=3, tokens=0, loss=float("nan"), learning_rate=0.1, seconds=0.1, micro_batch=1))
    client.trainer.say(None)
    await client.trainer.was_sent(LogPosition)
    await client.conversations[0]
    assert client.contributor.own_loss() == pytest.approx(3.5)
    assert client.contributor.own_loss() is None


async def test_leaving_waits_for_the_round_that_was_contributed_to(start: Callable[..., Client]):
    client = start()
    await client.contributor.wait_for_outcome(1e6)  # nothing to wait for
    client.trainer.say(offer(1))
    await client.rounds.contributions.get()
    client.rounds.phase = "knocked"
    await client.contributor.wait_for_outcome(1e6)  # without a plan it may never be decided
    client.rounds.phase = "exchanging"
    leaving = asyncio.create_task(client.contributor.wait_for_outcome(1e6))
    await asyncio.sleep(0)
    assert not leaving.done()
    client.rounds.apply()
    await leaving
