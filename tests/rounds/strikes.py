"""How a peer dies or freezes at an exact point of a round: hooks at the engine's own methods, in its own process.

A coordinator strikes itself at its ballot 0; a reducer that is not the coordinator, in its first attempt. What the
network daemon has taken by then still goes out, the rest never does.
"""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fault_stages import COORDINATOR_STAGES
from swarm_diloco.diloco.ledger import digest_of
from swarm_diloco.network.messages import Decided, Message, Plan, Propose, Sealed
from swarm_diloco.rounds import butterfly
from swarm_diloco.rounds.coordinator import Coordinator
from swarm_diloco.rounds.decision.ballot import Action, Ballot, SendPlan
from swarm_diloco.rounds.part_sender import PartSender
from swarm_diloco.rounds.session import Session

OUTGOING_SECONDS = 0.3  # for the daemon, which dies with us, to send what it has taken
HALF_SENT = {"half of the plans": Plan, "half of the proposals": Propose, "half of decided": Decided}


class Strike:
    """Once, in the first round from `first_round` on in which this peer comes to `stage` with `num_members` in the
    plan; when and where is then in the file `note`.
    """

    def __init__(self, number: signal.Signals, first_round: int, stage: str, *, num_members: int, note: Path) -> None:
        self.stage = stage
        self.num_members = num_members
        self._number = number
        self._first_round = first_round
        self._note = note
        self._is_done = False

    def is_due(self, round_: int, num_members: int) -> bool:
        return not self._is_done and round_ >= self._first_round and num_members >= self.num_members

    def now(self, round_: int, proposal: Propose | None = None) -> None:
        """`proposal` is what a coordinator has proposed by then."""
        self._is_done = True
        digest = digest_of(proposal.commit_bytes).hex() if proposal is not None else None
        note = {"round": round_, "at": time.monotonic(), "proposed": digest}
        time.sleep(OUTGOING_SECONDS)  # nothing else of this program runs meanwhile
        self._note.write_text(json.dumps(note))
        os.kill(os.getpid(), self._number)

    def install(self) -> None:
        if self.stage in COORDINATOR_STAGES:
            _CoordinatorHooks(self).install()
        else:
            _ReducerHooks(self).install()


class _CoordinatorHooks:
    def __init__(self, strike: Strike) -> None:
        self._strike = strike
        self._num_sent: Counter[int] = Counter()  # in a round, to others

    def install(self) -> None:
        if self._strike.stage in HALF_SENT:
            self._at_half_of(HALF_SENT[self._strike.stage])
        elif self._strike.stage == "before plan":
            self._before_plan()
        else:
            self._after_messages()

    def _is_due(self, ballot: Ballot) -> bool:
        return ballot.ballot == 0 and self._strike.is_due(ballot.view.round, len(ballot.knocks))

    def _at_half_of(self, kind: type[Message]) -> None:
        send = Coordinator._send

        async def counted(coordinator: Coordinator, stream: Any, message: Message) -> None:
            await send(coordinator, stream, message)
            ballot, round_ = coordinator.ballot, coordinator.view.round
            if isinstance(message, kind) and stream.peer != ballot.me and self._is_due(ballot):
                self._num_sent[round_] += 1
                if self._num_sent[round_] >= (len(ballot.knocks) - 1) / 2:
                    self._strike.now(round_, ballot.proposal)

        Coordinator._send = counted  # type: ignore[method-assign]

    def _before_plan(self) -> None:
        do = Coordinator._do

        def struck(coordinator: Coordinator, action: Action) -> None:
            if isinstance(action, SendPlan) and self._is_due(coordinator.ballot):
                self._strike.now(coordinator.view.round)
            do(coordinator, action)

        Coordinator._do = struck  # type: ignore[method-assign]

    def _after_messages(self) -> None:
        sealed, voted = Ballot.sealed, Ballot.voted

        def then_struck(ballot: Ballot, stage: str, is_enough: bool) -> None:
            if stage == self._strike.stage and is_enough and self._is_due(ballot):
                self._strike.now(ballot.view.round, ballot.proposal)

        def sealed_struck(ballot: Ballot, peer: str, message: Sealed) -> None:
            sealed(ballot, peer, message)
            reducing = ballot._reducing
            then_struck(ballot, "all sealed", reducing is not None and len(reducing.seals) == len(reducing.plan.parts))

        def voted_struck(ballot: Ballot, *vote: Any) -> None:
            voted(ballot, *vote)
            then_struck(ballot, "majority of votes", ballot._is_decisive(ballot._votes))

        Ballot.sealed, Ballot.voted = sealed_struck, voted_struck  # type: ignore[method-assign]


