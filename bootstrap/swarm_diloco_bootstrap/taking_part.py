"""A peer's time in a run, the same for bootstrap peer and worker: from the first round to a clean leave."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from swarm_diloco.errors import NetworkError
from swarm_diloco.rounds.engine import Engine
from swarm_diloco_bootstrap.announcing import Announcer
from swarm_diloco_bootstrap.reporting import Reporter
from swarm_diloco_bootstrap.signals import StopRequest

BYE_SECONDS = 3.0  # it is a message on a stream that is open, or nobody is there


@dataclass(frozen=True, kw_only=True, slots=True)
class TakingPart:
    """What runs side by side. `died` is set when the network's own process is gone."""

    engine: Engine
    announcer: Announcer
    reporter: Reporter
    died: asyncio.Event
    max_rounds: int | None = None  # leave after so many more

    async def run(
        self,
        stop: StopRequest,
        *,
        work: Callable[[], Awaitable[None]] | None = None,
        before_leaving: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Until told to stop or `max_rounds` are over; then leave, in seconds.

        `work` runs beside the rounds and is cancelled first; `before_leaving` is what a worker still has to wait for.
        Raises a group with a SwarmDilocoError: why this peer can go on no more.
        """
        stop.heed()
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self.engine.run()), tasks.create_task(self.announcer.run())]
            running.append(tasks.create_task(self._watch_network()))
            working = [tasks.create_task(_run(work))] if work is not None else []
            ends = [tasks.create_task(_run(stop.event.wait)), tasks.create_task(self.reporter.run(self.max_rounds))]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self.reporter.leaving()
            for task in working:
                task.cancel()
            waits = [tasks.create_task(_run(before_leaving))] if before_leaving is not None else []
            if working or waits:
                await asyncio.wait([*working, *waits])
            await self._leave()
            for task in [*running, *ends]:
                task.cancel()
        self.reporter.left()

    async def _leave(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(BYE_SECONDS):
                await self.engine.leave()
        await self.announcer.leave()

    async def _watch_network(self) -> None:
        await self.died.wait()
        raise NetworkError("p2pd, the network's own process, has ended; start again")


async def _run(what: Callable[[], Awaitable[object]]) -> None:
    await what()
