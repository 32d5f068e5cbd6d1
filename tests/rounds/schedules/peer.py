"""A SmallPeer that keeps a worker's books as the trainer does, and says how long it waited."""

import asyncio
import random
from dataclasses import dataclass, field

from small_swarm import SmallPeer
from swarm_diloco.network.interface import Network
from swarm_diloco.rounds.contribution import Contribution
from swarm_diloco.rounds.engine import Outcome
from swarm_diloco.training.progress import MAX_MISSED, Progress


@dataclass(slots=True)
class Wait:
    """From a contribution to the decision of its round, in virtual seconds; `ended_at` is None while it lasts."""

    round: int
    began_at: float
    ended_at: float | None = None


@dataclass
class ScheduledPeer(SmallPeer):
    """Its progress is what a checkpoint holds: it survives a crash. Tokens are counted in whole inner steps."""

    progress: Progress = field(default_factory=Progress)
    num_steps: int = 0
    dropped: int = 0  # tokens of a Δ that S commits did not list
    settled_round: int = 0  # newest round of whose credit this worker knows
    brought_again: int = 0  # contributions that no commit listed
    waits: list[Wait] = field(default_factory=list)
    applied_at: dict[int, float] = field(default_factory=dict)
    started_at: float | None = None
    away: list[tuple[float, float]] = field(default_factory=list)  # when it was frozen, killed or cut off
    comes_every: int = 1  # rounds; the others it trains through
    away_at_the_end: bool = False
    _chance: random.Random = field(default_factory=lambda: random.Random(1))
    _due_round: int = 0
    _due: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def start(self, network: Network) -> None:
        if self.started_at is None:
            self.started_at = self.now
        await super().start(network)
        assert self.engine is not None
        assert self.follower is not None
        self.follower.subscribe(lambda applied: self.applied_at.setdefault(applied.commit.round, self.now))
        self.engine.on_due(self._on_due)

    def _on_due(self, round_: int) -> None:
        self._due_round = round_
        self._due.set()

    async def _until_due(self) -> None:
        """A due that came while this worker was at something else is not the next round's."""
        assert self.follower is not None
        while self._due_round != self.follower.log.head.round + 1 or self.follower.log.head.round % self.comes_every:
            self._due.clear()
            await self._due.wait()

    async def _work(self) -> None:
        """Train, bring Δ, settle what became of it: a trainer's life (training.worker), without a model."""
        assert self.engine is not None
        assert self.follower is not None
        self._resume()
        if self.may_train is not None:
            await self.may_train.wait()
            self._resume()
        await self.engine.begin_training()
        while self.max_rounds is None or len(self.outcomes) < self.max_rounds:
            await self._train()
            if self.progress.missed(self.follower.replica.round) >= MAX_MISSED:  # it slept
                self._drop(self.follower.replica.round)
                continue
            self.progress.offered()
            offer = self._offer()
            wait = Wait(offer.base_round + 1, self.now)
            self.waits.append(wait)
            outcome = await self.engine.contribute(offer)
            wait.ended_at = self.now
            self.outcomes.append(outcome)
            self._settle(offer, outcome)

    def _resume(self) -> None:
        """What the log has credited since the checkpoint, no Outcome told of."""
        assert self.follower is not None
        log = self.follower.log
        unseen = log.totals.tokens_by_peer[self.peer] - self.credited
        if unseen:
            self.progress.listed(weight=self.progress.pending_weight, fraction=1.0, credited_tokens=unseen)
            self.credited += unseen
        self.settled_round = max(self.settled_round, log.head.round)
        if not self.progress.pending_tokens:
            self.progress.restarted(self.follower.replica.round)
        elif self.progress.missed(self.follower.replica.round) >= MAX_MISSED:
            self._drop(self.follower.replica.round)

    def _drop(self, newest: int) -> None:
        self.dropped += self.progress.pending_tokens
        self.progress.restarted(newest)

    async def _train(self) -> None:
        """With pace "time" until the round is due, once the swarm has a pace; else one step."""
        assert self.follower is not None
        assert self.engine is not None
        log, inner_step_seconds = self.follower.log, self.step_seconds / self.rules.schedule.inner_steps
        self.engine.due_lead_seconds = inner_step_seconds  # as the client: nobody is to wait for a step that ends late
        is_paced = self.rules.schedule.pace == "time" and log.commit(log.head.round).next_due_ms
        if is_paced:
            began_at = self.now
            await self._until_due()
            await asyncio.sleep(self._chance.uniform(0.0, inner_step_seconds))  # the step under way ends
            num_steps = max(1, int((self.now - began_at) / self.step_seconds))
        else:
            await asyncio.sleep(self.step_seconds)
            num_steps = 1
        self._step(num_steps)

    def _step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.progress.stepped(self.weight)
        self.trained += num_steps * self.weight
        self.num_steps += num_steps

    def _offer(self) -> Contribution:
        assert self.follower is not None
        self.weight, per_step = self.progress.pending_weight, self.weight  # of the knock: may be many steps'
        offer = self.contribution(self.follower.replica.round, self.progress.pending_tokens)
        self.weight = per_step
        return offer

    def _settle(self, offer: Contribution, outcome: Outcome) -> None:
        progress = self.progress
        self.settled_round = max(self.settled_round, outcome.round)
        if outcome.listed > 0:
            progress.listed(weight=offer.weight, fraction=outcome.listed, credited_tokens=outcome.credited_tokens)
            progress.synced_round = outcome.newest
            self.credited += outcome.credited_tokens
            return
        self.brought_again += 1
        if progress.missed(outcome.newest) >= MAX_MISSED:
            self._drop(outcome.newest)

    def longest_wait(self, until: float) -> float:
        """Of the waits in which this peer was there all the time."""
        longest = 0.0
        for wait in self.waits:
            ended_at = until if wait.ended_at is None else wait.ended_at
            if not any(began < ended_at and wait.began_at < ended for began, ended in self.away):
                longest = max(longest, ended_at - wait.began_at)
        return longest
