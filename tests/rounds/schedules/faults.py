"""Faults at exact points of a round: hooks around the engine's own methods. The code under test stays as it is.

Each context manager strikes once, at ballot 0 of the first round from `first_round` on that has everybody in its plan.
A peer that is killed does nothing more; one that is frozen goes on where it stood when it is thawed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

from schedules.peer import ScheduledPeer
from schedules.schedule import Trial
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.messages import Decided, Message, Plan, Propose, Sealed
from swarm_diloco.rounds.butterfly import Butterfly
from swarm_diloco.rounds.coordinator import Coordinator
from swarm_diloco.rounds.decision.ballot import Action, Decide, SendPlan, SendProposal
from swarm_diloco.rounds.part_frame import PartFrame
from swarm_diloco.rounds.part_sender import PartSender
from swarm_diloco.rounds.session import Session

Hit = Callable[[ScheduledPeer], bool]  # whether the victim's program goes on (frozen), or is no more


class Aim:
    """Which peer of which round is struck; once."""

    def __init__(self, trial: Trial, hit: Hit, first_round: int) -> None:
        self.trial = trial
        self.victim = ""  # chosen with the plan, if the stage is a member's
        self.round = 0
        self.num_parts = 0  # that the victim is to average
        self._hit = hit
        self._first_round = first_round

    def is_due(self, round_: int, num_members: int) -> bool:
        is_whole = num_members == len(self.trial.peers)
        return self.trial.struck_at is None and round_ >= self._first_round and is_whole

    def is_victims(self, peer: str, round_: int) -> bool:
        return self.trial.struck_at is None and (peer, round_) == (self.victim, self.round)

    def strikes(self, peer: str, round_: int) -> bool:
        """Whether the victim's program goes on."""
        self.trial.strike(round_)
        return self._hit(self.trial.named(peer))

    async def strikes_within(self, peer: str, round_: int) -> None:
        if not self.strikes(peer, round_):
            await asyncio.Event().wait()  # here its program ends


# --- a coordinator


def at_coordinator(trial: Trial, stage: str, hit: Hit, *, first_round: int) -> AbstractContextManager[None]:
    aim = Aim(trial, hit, first_round)
    halves: dict[str, type[Message]] = {
        "half of the plans": Plan,
        "half of the proposals": Propose,
        "half of decided": Decided,
    }
    actions: dict[str, type[Action]] = {
        "before plan": SendPlan,
        "all sealed": SendProposal,
        "majority of votes": Decide,
    }
    return _half_sent(aim, halves[stage]) if stage in halves else _before_action(aim, actions[stage])


def _is_due(aim: Aim, coordinator: Coordinator) -> bool:
    return coordinator.ballot.ballot == 0 and aim.is_due(coordinator.view.round, len(coordinator.ballot.knocks))


@contextmanager
def _half_sent(aim: Aim, kind: type[Message]) -> Iterator[None]:
    send, num_sent = Coordinator._send, Counter[int]()

    async def counted(coordinator: Coordinator, stream: Stream, message: Message) -> None:
        await send(coordinator, stream, message)
        me, round_ = coordinator.ballot.me, coordinator.view.round
        if isinstance(message, kind) and stream.peer != me and _is_due(aim, coordinator):
            num_sent[round_] += 1
            told = coordinator.ballot.voters if kind is Propose else coordinator.ballot.knocks
            if 2 * num_sent[round_] >= len(told) - 1:
                await aim.strikes_within(me, round_)

    with patch.object(Coordinator, "_send", counted):
        yield


@contextmanager
def _before_action(aim: Aim, kind: type[Action]) -> Iterator[None]:
    do = Coordinator._do

    def struck(coordinator: Coordinator, action: Action) -> None:
        goes_on = True
        if isinstance(action, kind) and _is_due(aim, coordinator):
            goes_on = aim.strikes(coordinator.ballot.me, coordinator.view.round)
        if goes_on:
            do(coordinator, action)

    with patch.object(Coordinator, "_do", struck):
        yield


# --- a reducer that does not coordinate


