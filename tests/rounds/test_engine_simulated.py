"""The real engine over the simulated network, in virtual time."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from small_swarm import QUICK, SmallPeer, assert_one_log, genesis_of, identity, rules_for, until_phase
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedWorld, run_virtual
from swarm_diloco.rounds.settings import RunRules


def make(tmp_path: Path, names: list[str], rules: RunRules, **settings: object) -> list[SmallPeer]:
    genesis = genesis_of(rules, [identity("boot").peer])
    peers = []
    for name in names:
        peer = SmallPeer(name, tmp_path / name, rules, genesis, **settings)  # type: ignore[arg-type]
        if name == "boot":
            peer.trains = False
            peer.has_first_state()
        else:
            peer.donors = [identity("boot").peer]
        peers.append(peer)
    return peers


def test_three_workers_and_a_bootstrap_keep_one_log(tmp_path: Path) -> None:
    peers = make(tmp_path, ["boot", "ann", "ben", "cleo"], rules_for())

    async def scenario(world: SimulatedWorld) -> None:
        for peer in peers:
            await peer.start(world.network(peer.identity))
        for peer in peers:
            await peer.reached(6)
        for peer in peers:
            await peer.stop()

    run_virtual(scenario, seed=1, limit_seconds=600)
    assert_one_log(peers)
    assert all(set(peer.states) >= {1, 2, 3, 4, 5, 6} for peer in peers)
    assert all(outcome.listed == 1.0 for peer in peers[1:] for outcome in peer.outcomes[:5])


STAGES = ["idle", "knocked", "exchanging", "voting"]


async def crash(world: SimulatedWorld, peer: SmallPeer) -> None:
    world.crash(peer.peer)
    await peer.stop()


def role_of(peers: list[SmallPeer], round_: int, role: str) -> SmallPeer:
    """Who has the role in the round that is open: the log alone says so."""
    log = peers[0].follower.log  # type: ignore[union-attr]
    candidate = log.council(round_).candidates[0]
    if role == "coordinator":
        return next(peer for peer in peers if peer.peer == candidate)
    return next(peer for peer in peers if peer.peer != candidate and peer.name != "boot")


@pytest.mark.parametrize("role", ["coordinator", "member", "boot"])
@pytest.mark.parametrize("phase", STAGES)
def test_who_dies_in_a_round_costs_the_others_no_work_and_catches_up(tmp_path: Path, role: str, phase: str) -> None:
    peers = make(tmp_path, ["boot", "ann", "ben", "cleo"], rules_for())

    async def scenario(world: SimulatedWorld) -> None:
        for peer in peers:
            await peer.start(world.network(peer.identity))
        await peers[0].reached(3)
        round_ = 4
        victim = peers[0] if role == "boot" else role_of(peers, round_, role)
        await until_phase(victim, round_, phase)
        await crash(world, victim)
        others = [peer for peer in peers if peer is not victim]
        for peer in others:
            await peer.reached(round_ + 2)
        for peer in others:
            assert peer.engine is not None
        victim.donors = [peer.peer for peer in others]
        await victim.start(world.restart(victim.peer))
        for peer in peers:
            await peer.reached(round_ + 5)
        for peer in peers:
            await peer.stop()

    run_virtual(scenario, seed=3, limit_seconds=300)
    assert_one_log(peers)
    for peer in peers[1:]:
        listed = [outcome.listed for outcome in peer.outcomes]
        assert sum(listed) >= 4, f"{peer.name}: {listed}"


def test_a_candidate_without_a_majority_calls_who_is_back(tmp_path: Path) -> None:
    """Else the two wait at ballots of their own until a deadline passes, here of a thousand seconds."""
    patient = replace(QUICK, deadline_seconds=1000, deadline_ceiling_seconds=2000)
    boot, ann = make(tmp_path, ["boot", "ann"], rules_for(patient))

    async def scenario(world: SimulatedWorld) -> None:
        for peer in (boot, ann):
            await peer.start(world.network(peer.identity))
        assert ann.follower is not None
        round_ = 3
        await ann.reached(round_)
        while ann.follower.log.council(round_ + 1).candidates[0] != boot.peer:  # where a returning boot will sit
            await ann.reached(round_ := round_ + 1)
        await crash(world, boot)
        await asyncio.sleep(30)
        boot.donors = [ann.peer]
        await boot.start(world.restart(boot.peer))
        for peer in (boot, ann):
            await peer.reached(round_ + 4)
        for peer in (boot, ann):
            await peer.stop()

    run_virtual(scenario, seed=5, limit_seconds=200)
    assert_one_log([boot, ann])


@pytest.mark.parametrize("step_seconds", [1.0, 0.02])
def test_an_archive_that_the_log_forgot_is_a_member_again(tmp_path: Path, step_seconds: float) -> None:
    """A worker that is alone decides its rounds in no time: a knock made when the round is due comes too late.

    Where a round takes less than a knock's way, so does every knock: the coordinator waits for who came late.
    """
    boot, ann = make(
        tmp_path,
        ["boot", "ann"],
        rules_for(replace(QUICK, snapshot_interval=8), pace="time"),
        step_seconds=step_seconds,
    )

    async def scenario(world: SimulatedWorld) -> None:
        for peer in (boot, ann):
            await peer.start(world.network(peer.identity, LinkSettings(latency_seconds=min(0.02, step_seconds / 5))))
        assert ann.follower is not None
        log, round_ = ann.follower.log, 3
        await ann.reached(round_)
        while log.council(round_ + 1).candidates[0] != ann.peer:  # the tie-breaker may go on alone
            await ann.reached(round_ := round_ + 1)
        await crash(world, boot)
        await ann.reached(round_ + 3)
        assert [member.peer for member in log.commit(round_ + 3).members] == [ann.peer]
        boot.donors = [ann.peer]
        await boot.start(world.restart(boot.peer))
        await ann.reached(head := log.head.round + 4)
        while log.commit(head).member(boot.peer) is None and step_seconds < 1:
            await ann.reached(head := head + 1)
            assert head < round_ + 100
        assert log.commit(head).member(boot.peer) is not None
        for peer in (boot, ann):
            await peer.stop()

    run_virtual(scenario, seed=5, limit_seconds=600)
    assert_one_log([boot, ann])
