"""A swarm that has lost its council goes on with who is left (protocol rule 10): the real engine in virtual time."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from small_swarm import QUICK, SmallPeer, rules_for
from swarm_diloco.diloco.ledger import Header
from swarm_diloco.network.messages import FIRST_DEGRADED
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedWorld, run_virtual
from test_engine_schedules import all_reach, make, play

DEGRADED, ALONE = QUICK.degraded_seconds, QUICK.alone_seconds
NAT = LinkSettings(client_mode=True)


def now() -> float:
    return asyncio.get_running_loop().time()


def header(peer: SmallPeer, round_: int) -> Header:
    assert peer.follower is not None
    return Header.decode(peer.follower.log.header_bytes(round_))


def head(peer: SmallPeer) -> int:
    assert peer.follower is not None
    return peer.follower.log.head.round


def degraded_rounds(peer: SmallPeer) -> list[int]:
    return [round_ for round_ in range(1, head(peer) + 1) if header(peer, round_).degraded]


async def until_tie_breaker(peer: SmallPeer) -> None:
    """Until the next round's council of two has this peer as its tie-breaker: without it there is no majority."""
    assert peer.follower is not None
    while peer.follower.log.council(head(peer) + 1).candidates[0] != peer.peer:
        await peer.reached(head(peer) + 1)


async def kill(world: SimulatedWorld, peers: Sequence[SmallPeer], *, silently: bool = False) -> None:
    for peer in peers:
        world.crash(peer.peer, silently=silently)
        await peer.stop()


@pytest.mark.parametrize("silently", [False, True])
def test_a_new_worker_goes_on_with_the_archive_when_the_only_worker_is_gone_for_good(
    tmp_path: Path, silently: bool
) -> None:
    """A council of two, whose tie-breaker may be the one that is gone."""
    boot, ann, cid = peers = make(tmp_path, ["boot", "ann", "cid"], rules_for())

    async def script(world: SimulatedWorld, _peers: list[SmallPeer]) -> None:
        await all_reach([boot, ann], 3)
        await kill(world, [ann], silently=silently)
        gone_at, gone_after = now(), head(boot)
        await cid.start(world.network(cid.identity))
        await all_reach([boot, cid], gone_after + 1)
        assert now() - gone_at < 3 * DEGRADED
        await all_reach([boot, cid], gone_after + 8)

    started = peers[:2]
    play(started, script)
    assert len(degraded_rounds(boot)) <= 3, "once the commits name who is there, the council decides again"
    assert all(round_.listed == 1.0 for round_ in cid.outcomes[:-1])


def test_a_worker_whose_bootstrap_peer_is_gone_goes_on_alone(tmp_path: Path) -> None:
    boot, ann = peers = make(tmp_path, ["boot", "ann"], rules_for())

    async def script(world: SimulatedWorld, _peers: list[SmallPeer]) -> None:
        await all_reach(peers, 3)
        await until_tie_breaker(boot)
        await kill(world, [boot])
        gone_at = now()
        await ann.reached(head(ann) + 1)
        assert now() - gone_at >= DEGRADED, "no sooner than the manifest says"
        assert now() - gone_at < 2.5 * DEGRADED, "no other worker is about, so that it need not wait longer"
        await ann.reached(head(ann) + 10)
        await boot.start(world.restart(boot.peer))
        await all_reach(peers, head(ann) + 5)
        assert_in_rounds(boot, head(boot) - 1)

    play(peers, script)


def assert_in_rounds(peer: SmallPeer, round_: int) -> None:
    assert header(peer, round_).commit().member(peer.peer) is not None, f"{peer.name} is not in round {round_}"


@pytest.mark.parametrize("says_bye", [False, True])
def test_two_workers_become_one_and_two_again(tmp_path: Path, says_bye: bool) -> None:
    """M = 2 → 1 → 2. Who may still be about is waited for longer than who has said bye."""
    boot, ann, ben = peers = make(tmp_path, ["boot", "ann", "ben"], rules_for())

    async def script(world: SimulatedWorld, _peers: list[SmallPeer]) -> None:
        await all_reach(peers, 4)
        if says_bye:
            assert ben.engine is not None
            await ben.engine.leave()
            await kill(world, [ben])
            await all_reach([boot, ann], head(boot) + 4)  # the last commits do not list it any more
            await until_tie_breaker(boot)
        await kill(world, [boot] if says_bye else [boot, ben])
        gone_at = now()
        await ann.reached(head(ann) + 1)
        assert now() - gone_at >= (DEGRADED if says_bye else ALONE)
        assert now() - gone_at < (DEGRADED if says_bye else ALONE) + 2.5 * DEGRADED
        await ann.reached(head(ann) + 5)
        ben.donors = [ann.peer]
        await ben.start(world.restart(ben.peer))
        await all_reach([ann, ben], head(ann) + 5)
        assert_in_rounds(ben, head(ben) - 1)

    play(peers, script)


