"""What one knock at a running engine brings about, word by word on its stream."""

import asyncio
from pathlib import Path

import pytest

from small_swarm import identity, played, rules_for
from swarm_diloco.diloco.ledger import Head
from swarm_diloco.errors import StreamLost
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.messages import Ahead, Beat, Behind, Decided, Knock, Message
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedWorld, run_virtual
from swarm_diloco.network.wire import read_signed, sign
from swarm_diloco.rounds.log import Log

RULES = rules_for()
NUM_ROUNDS = 6
ANN = identity("ann")


async def say(stream: Stream, round_: int, head: Head, message: Message, signer: Identity = ANN) -> None:
    signed = sign(signer, run=RULES.run_id, round_=round_, ballot=0, head=head, message=message)
    await stream.send(signed.frame, timeout_seconds=5)


@pytest.mark.parametrize("told", ["the newest commit", "junk", "an old commit"])
def test_a_candidate_that_lacks_the_newest_commit_learns_it_from_the_knock_and_takes_the_knock(
    tmp_path: Path, told: str
) -> None:
    """Here from a knocker that nobody can dial, and nobody else is there who could tell."""
    boot, ann = played(tmp_path, NUM_ROUNDS)
    log = Log(ann.folder, RULES, ann.genesis)
    words = {
        "the newest commit": log.header_bytes(NUM_ROUNDS),
        "junk": b"junk",
        "an old commit": log.header_bytes(NUM_ROUNDS - 1),
    }
    (boot.folder / "log" / str(NUM_ROUNDS)).unlink()
    got: list[Message] = []

    async def scenario(world: SimulatedWorld) -> None:
        await boot.start(world.network(boot.identity))
        assert boot.follower is not None
        assert boot.follower.log.head.round == NUM_ROUNDS - 1
        network = world.network(ANN, LinkSettings(client_mode=True))
        stream = await network.dial(boot.peer, RULES.control_protocol, timeout_seconds=5)
        base, credited = ann.states[NUM_ROUNDS][1], log.totals.counters[ANN.peer]
        knock = Knock(fragment=0, base=base, tokens_from=credited, tokens_to=credited)
        await say(stream, NUM_ROUNDS + 1, log.head, knock)
        try:
            while len(got) < 3:
                got.append(read_signed(await stream.receive(timeout_seconds=20), run=RULES.run_id).message)
                if got == [Ahead()]:
                    await say(stream, NUM_ROUNDS + 1, log.head, Decided(words[told]))
        except StreamLost:
            pass
        await boot.stop()
        assert boot.follower.log.head.round == NUM_ROUNDS - (told != "the newest commit")

    candidate = log.council(NUM_ROUNDS + 1).candidates[0]
    assert candidate == boot.peer or told != "the newest commit", "another seed of the run makes boot the candidate"
    run_virtual(scenario, seed=1, limit_seconds=300)
    assert got[0] == Ahead()
    if told == "the newest commit":
        assert got[1:] == [Beat(), Beat()]  # it is waited for like anybody who has knocked
    else:
        assert got[1:] == []


def test_a_knock_that_comes_after_the_decision_gets_it_and_is_waited_for_next_time(tmp_path: Path) -> None:
    boot, ann = played(tmp_path, NUM_ROUNDS)
    log = Log(ann.folder, RULES, ann.genesis)
    expected: set[str] = set()

    async def scenario(world: SimulatedWorld) -> None:
        await boot.start(world.network(boot.identity))
        assert boot.engine is not None
        assert boot.follower is not None
        eve = identity("eve")
        network = world.network(eve)
        for signer, round_ in ((eve, NUM_ROUNDS), (ANN, NUM_ROUNDS - 1)):
            stream = await network.dial(boot.peer, RULES.control_protocol, timeout_seconds=5)
            head = Head(round_ - 1, log.digest(round_ - 1))
            await say(stream, round_, head, Knock(fragment=0, base=bytes(32)), signer)
            if signer is eve:
                answer = read_signed(await stream.receive(timeout_seconds=5), run=RULES.run_id)
                assert answer.message == Behind(log.header_bytes(NUM_ROUNDS))
        await asyncio.sleep(1)
        commits = boot.follower.log.newest(64)
        expected.update(boot.engine._participant.attendance.expected(commits))
        await boot.stop()

    run_virtual(scenario, seed=1, limit_seconds=300)
    assert identity("eve").peer in expected
