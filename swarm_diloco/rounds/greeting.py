"""Every minute a word with a few peers, heads compared: so two halves of a swarm that sit quietly notice each other.

Rounds need no such thing: their streams carry heads anyway. But a peer whose council is itself alone knocks at nobody,
and a bootstrap peer that comes back after its run went on without it may know nobody whom it could dial.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from swarm_diloco.diloco.ledger import Head
from swarm_diloco.errors import NetworkError, RecordError
from swarm_diloco.network.messages import Here
from swarm_diloco.network.wire import read_signed
from swarm_diloco.rounds.participant import Participant

GREETED_AT_ONCE = 2  # beside one of the genesis' peers
ANSWER_SECONDS = 10.0


async def greet_for_ever(participant: Participant, meet: Callable[[str, Head], Awaitable[None]]) -> None:
    """`meet(peer, its head)` is awaited for each that answers; it raises nothing but what ends this peer."""
    chance = random.Random(participant.identity.peer)  # noqa: S311 - whom it happens to ask
    while True:
        await asyncio.sleep(participant.rules.rounds.greeting_seconds * chance.uniform(0.5, 1.0))
        known, me = participant.known_peers(), participant.identity.peer
        operators = [member.peer for member in participant.follower.log.commit(0).members if member.peer != me]
        chosen = [
            *chance.sample(operators, min(1, len(operators))),
            *chance.sample(known, min(GREETED_AT_ONCE, len(known))),
        ]
        for peer in dict.fromkeys(chosen):
            if (head := await _greet(participant, peer)) is not None:
                await meet(peer, head)


async def _greet(participant: Participant, peer: str) -> Head | None:
    """Show a peer my head and learn its own; None if it does not answer."""
    log = participant.follower.log
    try:
        stream = await participant.network.dial(
            peer, participant.rules.control_protocol, timeout_seconds=ANSWER_SECONDS
        )
        try:
            word = participant.sign(log.head.round + 1, 0, Here())
            await stream.send(word.frame, timeout_seconds=ANSWER_SECONDS)
            answer = await stream.receive(timeout_seconds=ANSWER_SECONDS)
            return read_signed(answer, run=participant.rules.run_id, sender=peer).head
        finally:
            await stream.close()
    except (NetworkError, RecordError):
        return None
