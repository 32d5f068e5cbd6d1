"""One round's exchanges of parts at one peer: a Butterfly for each ballot that has a plan."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from swarm_diloco.diloco.ledger import Commit
from swarm_diloco.network.messages import Plan, Sealed
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.butterfly import Butterfly, Traffic
from swarm_diloco.rounds.decision.checks import check_plan
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.line import Line
from swarm_diloco.rounds.participant import Participant
from swarm_diloco.rounds.tasks import Tasks


class Exchange:
    """Follows the plans of one ballot after the other; a new ballot's plan ends the former one's exchange.

    `on_held(hash)` is called for each averaged part whose bytes are here.
    """

    def __init__(self, participant: Participant, view: View, tasks: Tasks, *, on_held: Callable[[bytes], None]) -> None:
        self.plan: Plan | None = None
        self.planned_at: float | None = None  # the round's first plan
        self.traffic = Traffic(line=Line(participant.upload_kilobits))
        self._participant = participant
        self._view = view
        self._tasks = tasks
        self._on_held = on_held
        self._part_held = asyncio.Event()
        self._ballot = -1
        self._butterfly: Butterfly | None = None
        self._running: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def follow(
        self,
        plan: Plan,
        *,
        ballot: int,
        own: Signed,
        encoded: Sequence[memoryview] | None,
        tell: Callable[[Sealed], None],
    ) -> None:
        """Do what the plan says. `own` is the knock to which it answers, `encoded` this worker's parts.

        Raises RecordError if no honest coordinator sends such a plan.
        """
        check_plan(self._view, plan, self.plan if ballot == self._ballot else None, own)
        self.plan = plan
        if self.planned_at is None:
            self.planned_at = asyncio.get_running_loop().time()
            if ballot == 0 and self._view.candidate(0) != self._participant.identity.peer:
                late_seconds = self._participant.follower.overdue_seconds()
                self._participant.attendance.planned(plan, self._participant.recent_commits(), late_seconds)
        if ballot != self._ballot:
            self._begin(ballot, encoded, tell)
        assert self._butterfly is not None
        self._butterfly.follow_plan(plan)

    def _begin(self, ballot: int, encoded: Sequence[memoryview] | None, tell: Callable[[Sealed], None]) -> None:
        parts = self._participant.follower.log.parts
        if self._running is not None:
            self._running.cancel()
            parts.drop_held()  # what was voted for is on disk
        self._ballot = ballot
        self._butterfly = Butterfly(
            self._participant.network,
            self._view.rules,
            round_=self._view.round,
            ballot=ballot,
            prev=self._view.prev,
            encoded=encoded,
            parts=parts,
            traffic=self.traffic,
            on_sealed=tell,
            on_held=self._hold,
            coordinator=self._view.candidate(ballot),
            doubtful=self._participant.attendance.senders.on(self._view.round),
        )
        self._running = self._tasks.start(self._butterfly.run())
        self._changed.set()
        self._changed = asyncio.Event()

    def _hold(self, part_hash: bytes) -> None:
        self._part_held.set()
        self._on_held(part_hash)

    async def wait_for_parts(self, commit: Commit) -> None:
        """Parts are on their way here; what the exchange does not bring in time is to be fetched from other members."""
        store = self._participant.follower.log.parts
        patience = self._view.rules.rounds.silence_seconds / 2
        if self.plan is not None and self._butterfly is not None:
            if self._participant.identity.peer in self._butterfly.slow:
                return  # nothing is on its way
            patience = max(patience, self.plan.deadline_in_ms / 4000)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while any(store.get(part.result_hash) is None for part in commit.parts):
                    self._part_held.clear()
                    await self._part_held.wait()

    def learn_from(self, commit: Commit) -> None:
        """After the round: who sent what was planned, and whom this peer waited for in vain as a reducer."""
        if self._butterfly is None or self.plan is None:
            return
        self._participant.attendance.averaged(self.plan, commit)
        senders = self._participant.attendance.senders
        for peer in self._butterfly.in_vain:
            senders.missed(peer, self._view.round)
        for peer in self._butterfly.delivered:
            senders.came(peer, self._view.round)

    async def at(self, ballot: int) -> Butterfly | None:
        """The exchange of a ballot, waiting for its plan; None when a later one has begun."""
        while self._ballot < ballot:
            await self._changed.wait()
        return self._butterfly if self._ballot == ballot else None
