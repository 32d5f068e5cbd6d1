"""This peer as a candidate of one round: it coordinates the ballots that are its own, as soon as somebody knocks."""

import asyncio
from collections.abc import Callable

from swarm_diloco.network.interface import Stream
from swarm_diloco.network.wire import Ahead, Bye, Coming, Message, NotMe, Promised, Signed
from swarm_diloco.rounds.coordinator import Coordinator
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.participant import Participant


class Candidacy:
    """`on_begin(ballot)` is called when a ballot of this peer's begins: it then knocks there itself."""

    def __init__(self, participant: Participant, view: View, *, on_begin: Callable[[int], None]) -> None:
        self._participant = participant
        self._view = view
        self._on_begin = on_begin
        self._coordinators: dict[int, Coordinator] = {}
        self._held: set[bytes] = set()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Coordinate until cancelled. Raises StateError if the council's majority has another state."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await asyncio.Event().wait()

    async def admit(self, signed: Signed, stream: Stream) -> None:
        """A peer's knock, or word that it will come; serves its stream until it leaves or the round is over."""
        candidate, promised = self._view.council.candidate(signed.ballot), self._participant.voter.promised(self._view)
        reply: Message | None = None
        if candidate != self._participant.identity.peer:
            reply = NotMe(candidate)
        elif self._tasks is None:
            reply = Ahead()
        elif isinstance(signed.message, Coming):
            self.coordinator(signed.ballot).ballot.expect(signed.sender)
            return
        elif isinstance(signed.message, Bye):
            self._participant.attendance.left(signed.sender)
            self.coordinator(signed.ballot).left(signed.sender)
            return
        elif promised > signed.ballot:
            reply = Promised(promised)
        if reply is None:
            await self.coordinator(signed.ballot).attend(signed, stream)
        else:
            frame = self._participant.sign(self._view.round, signed.ballot, reply).frame
            await stream.send(frame, timeout_seconds=self._view.rules.rounds.silence_seconds)

    def coordinator(self, ballot: int) -> Coordinator:
        """This peer's coordinator of a ballot whose candidate it is."""
        if ballot not in self._coordinators:
            assert self._tasks is not None
            coordinator = Coordinator(self._participant, self._view, ballot)
            self._coordinators[ballot] = coordinator
            for part_hash in self._held:
                coordinator.held(part_hash)
            self._tasks.create_task(coordinator.run())
            self._on_begin(ballot)
        return self._coordinators[ballot]

    def held(self, part_hash: bytes) -> None:
        """An averaged part is here now."""
        self._held.add(part_hash)
        for coordinator in self._coordinators.values():
            coordinator.held(part_hash)

    def conclude(self, header: bytes) -> None:
        """The round is in the log: tell whoever still waits here."""
        for coordinator in self._coordinators.values():
            coordinator.conclude(header)
