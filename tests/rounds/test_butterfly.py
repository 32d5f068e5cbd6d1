"""Parts on the move: the weighted mean of what came whole, the same bytes for all, whoever dies or lies on the way."""

import asyncio
import gc
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from small_exchange import EXACT, NUM_PARTS, PREV, RULES, join, mean, plan_of, result_of, stop, until_all_hold
from small_swarm import NUM_VALUES, QUICK, SmallPeer, genesis_of, identity, normal_values, rules_for
from swarm_diloco.diloco.ledger import member_bitmap
from swarm_diloco.diloco.outer_optimizer import OuterSettings
from swarm_diloco.errors import RecordError, StreamLost
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.messages import Plan, PlannedPart, Sealed
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedWorld, run_virtual
from swarm_diloco.rounds.butterfly import Butterfly, Traffic, check_result
from swarm_diloco.rounds.contribution import encode_parts
from swarm_diloco.rounds.log import PartStore
from swarm_diloco.rounds.part_frame import PartFrame
from swarm_diloco.rounds.parts_stream import Hello
from swarm_diloco.rounds.settings import RunRules


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_get_the_weighted_mean_in_the_same_bytes(tmp_path: Path, size: int) -> None:
    deltas = [normal_values(seed) for seed in range(size)]
    weights = [100 * (seed + 1) for seed in range(size)]

    async def scenario(world: SimulatedWorld) -> None:
        members = [await join(world, tmp_path, f"peer {i}", deltas[i]) for i in range(size)]
        archive = await join(world, tmp_path, "archive", None)
        everybody = [*members, archive]
        plan = plan_of(everybody, [*weights, 0])
        for member in reversed(everybody):
            member.butterfly.follow_plan(plan)
            await asyncio.sleep(0.05)  # plans come one after the other
        await until_all_hold(everybody)
        sealed = [seal for member in everybody for seal in member.sealed]
        assert {seal.part for seal in sealed} == set(range(NUM_PARTS))
        assert all(seal.senders == member_bitmap(range(size)) for seal in sealed)
        for member in everybody:
            assert member.held == {seal.result_hash for seal in sealed}
            torch.testing.assert_close(result_of(member, sealed), mean(deltas, weights), rtol=0, atol=1e-6)
        await stop(everybody)

    run_virtual(scenario, seed=1, limit_seconds=60)


@pytest.mark.parametrize("tenth", range(11))
def test_a_sender_that_dies_in_a_part_is_in_it_whole_or_not_at_all(tmp_path: Path, tenth: int) -> None:
    deltas = [normal_values(seed) for seed in range(3)]
    part_bytes = RULES.upload.encoded_bytes(RULES.part_sizes(0)[0])
    slow = LinkSettings(up_bytes_per_second=part_bytes)  # a part takes a second

    async def scenario(world: SimulatedWorld) -> None:
        members = [
            await join(world, tmp_path, "reducer", deltas[0]),
            await join(world, tmp_path, "other", deltas[1]),
            await join(world, tmp_path, "dying", deltas[2], slow),
        ]
        plan = plan_of(members, [100, 200, 300], reducers=[0])
        for member in members:
            member.butterfly.follow_plan(plan)
        await asyncio.sleep(0.15 + tenth / 10)
        world.crash(members[2].peer)
        await until_all_hold(members[:2])
        sealed = members[0].sealed
        got = result_of(members[1], sealed)
        for seal in sealed:
            where = RULES.part_slices(0)[seal.part]
            is_in = seal.senders == member_bitmap(range(3))
            assert is_in or seal.senders == member_bitmap(range(2))
            chosen = slice(0, 3) if is_in else slice(0, 2)
            expected = mean([delta[where] for delta in deltas[chosen]], [100, 200, 300][chosen])
            torch.testing.assert_close(got[where], expected, rtol=0, atol=1e-6)
        assert any(seal.senders == member_bitmap(range(2)) for seal in sealed)
        await stop(members)

    run_virtual(scenario, seed=tenth, limit_seconds=60)


