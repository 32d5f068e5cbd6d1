"""A stranger that may say anything, to everybody, all the time: rounds go on and nobody stops."""

import asyncio
from pathlib import Path

import pytest

from small_swarm import SmallPeer, assert_all_work_counts_once, assert_one_log, genesis_of, identity, rules_for
from swarm_diloco.diloco.ledger import Head
from swarm_diloco.diloco.records import pack
from swarm_diloco.errors import NetworkError
from swarm_diloco.network.messages import (
    MAX_BALLOT,
    Ahead,
    Behind,
    Bye,
    CastVote,
    Coming,
    Decided,
    Knock,
    Message,
    OtherState,
    Promised,
    Propose,
    Sealed,
    VoteCast,
)
from swarm_diloco.network.simulated_network import SimulatedWorld, run_virtual
from swarm_diloco.network.wire import sign
from swarm_diloco.rounds.log import Log
from swarm_diloco.rounds.part_frame import PartFrame
from swarm_diloco.rounds.parts_stream import Hello

RULES = rules_for()
EVE = identity("eve")


def lies(log: Log, base: bytes) -> dict[str, list[tuple[int, Message]]]:
    """What eve may say of the open round: (ballot, message) one after the other on one stream."""
    head = log.header_bytes(log.head.round)
    commit = log.commit(log.head.round).encode()
    good = Knock(fragment=0, base=base, weight=100, tokens_to=100, reachable=True)
    junk: list[Message] = [
        Sealed(0, 0, bytes(32), b"\x01"),
        Sealed(2**14, 255, bytes(32), b"\xff" * 100),
        CastVote(bytes(32), bytes(64)),
        Decided(b"rubbish"),
        Decided(head),
        Behind(head),
        Propose(commit, (b"rubbish",)),
        OtherState((b"rubbish",)),
        Ahead(),
        Promised(MAX_BALLOT),
    ]
    return {
        "votes that are no commits": [
            (b, Knock(fragment=0, base=base, vote=VoteCast(0, b"rubbish"))) for b in range(4)
        ],
        "votes of her own": [(b, Knock(fragment=0, base=base, vote=VoteCast(b, commit))) for b in range(4)],
        "the last ballot": [(MAX_BALLOT - b, good) for b in range(4)],
        "another state": [(b, Knock(fragment=0, base=bytes(32), weight=5)) for b in range(4)],
        "too much weight": [(b, Knock(fragment=0, base=base, weight=2**50)) for b in range(4)],
        "coming and never there": [(b, Coming()) for b in range(4)],
        "bye": [(b, Bye()) for b in range(4)],
        "junk after a knock": [(0, good), *((0, message) for message in junk)],
        "only junk": [(b, message) for b in range(4) for message in junk],
    }


@pytest.mark.parametrize(
    "lie",
    [
        "parts",
        "bytes",
        "votes that are no commits",
        "votes of her own",
        "the last ballot",
        "another state",
        "too much weight",
        "coming and never there",
        "bye",
        "junk after a knock",
        "only junk",
    ],
)
def test_nothing_that_a_stranger_says_stops_the_rounds(tmp_path: Path, lie: str) -> None:
    genesis = genesis_of(RULES, [identity("boot").peer])
    peers = [SmallPeer(name, tmp_path / name, RULES, genesis) for name in ("boot", "ann", "ben")]
    peers[0].trains = False
    peers[0].has_first_state()
    for peer in peers[1:]:
        peer.donors = [peers[0].peer]

    async def frames(log: Log, base: bytes) -> list[bytes]:
        if lie == "bytes":
            return [b"", b"\xc1", b"\x00" * 1000, pack([b"x", bytes(64)])]
        head = Head(log.head.round, log.head.digest)
        return [
            sign(EVE, run=RULES.run_id, round_=head.round + 1, ballot=ballot, head=head, message=message).frame
            for ballot, message in lies(log, base)[lie]
        ]

    async def pester(world: SimulatedWorld, victim: SmallPeer) -> None:
        assert victim.follower is not None
        network = world.networks[EVE.peer]
        protocol = RULES.parts_protocol if lie == "parts" else RULES.control_protocol
        while True:
            log = victim.follower.log
            try:
                stream = await network.dial(victim.peer, protocol, timeout_seconds=5)
                if lie == "parts":
                    sent = [Hello(log.head.round + 1, 0, log.head.digest).encode(), PartFrame(0, 0, b"x").encode()]
                else:
                    sent = await frames(log, victim.follower.replica.base(0))
                one_by_one = lie not in ("junk after a knock", "parts")
                for frame in sent:
                    await stream.send(frame, timeout_seconds=5)
                    if one_by_one:
                        await stream.close()
                        stream = await network.dial(victim.peer, protocol, timeout_seconds=5)
                await asyncio.sleep(0.3)
                await stream.close()
            except NetworkError:
                await asyncio.sleep(0.1)

    async def scenario(world: SimulatedWorld) -> None:
        for peer in peers:
            await peer.start(world.network(peer.identity))
        world.network(EVE)
        await peers[0].reached(1)
        pestering = [asyncio.create_task(pester(world, peer)) for peer in peers]
        for peer in peers:
            await peer.reached(5)
        for task in pestering:
            task.cancel()
        await asyncio.gather(*pestering, return_exceptions=True)
        for peer in peers:
            await peer.stop()

    run_virtual(scenario, seed=1, limit_seconds=600)
    assert_one_log(peers)
    assert_all_work_counts_once(peers)
    listed = [outcome.listed for peer in peers[1:] for outcome in peer.outcomes]
    assert sum(listed) >= 6