def test_a_worker_that_reaches_somebody_never_steps_alone(tmp_path: Path) -> None:
    """A known peer that answers but does not come (a frozen program whose daemon still answers): the worker waits."""
    boot, ann, ben = peers = make(tmp_path, ["boot", "ann", "ben"], rules_for())

    async def script(world: SimulatedWorld, _peers: list[SmallPeer]) -> None:
        await all_reach(peers, 4)
        assert boot.engine is not None
        await kill(world, [ben])
        for task in boot.tasks:  # it answers a dial, and plays no round
            task.cancel()
        before = head(ann)
        await asyncio.sleep(5 * ALONE)
        assert head(ann) == before
        await kill(world, [boot])
        await boot.start(world.restart(boot.peer))
        await all_reach([boot, ann], before + 3)

    play(peers, script, limit_seconds=2000)


def test_who_is_in_none_of_the_last_commits_never_steps_alone(tmp_path: Path) -> None:
    boot, ann, cid = make(tmp_path, ["boot", "ann", "cid"], rules_for())

    async def script(world: SimulatedWorld, _peers: list[SmallPeer]) -> None:
        await all_reach([boot, ann], 4)
        cid.step_seconds = 1000.0
        await cid.start(world.network(cid.identity))
        await kill(world, [boot, ann])
        before = head(cid)
        await asyncio.sleep(1000 + 5 * ALONE)
        assert head(cid) == before
        assert cid.trained, "it trains on all the while"

    play([boot, ann], script, limit_seconds=3000)


def test_a_majority_cut_off_goes_on_and_the_minority_follows_when_it_is_back(tmp_path: Path) -> None:
    peers = make(tmp_path, ["boot", "ann", "ben", "cid"], rules_for())
    boot, ann, ben, cid = peers

    async def script(world: SimulatedWorld, _peers: list[SmallPeer]) -> None:
        await all_reach(peers, 4)
        world.partition([cid.peer])
        await all_reach([boot, ann, ben], head(boot) + 3)
        world.heal()
        await all_reach(peers, head(boot) + 5)

    play(peers, script)
    assert degraded_rounds(boot) == []
    assert cid.engine is not None


@pytest.mark.parametrize("back_after_seconds", [30, 3600])
def test_two_client_mode_workers_without_the_bootstrap_peer(tmp_path: Path, back_after_seconds: int) -> None:
    """They cannot reach each other. A short absence costs only time; a long one ends in two heads, and all say so."""
    peers = make(tmp_path, ["boot", "ann", "ben"], rules_for())
    boot, ann, ben = peers
    ann.is_reachable = ben.is_reachable = False
    ann.step_seconds = ben.step_seconds = 2.0 if back_after_seconds < ALONE else 90.0

    async def scenario(world: SimulatedWorld) -> None:
        await boot.start(world.network(boot.identity))
        for peer in (ann, ben):
            await peer.start(world.network(peer.identity, NAT))
        await all_reach(peers, 4)
        await kill(world, [boot])
        before = head(ann)
        await asyncio.sleep(back_after_seconds)
        await boot.start(world.restart(boot.peer))
        if back_after_seconds < ALONE:
            await all_reach(peers, before + 4)
            assert not any(peer.engine.status().forks for peer in peers if peer.engine)
        else:
            assert head(ann) > before + 1
            assert head(ben) > before + 1
            assert header(ann, before + 2).digest != header(ben, before + 2).digest
            async with asyncio.timeout(10 * ALONE):
                while not all(peer.engine.status().forks for peer in peers if peer.engine):
                    await asyncio.sleep(1)
        for peer in peers:
            await peer.stop()

    run_virtual(scenario, seed=1, limit_seconds=back_after_seconds + 3000)


def test_all_are_killed_and_a_part_of_them_goes_on_from_disk(tmp_path: Path) -> None:
    peers = make(tmp_path, ["boot", "ann", "ben", "cid", "dan"], rules_for())
    boot, ann, ben, cid, dan = peers

    async def script(world: SimulatedWorld, _peers: list[SmallPeer]) -> None:
        await all_reach(peers, 4)
        await kill(world, peers)
        for peer in (ann, ben):
            peer.donors = ()
            await peer.start(world.restart(peer.peer))
        await all_reach([ann, ben], 10)
        for peer in (boot, cid, dan):
            peer.donors = [ann.peer]
            await peer.start(world.restart(peer.peer))
        await all_reach(peers, head(ann) + 4)

    play(peers, script)


def test_a_call_to_a_degraded_ballot_is_not_followed_while_the_round_is_young(tmp_path: Path) -> None:
    """One member's word must not take everybody out of the council's ballots."""
    boot, ann, ben = peers = make(tmp_path, ["boot", "ann", "ben"], rules_for())

    async def script(world: SimulatedWorld, _peers: list[SmallPeer]) -> None:
        await all_reach(peers, 4)
        for _ in range(20):
            for peer in (ann, ben):
                assert peer.engine is not None
                session = peer.engine._session
                if session is not None:
                    for caller in (boot, ann, ben):
                        session.candidacy._heed_call(caller.peer, FIRST_DEGRADED)
            await boot.reached(head(boot) + 1)

    play(peers, script)
    assert degraded_rounds(boot) == []