def test_a_stream_that_breaks_once_costs_no_part(tmp_path: Path) -> None:
    """All parts go out again on the next stream, also those that were sent and lost on the first."""
    deltas = [normal_values(seed) for seed in range(2)]

    async def scenario(world: SimulatedWorld) -> None:
        slow = LinkSettings(up_bytes_per_second=20_000)
        members = [
            await join(world, tmp_path, "reducer", deltas[0]),
            await join(world, tmp_path, "member", deltas[1], slow),
        ]
        plan = plan_of(members, [100, 100], reducers=[0])
        members[1].butterfly.follow_plan(plan)
        await asyncio.sleep(0.6)
        for stream, _ in members[1].network.streams():
            stream.break_("the line hiccups", drop=True)
        members[0].butterfly.follow_plan(plan)
        await until_all_hold(members)
        assert [seal.senders for seal in members[0].sealed] == [member_bitmap([0, 1])] * NUM_PARTS
        await stop(members)

    run_virtual(scenario, seed=1, limit_seconds=60)


def test_a_part_that_came_before_the_reducers_first_step_counts(tmp_path: Path) -> None:
    """A stream with parts in it is handed over in the very step in which the plan arrives."""
    deltas = [normal_values(seed) for seed in range(2)]

    async def scenario(world: SimulatedWorld) -> None:
        member = await join(world, tmp_path, "member", deltas[0])
        network, streams = world.network(identity("reducer")), asyncio.Queue[Stream]()

        async def accept(stream: Stream) -> None:
            Hello.decode(await stream.receive(timeout_seconds=5))
            streams.put_nowait(stream)
            await asyncio.Event().wait()

        await network.serve(RULES.parts_protocol, accept)
        sealed: list[Sealed] = []
        butterfly = Butterfly(
            network,
            RULES,
            round_=1,
            ballot=0,
            prev=PREV,
            encoded=encode_parts(RULES, 0, deltas[1]),
            parts=PartStore(tmp_path / "reducer"),
            traffic=Traffic(),
            on_sealed=sealed.append,
            on_held=lambda _: None,
        )
        members = ((network.peer, 100), (member.peer, 100))
        parts = tuple(PlannedPart(0, 0, member_bitmap([0, 1])) for _ in range(NUM_PARTS))
        plan = Plan(members, parts, close_in_ms=4000, deadline_in_ms=8000)
        member.butterfly.follow_plan(plan)
        stream = await streams.get()
        await asyncio.sleep(1)  # parts have come
        running = asyncio.create_task(butterfly.run())
        butterfly.follow_plan(plan)
        await butterfly.accept(stream)
        assert butterfly.refused == {}
        assert [seal.senders for seal in sealed] == [member_bitmap([0, 1])] * NUM_PARTS
        running.cancel()
        await stop([member])

    run_virtual(scenario, seed=1, limit_seconds=60)


def test_an_exchange_that_is_over_keeps_no_part(tmp_path: Path) -> None:
    """At once, without a collection of cyclic garbage: parts may be most of a peer's memory."""

    async def scenario(world: SimulatedWorld) -> None:
        slow = LinkSettings(up_bytes_per_second=20_000)
        members = [await join(world, tmp_path, f"peer {i}", normal_values(i), slow) for i in range(3)]
        for member in members:
            member.butterfly.follow_plan(plan_of(members, [100, 100, 100]))
        while not members[0].held:
            await asyncio.sleep(0.01)
        assert len(members[0].held) < NUM_PARTS  # in the middle of it
        assert members[0].running is not None
        members[0].running.cancel()
        await asyncio.wait({members[0].running})
        mine = members[0].encoded
        assert mine is not None
        butterfly = members[0].butterfly  # still there
        assert {sys.getrefcount(part) for part in mine} == {sys.getrefcount(part) for part in [bytes(100)]}
        assert sys.getrefcount(mine) == 3  # the member's, this function's and the call's
        assert butterfly.refused == {}
        await stop(members)

    gc.disable()
    try:
        run_virtual(scenario, seed=1, limit_seconds=60)
    finally:
        gc.enable()


def frame_of(part: int, data: bytes, attempt: int = 0) -> bytes:
    return PartFrame(part, attempt, data).encode()


def hostile_frames() -> dict[str, list[bytes]]:
    size = RULES.part_sizes(0)[0]
    right = RULES.upload.encode(torch.ones(size))
    return {
        "too short": [frame_of(0, right[:-4])],
        "too long": [frame_of(0, right + bytes(4))],
        "not finite": [frame_of(0, torch.full((size,), float("nan")).numpy().tobytes())],
        "infinite": [frame_of(0, torch.full((size,), float("inf")).numpy().tobytes())],
        "past the norm": [frame_of(0, torch.full((size,), 1e6).numpy().tobytes())],
        "no such part": [frame_of(NUM_PARTS, right)],
        "no such attempt": [frame_of(0, right, attempt=1)],
        "not a frame": [b"\xc1 rubbish"],
        "the same twice": [frame_of(0, right), frame_of(0, right)],
    }


