"""Faults of a council's peer between its promise, its vote and the decision."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from schedules.faults import Aim, Hit
from schedules.schedule import Trial
from swarm_diloco.diloco.ledger import Header
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.messages import CastVote, Message
from swarm_diloco.rounds.follower import Follower
from swarm_diloco.rounds.participant import Participant
from swarm_diloco.rounds.session import Session

VOTER_STAGES = ("promised", "voted on disk", "vote sent", "decided")


@contextmanager
def at_voter(trial: Trial, stage: str, hit: Hit, *, first_round: int) -> Iterator[None]:
    """The first of the council beside the coordinator that comes to the stage."""
    aim = Aim(trial, hit, first_round)
    promise, vote, send, learn = Participant.promise, Participant.vote, Session._send, Follower.learn

    async def strike_if(is_stage: bool, participant: Participant, round_: int) -> None:
        log, me = participant.follower.log, participant.identity.peer
        if is_stage and log.head.round == round_ - 1 and aim.is_due(round_, len(log.commit(round_ - 1).members)):
            council = log.council(round_)
            if me in council.members and me != council.candidates[0]:
                await aim.strikes_within(me, round_)

    async def promised(participant: Participant, view: Any, ballot: int) -> bool:
        given = await promise(participant, view, ballot)
        await strike_if(stage == "promised" and ballot == 0, participant, view.round)
        return given

    async def voted(participant: Participant, view: Any, *what: Any) -> Any:
        cast = await vote(participant, view, *what)
        await strike_if(stage == "voted on disk", participant, view.round)
        return cast

    async def sent(session: Session, stream: Stream, message: Message) -> None:
        await send(session, stream, message)
        await strike_if(stage == "vote sent" and isinstance(message, CastVote), session._participant, session.round)

    async def learned(follower: Follower, header: Header, holders: Any) -> None:
        participant = next((found for found in participants if found.follower is follower), None)
        if participant is not None:
            await strike_if(stage == "decided", participant, header.commit().round)
        await learn(follower, header, holders)

    participants: list[Participant] = []
    load = Participant.load_votes

    def loaded(participant: Participant) -> None:
        participants.append(participant)
        load(participant)

    with (
        patch.object(Participant, "promise", promised),
        patch.object(Participant, "vote", voted),
        patch.object(Session, "_send", sent),
        patch.object(Follower, "learn", learned),
        patch.object(Participant, "load_votes", loaded),
    ):
        yield
