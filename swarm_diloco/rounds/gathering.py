"""Who is left when a round has lost its council: a degraded ballot's coordinator finds out (protocol rule 10)."""

import asyncio
from collections.abc import Awaitable, Callable

from swarm_diloco.network.messages import Message, Promised
from swarm_diloco.rounds.decision.degraded import DegradedBallot
from swarm_diloco.rounds.participant import Participant

Reach = Callable[[str, str, Message | None], Awaitable[bool]]  # peer, protocol, a word on the stream

MAX_DIALLED = 128


class Gathering:
    """Dials by `reach`, and calls `changed` after each news for the ballot."""

    def __init__(
        self,
        participant: Participant,
        ballot: DegradedBallot,
        *,
        stalled_from: Callable[[], float | None],
        reach: Reach,
        changed: Callable[[], None],
        move_on: Callable[[], object],
    ) -> None:
        self._participant = participant
        self._ballot = ballot
        self._stalled_from = stalled_from
        self._reach = reach
        self._changed = changed
        self._move_on = move_on

    async def call_recent(self) -> None:
        """Ask the recent members to come here; wait neither for one that nobody reaches nor for one that cannot be
        dialled and does not come by itself.
        """
        silence = self._participant.rules.rounds.silence_seconds
        loop = asyncio.get_running_loop()
        unreachable_until = loop.time() + 2 * silence
        view, ballot = self._ballot.view, self._ballot
        while ballot.plan is None and not ballot.is_over:
            absent = [member for member in view.recent if member.peer not in ballot.knocks and member.peer != ballot.me]
            dialled = [member.peer for member in absent if member.reachable]
            call = Promised(ballot.ballot)
            answers = await asyncio.gather(*(self._reach(peer, view.rules.control_protocol, call) for peer in dialled))
            for peer, answers_here in zip(dialled, answers, strict=True):
                if not answers_here:
                    ballot.left(peer)
                elif view.candidate(ballot.ballot) is None:
                    self._move_on()  # it can be dialled, so that it and not this peer coordinates
            if loop.time() >= unreachable_until:
                for member in absent:
                    if not member.reachable:
                        ballot.left(member.peer)
            ballot.may_pass_over = self._participant.may_pass_over()
            self._changed()
            await asyncio.sleep(silence)

    async def look_for_anybody(self) -> None:
        """A worker goes on alone only when nobody that it knows answers, and later if another worker may be about."""
        view, me = self._ballot.view, self._ballot.me
        if all(member.peer != me for member in view.recent):
            return
        while not self._ballot.may_be_alone and self._ballot.plan is None:
            if self._is_stalled_for(self._patience_seconds()):
                known = self._participant.known_peers()[:MAX_DIALLED]
                answers = await asyncio.gather(*(self._reach(peer, view.rules.ping_protocol, None) for peer in known))
                self._ballot.may_be_alone = not any(answers)
                self._changed()
            await asyncio.sleep(self._participant.rules.rounds.silence_seconds)

    def _is_stalled_for(self, seconds: float) -> bool:
        stalled_from = self._stalled_from()
        return stalled_from is not None and asyncio.get_running_loop().time() >= stalled_from + seconds

    def _patience_seconds(self) -> float:
        participant, view = self._participant, self._ballot.view
        is_other_worker = any(
            member.weight or view.tokens_credited.get(member.peer)
            for member in view.recent
            if member.peer != self._ballot.me and not participant.attendance.has_left(member.peer)
        )
        next_due_ms = participant.follower.next_due_ms
        rules = participant.rules
        return rules.alone_seconds(next_due_ms) if is_other_worker else rules.degraded_seconds(next_due_ms)
