"""What else goes wrong in a round: messages lost and doubled, two candidates, failing parts, a candidate that lies."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from schedules.schedule import Trial
from swarm_diloco.diloco.ledger import Commit, digest_of, is_in_bitmap, member_bitmap
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.messages import Message, Propose
from swarm_diloco.rounds.butterfly import Butterfly
from swarm_diloco.rounds.coordinator import Coordinator
from swarm_diloco.rounds.engine import Engine
from swarm_diloco.rounds.session import Session

# --- messages


@contextmanager
def unruly_messages(trial: Trial, *, lost: float, doubled: float) -> Iterator[None]:
    """Of what coordinators and members say on their streams so much never leaves, or leaves twice."""

    def unruly(send: Any) -> Any:
        async def sent(self: Any, stream: Stream, message: Message) -> None:
            chance = trial.chance.random()
            if chance < lost:
                return
            await send(self, stream, message)
            if chance > 1 - doubled:
                await send(self, stream, message)

        return sent

    with ExitStack() as stack:
        for kind in (Coordinator, Session):
            stack.enter_context(patch.object(kind, "_send", unruly(kind._send)))
        yield


@contextmanager
def two_candidates(trial: Trial, rounds: Collection[int]) -> Iterator[None]:
    """In these rounds a half of the peers believes from the start that the first candidate is dead."""
    start = Session.__init__

    def started(session: Session, participant: Any) -> None:
        start(session, participant)
        names = sorted(peer.peer for peer in trial.peers.values())
        if session.round in rounds and names.index(participant.identity.peer) % 2:
            session._raise_ballot(1)

    with patch.object(Session, "__init__", started):
        yield


# --- parts


@contextmanager
def failing_part(rounds: Collection[int], part: int = 0) -> Iterator[None]:
    """Nobody can average this part in these rounds, in any attempt."""
    reduce = Butterfly._reduce

    async def failed(exchange: Butterfly, key: tuple[int, int], reduction: Any) -> None:
        if not (exchange._hello.round in rounds and key[0] == part):
            await reduce(exchange, key, reduction)

    with patch.object(Butterfly, "_reduce", failed):
        yield


# --- a candidate that lies

Lie = Callable[[Coordinator, Commit], dict[str, Commit]]  # to each voter its commit


def _to_all(coordinator: Coordinator, commit: Commit) -> dict[str, Commit]:
    return dict.fromkeys(coordinator.ballot.voters, commit)


def two_commits(coordinator: Coordinator, commit: Commit) -> dict[str, Commit]:
    other = replace(commit, wall_ms=commit.wall_ms + 1)
    voters = sorted(coordinator.ballot.voters)
    return {voter: (commit, other)[number % 2] for number, voter in enumerate(voters)}


def members_left_out(coordinator: Coordinator, commit: Commit) -> dict[str, Commit]:
    """The first worker beside the liar is not in it, nor in any part."""
    me = coordinator.ballot.me
    out = next(number for number, member in enumerate(commit.members) if member.weight and member.peer != me)
    kept = [number for number in range(len(commit.members)) if number != out]
    parts = []
    for part in commit.parts:
        senders = [new for new, old in enumerate(kept) if is_in_bitmap(part.senders, old)]
        weight = sum(commit.members[kept[new]].weight for new in senders)
        parts.append(replace(part, senders=member_bitmap(senders), weight_sum=weight))
    members = tuple(commit.members[number] for number in kept)
    return _to_all(coordinator, replace(commit, members=members, parts=tuple(parts)))


def a_weight_changed(coordinator: Coordinator, commit: Commit) -> dict[str, Commit]:
    me = coordinator.ballot.me
    number = next(n for n, member in enumerate(commit.members) if member.weight and member.peer != me)
    members = list(commit.members)
    members[number] = replace(members[number], weight=members[number].weight + 7)
    parts = [
        replace(part, weight_sum=part.weight_sum + 7 * is_in_bitmap(part.senders, number)) for part in commit.parts
    ]
    return _to_all(coordinator, replace(commit, members=tuple(members), parts=tuple(parts)))


def a_hash_of_nothing(coordinator: Coordinator, commit: Commit) -> dict[str, Commit]:
    parts = list(commit.parts)
    parts[0] = replace(parts[0], result_hash=hash_of(b"held by nobody"))
    return _to_all(coordinator, replace(commit, parts=tuple(parts)))


LIES: dict[str, Lie] = {
    "two commits": two_commits,
    "leaves a member out": members_left_out,
    "changes a weight": a_weight_changed,
    "names a hash nobody holds": a_hash_of_nothing,
}


@contextmanager
def lying_coordinator(trial: Trial, liar: str, lie: Lie) -> Iterator[None]:
    """Whenever `liar` has something to propose of its own, it proposes what the lie makes of it, and votes for all."""
    propose = Coordinator._propose

    async def lied(coordinator: Coordinator, proposal: Propose) -> None:
        me = trial.named(coordinator.ballot.me)
        commit = Commit.decode(proposal.commit_bytes)
        if me.name != liar or coordinator.ballot._adopting is not None or not commit.parts:
            await propose(coordinator, proposal)
            return
        if trial.struck_at is None:
            trial.strike(commit.round)
        trial.notes.append(f"lied in round {commit.round}")
        told = lie(coordinator, commit)
        participant, ballot = coordinator._participant, coordinator.ballot
        own = told[ballot.me].encode() if ballot.me in told else proposal.commit_bytes
        coordinator._proposed = ballot.proposal = Propose(own, proposal.promises)
        cast = await participant.vote(coordinator.view, ballot.ballot, own, digest_of(own))
        if cast is not None:
            ballot.voted(ballot.me, cast.commit_digest, cast.signature)
        for voter, each in told.items():
            coordinator._broadcast(Propose(each.encode(), proposal.promises), {voter})
        coordinator._wake.set()

    with patch.object(Coordinator, "_propose", lied):
        yield


def session_of(engine: Engine | None) -> Session | None:
    return engine._session if engine is not None else None