@contextmanager
def at_reducer(trial: Trial, stage: str, hit: Hit, *, first_round: int) -> Iterator[None]:
    aim = Aim(trial, hit, first_round)
    with _reducer_chosen(aim, strikes_at_plan=stage == "before parts"):
        match stage:
            case "mid part":
                with _mid_part(aim):
                    yield
            case "sealed":
                with _gather_held(aim, share=0.0):
                    yield
            case "only holder":
                with _gather_held(aim, share=0.0, to=trial.peers["nat"]):
                    yield
            case "half of the gather":
                with _gather_held(aim, share=0.5):
                    yield
            case _:
                yield


@contextmanager
def _reducer_chosen(aim: Aim, *, strikes_at_plan: bool) -> Iterator[None]:
    """The first reducer of the plan beside its coordinator."""
    follow = Session._follow_plan

    def noted(session: Session, plan: Plan, stream: Stream, ballot: int) -> None:
        peers = [peer for peer, _ in plan.members]
        others = [peers[part.reducer] for part in plan.parts if peers[part.reducer] != stream.peer]
        me = session._participant.identity.peer
        if ballot == 0 and others and aim.is_due(session.round, len(peers)) and aim.round != session.round:
            aim.round, aim.victim, aim.num_parts = session.round, others[0], _count(peers, plan, others[0])
        if strikes_at_plan and aim.is_victims(me, session.round) and not aim.strikes(me, session.round):
            return
        follow(session, plan, stream, ballot)

    with patch.object(Session, "_follow_plan", noted):
        yield


def _count(peers: list[str], plan: Plan, reducer: str) -> int:
    return sum(peers[part.reducer] == reducer for part in plan.parts)


@contextmanager
def _mid_part(aim: Aim) -> Iterator[None]:
    """Somebody's values are in, somebody's are not."""
    close = Butterfly._close_if_complete

    def struck(exchange: Butterfly, key: tuple[int, int]) -> None:
        me, round_ = exchange._network.peer, exchange._hello.round
        reduction = exchange._reductions[key]
        others = set(reduction.inputs) - {me}
        if aim.is_victims(me, round_) and others and len(reduction.inputs) < len(reduction.senders):
            aim.strikes(me, round_)
            return
        close(exchange, key)

    with patch.object(Butterfly, "_close_if_complete", struck):
        yield


class _Gather:
    """A reducer's results on their way: its coordinator is to know the parts' hashes, members so much of the bytes."""

    def __init__(self, aim: Aim, share: float, to: ScheduledPeer | None) -> None:
        self._aim = aim
        self._share = share
        self._to = to  # gets all, and nobody else anything
        self._sealed: set[int] = set()
        self._num_sent = 0
        self._is_struck = asyncio.Event()

    @property
    def _quota(self) -> int:
        if self._to is not None:
            return self._aim.num_parts
        return int(self._share * self._aim.num_parts * (len(self._aim.trial.peers) - 1))

    async def told(self, sealed: Sealed) -> None:
        self._sealed.add(sealed.part)
        await self._strike_if_enough()

    async def sent(self) -> None:
        self._num_sent += 1
        await self._strike_if_enough()

    async def may_send(self, peer: str) -> None:
        if self._num_sent >= self._quota or (self._to is not None and peer != self._to.peer):
            await self._is_struck.wait()

    async def _strike_if_enough(self) -> None:
        aim = self._aim
        is_enough = len(self._sealed) == aim.num_parts and self._num_sent >= self._quota
        if is_enough and aim.is_victims(aim.victim, aim.round):
            goes_on = aim.strikes(aim.victim, aim.round)
            if not goes_on:
                await asyncio.Event().wait()
            self._is_struck.set()


@contextmanager
def _gather_held(aim: Aim, *, share: float, to: ScheduledPeer | None = None) -> Iterator[None]:
    tell, send = Session._tell, PartSender._send
    gather = _Gather(aim, share, to)

    async def told(session: Session, stream: Stream, message: Message) -> None:
        await tell(session, stream, message)
        if isinstance(message, Sealed) and aim.is_victims(session._participant.identity.peer, session.round):
            await gather.told(message)

    async def held(sender: PartSender, frame: PartFrame) -> None:
        exchange: Butterfly = sender._frame_of.__self__  # type: ignore[attr-defined]
        is_result = not sender._is_contribution and aim.is_victims(exchange._network.peer, exchange._hello.round)
        if is_result:
            await gather.may_send(sender.peer)
        await send(sender, frame)
        if is_result:
            await gather.sent()

    with patch.object(Session, "_tell", told), patch.object(PartSender, "_send", held):
        yield
