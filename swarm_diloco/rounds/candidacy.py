"""This peer as a candidate of one round: it coordinates the ballots that are its own, as soon as somebody knocks."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from swarm_diloco.network.interface import Stream
from swarm_diloco.network.messages import FIRST_DEGRADED, Ahead, Bye, Coming, Knock, Message, NotMe, Promised, Refused
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.coordinator import Coordinator
from swarm_diloco.rounds.decision.degraded import is_degraded
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.participant import Participant
from swarm_diloco.rounds.tasks import Tasks

BEGIN_SECONDS = 1.0
MAX_BALLOT_STEP = 2**16  # that a ballot may lie past the one promised here: nobody can use up all ballots at once


def next_ballot(current: int, wanted: int) -> int:
    """`wanted`, or as far towards it as one step goes."""
    start = FIRST_DEGRADED if is_degraded(wanted) else 0
    return min(wanted, max(current, start) + MAX_BALLOT_STEP)


class Candidacy:
    """`on_begin(ballot, is_majority)` is called when a ballot begins at which this peer should knock, lower ones being
    left: at once if a majority of the council has.
    """

    def __init__(self, participant: Participant, view: View, *, on_begin: Callable[[int, bool], None]) -> None:
        self.stalled_from: float | None = None  # when this peer's contribution was here and the round due
        self._participant = participant
        self._view = view
        self._on_begin = on_begin
        self._coordinators: dict[int, Coordinator] = {}
        self._held: set[bytes] = set()
        self._tasks = Tasks()
        self._has_begun = asyncio.Event()

    async def run(self) -> None:
        """Coordinate until cancelled. Raises StateError if the council's majority has another state."""
        await self._tasks.run(self._begin())

    async def _begin(self) -> None:
        self._has_begun.set()
        await asyncio.Event().wait()

    async def admit(self, signed: Signed, stream: Stream) -> None:
        """A peer's word on this round; a knock's stream is served until the peer leaves or the round is over."""
        if isinstance(signed.message, Promised):
            self._heed_call(signed.sender, signed.message.ballot)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_SECONDS):
                await self._has_begun.wait()  # this round may have opened a moment ago
        reply = self._reason_against(signed)
        if reply is not None:
            frame = self._participant.sign(self._view.round, signed.ballot, reply).frame
            await stream.send(frame, timeout_seconds=self._view.rules.rounds.silence_seconds)
            return
        match signed.message:
            case Knock():
                coordinator = self.coordinator(signed.ballot)
                if self._view.council.is_majority({signed.sender, *coordinator.ballot.knocks}):
                    self._on_begin(signed.ballot, True)
                await coordinator.attend(signed, stream)
            case Coming() if not self._participant.attendance.has_missed(
                signed.sender, self._participant.recent_commits()
            ):
                self.coordinator(signed.ballot).ballot.expect(signed.sender)
            case Bye():
                self._participant.attendance.left(signed.sender)
                if signed.ballot in self._coordinators:
                    self._coordinators[signed.ballot].left(signed.sender)
            case _:
                pass

    def _heed_call(self, candidate: str, ballot: int) -> None:
        """A candidate that coordinates a higher ballot and lacks voters there asks this peer to come."""
        is_its_turn = self._view.candidate(ballot) in (candidate, None)  # the last turn is anybody's own
        if is_its_turn and (not is_degraded(ballot) or self._participant.follower.may_degrade()):
            self._on_begin(ballot, False)

    def _reason_against(self, signed: Signed) -> Message | None:
        candidate, promised = self._view.candidate(signed.ballot), self._participant.voter.promised(self._view)
        if candidate != self._participant.identity.peer:
            return NotMe(candidate or "")
        if is_degraded(signed.ballot) and not self._participant.follower.may_degrade():
            return Refused("the round is not overdue here")
        if not self._tasks.is_open:
            return Ahead()
        if promised > signed.ballot:
            return Promised(promised)
        if signed.ballot > next_ballot(promised, signed.ballot):
            return Refused("the ballot is too far ahead")
        return None

    def expect(self, peer: str) -> None:
        """Wait for this peer too, where no plan is made yet."""
        for coordinator in self._coordinators.values():
            coordinator.ballot.expect(peer)

    def coordinator(self, ballot: int) -> Coordinator:
        """This peer's coordinator of a ballot whose candidate it is."""
        if ballot not in self._coordinators:
            coordinator = Coordinator(self._participant, self._view, ballot, stalled_from=lambda: self.stalled_from)
            self._coordinators[ballot] = coordinator
            for part_hash in self._held:
                coordinator.held(part_hash)
            self._tasks.start(coordinator.run())
            self._on_begin(ballot, False)
        return self._coordinators[ballot]

    def raised(self, ballot: int) -> None:
        """This peer moves up to `ballot`: without its vote its lower ballots come to nothing."""
        for lower in [number for number in self._coordinators if number < ballot]:
            if self._coordinators[lower].give_up(ballot):
                del self._coordinators[lower]

    def held(self, part_hash: bytes) -> None:
        """An averaged part is here now."""
        self._held.add(part_hash)
        for coordinator in self._coordinators.values():
            coordinator.held(part_hash)

    def leave(self) -> None:
        """This peer leaves: those who knocked here are to go to another."""
        for coordinator in self._coordinators.values():
            coordinator.leave()

    def conclude(self, header: bytes) -> None:
        """The round is in the log: tell whoever still waits here."""
        for coordinator in self._coordinators.values():
            coordinator.conclude(header)
