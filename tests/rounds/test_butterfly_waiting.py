"""Whom a reducer waits for, and whom the round's results wait for."""

import asyncio
from dataclasses import replace
from pathlib import Path

from small_exchange import NUM_PARTS, Member, join, plan_of, stop, until_all_hold
from small_swarm import identity, normal_values
from swarm_diloco.diloco.ledger import is_in_bitmap, member_bitmap
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedWorld, run_virtual

THIN = LinkSettings(up_bytes_per_second=200)  # nothing of a part is through in 4 s


def test_a_sender_that_was_waited_for_in_vain_is_told_apart_from_those_that_delivered(tmp_path: Path) -> None:
    members: list[Member] = []

    async def scenario(world: SimulatedWorld) -> None:
        members.extend([await join(world, tmp_path, name, normal_values(1)) for name in ("reducer", "good")])
        members.append(await join(world, tmp_path, "silent", normal_values(1), THIN))
        plan = plan_of(members, [100, 100, 100], reducers=[0])
        for member in members:
            member.butterfly.follow_plan(plan)
        await until_all_hold(members[:2])
        assert asyncio.get_running_loop().time() >= plan.close_in_ms / 1000
        await stop(members)

    run_virtual(scenario, seed=1)
    assert members[0].butterfly.in_vain == {members[2].peer}
    assert members[0].butterfly.delivered == {members[1].peer}
    assert {seal.senders for seal in members[0].sealed} == {member_bitmap([0, 1])}


def test_nobody_waits_for_a_doubtful_sender_and_it_can_show_that_it_is_better(tmp_path: Path) -> None:
    doubtful = identity("doubtful").peer
    members: list[Member] = []

    async def scenario(world: SimulatedWorld) -> None:
        names = ("reducer", "good")
        members.extend([await join(world, tmp_path, name, normal_values(1), doubtful={doubtful}) for name in names])
        slow = LinkSettings(up_bytes_per_second=20_000)
        members.append(await join(world, tmp_path, "doubtful", normal_values(1), slow))
        plan = plan_of(members, [100, 100, 100], reducers=[0])
        for member in members:
            member.butterfly.follow_plan(plan)
        await until_all_hold(members[:2])
        assert asyncio.get_running_loop().time() < 1
        await asyncio.sleep(3)
        await stop(members)

    run_virtual(scenario, seed=1)
    assert members[0].butterfly.in_vain == set()
    assert members[0].butterfly.delivered == {members[1].peer, doubtful}


def test_if_all_senders_are_doubtful_they_are_waited_for(tmp_path: Path) -> None:
    names = ["good", "better"]
    members: list[Member] = []

    async def scenario(world: SimulatedWorld) -> None:
        doubtful = {identity(name).peer for name in names}
        members.append(await join(world, tmp_path, "archive", None, doubtful=doubtful))
        members.extend([await join(world, tmp_path, name, normal_values(1)) for name in names])
        plan = plan_of(members, [0, 100, 100], reducers=[0])
        for member in members:
            member.butterfly.follow_plan(plan)
        await until_all_hold(members)
        await stop(members)

    run_virtual(scenario, seed=1)
    assert {seal.senders for seal in members[0].sealed} == {member_bitmap([1, 2])}


def test_a_reducer_that_was_cut_off_itself_blames_nobody(tmp_path: Path) -> None:
    members: list[Member] = []

    async def scenario(world: SimulatedWorld) -> None:
        members.append(await join(world, tmp_path, "reducer", normal_values(1)))
        members.extend([await join(world, tmp_path, name, normal_values(1), THIN) for name in ("ann", "ben")])
        plan = plan_of(members, [100, 100, 100], reducers=[0])
        for member in members:
            member.butterfly.follow_plan(plan)
        await until_all_hold(members[:1])
        await stop(members)

    run_virtual(scenario, seed=1)
    assert members[0].butterfly.in_vain == set()


def test_a_member_too_slow_to_send_all_gets_no_results_here_unless_it_coordinates(tmp_path: Path) -> None:
    for coordinates in (False, True):
        members: list[Member] = []

        async def scenario(
            world: SimulatedWorld, coordinates: bool = coordinates, made: list[Member] = members
        ) -> None:
            slow = identity("slow").peer
            for name in ("reducer", "good", "slow"):
                member = await join(world, tmp_path / str(coordinates), name, normal_values(1))
                member.butterfly.coordinator = slow if coordinates else None
                made.append(member)
            plan = plan_of(made, [100, 100, 100], reducers=[0])
            some = [replace(part, senders=member_bitmap([0, 1])) for part in plan.parts[1:]]
            plan = replace(plan, parts=(plan.parts[0], *some))
            for member in made:
                member.butterfly.follow_plan(plan)
            await until_all_hold(made[:2])
            await asyncio.sleep(2)
            await stop(made)

        run_virtual(scenario, seed=1)
        assert len(members[2].held) == (NUM_PARTS if coordinates else 0)
        assert is_in_bitmap(members[0].sealed[0].senders, 2) or is_in_bitmap(members[0].sealed[-1].senders, 2)