class _ReducerHooks:
    def __init__(self, strike: Strike) -> None:
        self._strike = strike
        self._round = 0  # whose plan has this peer average parts, as one who does not coordinate
        self._coordinator = ""
        self._num_parts = self._num_others = 0
        self._num_sealed = self._num_gathered = 0
        self._num_inputs: Counter[int] = Counter()

    def install(self) -> None:
        self._watch_plans()
        if self._strike.stage == "mid part":
            self._watch_inputs()
        if self._strike.stage in ("sealed", "half of the gather"):
            self._watch_seals()
            self._hold_gather()

    def _watch_plans(self) -> None:
        follow = Session._follow_plan

        def noted(session: Session, plan: Plan, stream: Any, ballot: int) -> None:
            me = session._participant.identity.peer
            mine = [part for part in plan.parts if plan.members[part.reducer][0] == me]
            is_first = ballot == 0 and not any(part.attempt for part in plan.parts)
            if mine and is_first and stream.peer != me and self._strike.is_due(session.round, len(plan.members)):
                self._round, self._coordinator = session.round, stream.peer
                self._num_parts, self._num_others = len(mine), len(plan.members) - 1
                self._num_sealed = self._num_gathered = 0
                self._num_inputs.clear()
                if self._strike.stage == "before parts":
                    self._strike.now(session.round)
            follow(session, plan, stream, ballot)

        Session._follow_plan = noted  # type: ignore[method-assign]

    def _is_due(self, round_: int) -> bool:
        return round_ == self._round and self._strike.is_due(round_, self._num_others + 1)

    def _watch_inputs(self) -> None:
        check = butterfly._check_input

        def counted(rules: Any, part: Any, num_values: int) -> None:
            check(rules, part, num_values)
            self._num_inputs[part.part] += 1
            if self._is_due(self._round) and self._num_inputs[part.part] >= self._num_others / 2:
                self._strike.now(self._round)

        butterfly._check_input = counted

    def _watch_seals(self) -> None:
        tell = Session._tell

        async def counted(session: Session, stream: Any, message: Message) -> None:
            await tell(session, stream, message)
            if isinstance(message, Sealed) and self._is_due(session.round):
                self._num_sealed += 1
                self._strike_if_enough()

        Session._tell = counted  # type: ignore[method-assign]

    def _strike_if_enough(self) -> None:
        wanted = self._num_parts * self._num_others // 2 if self._strike.stage == "half of the gather" else 0
        if self._num_sealed == self._num_parts and self._num_gathered >= wanted:
            self._strike.now(self._round)

    def _hold_gather(self) -> None:
        """Before "sealed" is out nobody gets a result; of the gather the coordinator's half is the one to come."""
        send = PartSender._send

        async def held(sender: PartSender, frame: Any) -> None:
            if sender._is_contribution or not self._is_due(self._round):
                await send(sender, frame)
                return
            is_half = self._strike.stage == "half of the gather"
            enough = self._num_parts * self._num_others // 2 if is_half else 0
            if sender.peer == self._coordinator or self._num_gathered >= enough:
                await asyncio.Event().wait()
            self._num_gathered += 1
            await send(sender, frame)
            self._strike_if_enough()

        PartSender._send = held  # type: ignore[method-assign]
