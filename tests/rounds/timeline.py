"""When a peer passes the stations of a round: noted at the engine's own methods, for benchmarks.

Seconds of the monotonic clock that all processes share. `formed`: Δ is given to the engine. `encoded`: its parts are,
and the knock leaves. `planned`: the coordinator's plan is here. `first_part`, `last_part`: an averaged part is here.
`durable`: all are on disk, and the vote is made. `decided`: the decision is here. `applied`: θ and m are stepped.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from swarm_diloco.diloco.ledger import Header
from swarm_diloco.network.messages import Knock, Plan
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.contribution import Contribution
from swarm_diloco.rounds.exchange import Exchange
from swarm_diloco.rounds.follower import Applied, Follower
from swarm_diloco.rounds.log import PartStore
from swarm_diloco.rounds.participant import Participant
from swarm_diloco.rounds.session import Session


class Timeline:
    """Of one process, from its construction on."""

    def __init__(self) -> None:
        self._at: dict[int, dict[str, float]] = defaultdict(dict)
        self._round = 1  # the open one
        self.reduced_parts: dict[str, int] = {}  # peer -> how many the newest plan gives it
        self.upload_kilobits = 0  # a second, as this peer said in its newest knock
        self._watch_session()
        self._watch_exchange()
        self._watch_decision()

    def of(self, applied: Applied) -> dict[str, float]:
        """The stations of the round that was just applied."""
        self._note("applied", round_=applied.commit.round)
        self._round = applied.commit.round + 1
        return self._at.pop(applied.commit.round)

    def _note(self, station: str, *, round_: int | None = None, again: bool = False) -> None:
        at = self._at[self._round if round_ is None else round_]
        if again or station not in at:
            at[station] = time.monotonic()

    def _watch_session(self) -> None:
        bring = Session.bring

        async def noted(session: Session, contribution: Contribution) -> None:
            self._note("formed", round_=session.round)
            await bring(session, contribution)
            self._note("encoded", round_=session.round)

        Session.bring = noted  # type: ignore[assignment, method-assign]

    def _watch_exchange(self) -> None:
        follow, hold = Exchange.follow, PartStore.hold

        def follow_noted(exchange: Exchange, plan: Plan, *, own: Signed, **others: Any) -> None:
            self._note("planned")
            counts = Counter(part.reducer for part in plan.parts)
            self.reduced_parts = {peer: counts[number] for number, (peer, _) in enumerate(plan.members)}
            assert isinstance(own.message, Knock)
            self.upload_kilobits = own.message.upload_kilobits
            follow(exchange, plan, own=own, **others)

        def hold_noted(store: PartStore, *part: Any) -> bytes:
            self._note("first_part")
            self._note("last_part", again=True)
            return hold(store, *part)

        Exchange.follow = follow_noted  # type: ignore[assignment, method-assign]
        PartStore.hold = hold_noted  # type: ignore[assignment, method-assign]

    def _watch_decision(self) -> None:
        vote, learn = Participant.vote, Follower.learn

        async def vote_noted(participant: Participant, *what: Any) -> Any:
            self._note("durable")
            return await vote(participant, *what)

        async def learn_noted(follower: Follower, header: Header, holders: Sequence[str]) -> None:
            self._note("decided", round_=header.commit().round)
            await learn(follower, header, holders)

        Participant.vote = vote_noted  # type: ignore[assignment, method-assign]
        Follower.learn = learn_noted  # type: ignore[assignment, method-assign]