@pytest.mark.parametrize("what", hostile_frames())
def test_a_part_that_is_not_right_is_refused_and_the_others_are_averaged(tmp_path: Path, what: str) -> None:
    deltas = [normal_values(seed) for seed in range(2)]

    async def scenario(world: SimulatedWorld) -> None:
        members = [
            await join(world, tmp_path, "reducer", deltas[0]),
            await join(world, tmp_path, "other", deltas[1]),
            await join(world, tmp_path, "liar", None),
        ]
        plan = plan_of(members, [100, 100, 100], reducers=[0])
        for member in members[:2]:
            member.butterfly.follow_plan(plan)
        stream = await members[2].network.dial(members[0].peer, RULES.parts_protocol, timeout_seconds=5)
        await stream.send(Hello(1, 0, PREV).encode(), timeout_seconds=5)
        for frame in hostile_frames()[what]:
            await stream.send(frame, timeout_seconds=5)
        await until_all_hold(members[:2])
        assert members[2].peer in members[0].butterfly.refused
        rest = [seal for seal in members[0].sealed if seal.part]
        assert [seal.senders for seal in rest] == [member_bitmap([0, 1])] * (NUM_PARTS - 1)
        await stop(members)

    run_virtual(scenario, seed=1, limit_seconds=60)


def test_a_stranger_gets_nothing_and_a_members_streams_are_bounded(tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        members = [await join(world, tmp_path, name, normal_values(1)) for name in ("reducer", "member", "stranger")]
        plan = plan_of(members[:2], [100, 100], reducers=[0])
        members[0].butterfly.follow_plan(plan)
        stream = await members[2].network.dial(members[0].peer, RULES.parts_protocol, timeout_seconds=5)
        await stream.send(Hello(1, 0, PREV).encode(), timeout_seconds=5)
        with pytest.raises(StreamLost):
            await stream.receive(timeout_seconds=5)
        streams = []
        for _ in range(5):
            streams.append(await members[1].network.dial(members[0].peer, RULES.parts_protocol, timeout_seconds=5))
            await streams[-1].send(Hello(1, 0, PREV).encode(), timeout_seconds=5)
        with pytest.raises(StreamLost):
            await streams[-1].receive(timeout_seconds=1)
        await stop(members)

    run_virtual(scenario, seed=1, limit_seconds=60)


def test_a_reducer_that_dies_is_replaced_in_a_second_attempt(tmp_path: Path) -> None:
    deltas = [normal_values(seed) for seed in range(3)]

    async def scenario(world: SimulatedWorld) -> None:
        members = [await join(world, tmp_path, f"peer {i}", deltas[i]) for i in range(3)]
        first = plan_of(members, [100, 200, 300])
        for member in members:
            member.butterfly.follow_plan(first)
        world.crash(members[2].peer)
        alive = members[:2]
        senders = member_bitmap([0, 1])
        parts = tuple(PlannedPart(0, 1, senders) if part.reducer == 2 else part for part in first.parts)
        await asyncio.sleep(1)
        second = replace(first, parts=parts)
        for member in alive:
            member.butterfly.follow_plan(second)
        await until_all_hold(alive)
        sealed = members[0].sealed + members[1].sealed
        for seal in sealed:
            if first.parts[seal.part].reducer == 2:
                assert (seal.attempt, seal.senders) == (1, senders)
        got = [result_of(member, sealed) for member in alive]
        assert torch.equal(got[0], got[1])
        where = RULES.part_slices(0)[2]
        torch.testing.assert_close(
            got[0][where], mean([delta[where] for delta in deltas[:2]], [100, 200]), rtol=0, atol=1e-6
        )
        await stop(alive)

    run_virtual(scenario, seed=1, limit_seconds=60)


def test_a_part_planned_while_the_last_stream_to_a_reducer_closes_is_sent_too(tmp_path: Path) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        far = LinkSettings(latency_seconds=0.2)
        members = [await join(world, tmp_path, f"peer {i}", normal_values(i), far) for i in range(2)]
        first = plan_of(members, [100, 100], reducers=[0])
        for member in members:
            member.butterfly.follow_plan(first)
        await until_all_hold(members)
        parts = (replace(first.parts[0], attempt=1), *first.parts[1:])
        for member in members:  # the member has all it asked for, and its stream is about to end
            member.butterfly.follow_plan(replace(first, parts=parts))
        while not any(seal.attempt for seal in members[0].sealed):
            await asyncio.sleep(0.1)
        (seal,) = (seal for seal in members[0].sealed if seal.attempt)
        assert seal.senders == member_bitmap([0, 1])
        await stop(members)

    run_virtual(scenario, seed=1, limit_seconds=8)


def test_a_second_stream_to_a_reducer_brings_what_is_new_though_it_repeats_what_the_first_brought(
    tmp_path: Path,
) -> None:
    """A reducer that has averaged and is given another's part too: its members have left it by then, and come again."""
    deltas = [normal_values(seed) for seed in range(3)]

    async def scenario(world: SimulatedWorld) -> None:
        members = [await join(world, tmp_path, f"peer {i}", deltas[i]) for i in range(3)]
        first = plan_of(members, [100, 100, 100], reducers=[0])
        for member in members:
            member.butterfly.follow_plan(first)
        await until_all_hold(members)
        await asyncio.sleep(1)  # all streams have ended
        parts = (replace(first.parts[0], attempt=1, senders=member_bitmap([0, 1])), *first.parts[1:])
        for member in members:
            member.butterfly.follow_plan(replace(first, parts=parts))
        await until_all_hold(members, NUM_PARTS + 1)
        await stop(members)

    run_virtual(scenario, seed=1, limit_seconds=20)


@pytest.mark.parametrize("late", range(2))
def test_a_second_attempts_part_counts_though_it_comes_before_the_reducers_own_plan(tmp_path: Path, late: int) -> None:
    """Whether its sender still has the stream of the first attempt, or dials anew."""
    deltas = [normal_values(seed) for seed in range(2)]

    async def scenario(world: SimulatedWorld) -> None:
        members = [await join(world, tmp_path, f"peer {i}", deltas[i]) for i in range(2)]
        gone = world.network(identity("gone")).peer
        first = plan_of(members, [100, 100], reducers=[0])
        planned = (PlannedPart(2, 0, member_bitmap([0, 1])), *first.parts[1:])
        first = replace(first, members=(*first.members, (gone, 0)), parts=planned)
        for member in members:
            member.butterfly.follow_plan(first)
        await asyncio.sleep(late)
        planned = (PlannedPart(0, 1, member_bitmap([0, 1])), *first.parts[1:])
        for member in reversed(members):
            member.butterfly.follow_plan(replace(first, parts=planned))
            await asyncio.sleep(1)
        await until_all_hold(members)
        assert [seal.senders for seal in members[0].sealed] == [member_bitmap([0, 1])] * NUM_PARTS
        assert members[0].butterfly.refused == {}
        await stop(members)

    run_virtual(scenario, seed=1, limit_seconds=60)


def test_an_averaged_part_that_cannot_be_one_is_not_held() -> None:
    size = RULES.part_sizes(0)[0]
    check_result(RULES, 0, 0, RULES.download.encode(torch.ones(size)))
    for wrong in (b"", bytes(4 * size - 1), torch.full((size,), float("nan")).numpy().tobytes(), b"\x7f" * 4 * size):
        with pytest.raises(RecordError):
            check_result(RULES, 0, 0, wrong)


def test_with_rate_1_and_no_momentum_the_engine_gives_the_weighted_mean_of_the_workers_models(tmp_path: Path) -> None:
    rules: RunRules = rules_for(QUICK, codec=EXACT, outer=OuterSettings(learning_rate=1.0, momentum=0.0))
    genesis = genesis_of(rules, [identity("boot").peer])
    peers = [SmallPeer(name, tmp_path / name, rules, genesis) for name in ("boot", "an", "ben", "cleo")]
    peers[0].trains = False
    peers[0].has_first_state()
    for number, peer in enumerate(peers[1:], start=1):
        peer.donors = [peers[0].peer]
        peer.weight = 100 * number
        peer.max_rounds = 1
    got = torch.empty(0)

    async def scenario(world: SimulatedWorld) -> None:
        nonlocal got
        for peer in peers:
            await peer.start(world.network(peer.identity))
        await peers[1].reached(1)
        assert peers[1].follower is not None
        got = peers[1].follower.replica.theta.clone()
        for peer in peers:
            await peer.stop()

    run_virtual(scenario, seed=1, limit_seconds=60)
    theta = normal_values(7)
    models = [theta - peer.contribution(0, 1).delta for peer in peers[1:]]
    assert got.shape == (NUM_VALUES,)
    torch.testing.assert_close(got, mean(models, [100, 200, 300]), rtol=0, atol=1e-6)
