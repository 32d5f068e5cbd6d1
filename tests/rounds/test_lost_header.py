"""A damaged header on disk: its round is not decided a second time by a peer that has forgotten its vote."""

import asyncio
from pathlib import Path

from small_swarm import assert_one_log, played
from swarm_diloco.network.simulated_network import SimulatedWorld, run_virtual
from swarm_diloco.rounds.log import Log

LAST = 7  # no multiple of the snapshot interval: the state does not go past the log


def test_a_round_whose_header_is_damaged_is_fetched_again_and_never_decided_again(tmp_path: Path) -> None:
    """Ann alone is a majority of the two, as the tie-breaker, and would decide the round anew, and otherwise."""
    boot, ann = played(tmp_path, LAST)
    log = Log(ann.folder, ann.rules, ann.genesis)
    lost = next(r for r in range(LAST, 1, -1) if log.council(r).candidates[0] == ann.peer)
    (ann.folder / "log" / str(lost)).write_bytes(b"damaged")
    assert not log.has_lost(lost)
    damaged = Log(ann.folder, ann.rules, ann.genesis)
    assert damaged.head.round == lost - 1
    assert damaged.has_lost(lost)
    assert damaged.has_lost(LAST)
    assert not damaged.has_lost(LAST + 1)

    async def scenario(world: SimulatedWorld) -> None:
        ann.donors, ann.max_rounds = [], None
        await ann.start(world.network(ann.identity))
        await asyncio.sleep(500)
        assert ann.follower is not None
        assert ann.follower.log.head.round == lost - 1  # nobody else is there: it waits
        await boot.start(world.network(boot.identity))
        await boot.reached(LAST + 2)
        await ann.reached(LAST + 2)
        for peer in (ann, boot):
            await peer.stop()

    run_virtual(scenario, seed=1, limit_seconds=2000)
    assert_one_log([boot, ann])
