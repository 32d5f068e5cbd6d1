"""A peer whose state is not the swarm's finds out within a round, takes another, and goes on (protocol rule 10)."""

import shutil
from pathlib import Path

import pytest
import torch

from small_swarm import SmallPeer, rules_for
from swarm_diloco.errors import StateError
from swarm_diloco.network.simulated_network import SimulatedWorld, run_virtual
from swarm_diloco.rounds.replica import Replica
from test_engine_schedules import all_reach, make, play


def flip_a_bit(peer: SmallPeer) -> None:
    """What failing memory does: one bit of θ, noticed at the next hash of the fragment."""
    assert peer.follower is not None
    replica = peer.follower.replica
    bits = replica.theta.view(torch.int32)
    bits[17] ^= 1 << 20
    replica._bases[0] = replica._compute_base(0)


def repairs(peer: SmallPeer) -> int:
    assert peer.engine is not None
    return peer.engine.status().num_repairs


@pytest.mark.parametrize("name", ["boot", "ann", "cid"])
@pytest.mark.parametrize("has_snapshots", [True, False])
def test_a_flipped_bit_is_found_in_a_round_and_the_state_replaced(
    tmp_path: Path, name: str, has_snapshots: bool
) -> None:
    peers = make(tmp_path, ["boot", "ann", "ben", "cid"], rules_for())
    broken = next(peer for peer in peers if peer.name == name)

    async def script(_world: SimulatedWorld, _peers: list[SmallPeer]) -> None:
        await all_reach(peers, 6)
        if not has_snapshots:
            shutil.rmtree(broken.folder / "snapshots")
        assert broken.follower is not None
        at = broken.follower.log.head.round
        flip_a_bit(broken)
        await all_reach(peers, at + 6)
        assert broken.follower.log.commit(at + 5).member(broken.peer) is not None, "it takes part again"
        assert [repairs(peer) for peer in peers] == [int(peer is broken) for peer in peers]

    play(peers, script)


def test_a_machine_that_computes_something_else_stops_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = make(tmp_path, ["boot", "ann", "ben"], rules_for())
    apply = Replica.apply

    def wrongly(self: Replica, commit: object, parts: object) -> None:
        apply(self, commit, parts)  # type: ignore[arg-type]
        if peers[2].follower is not None and self is peers[2].follower.replica:
            self.theta[3] += 1
            self._bases[0] = self._compute_base(0)

    monkeypatch.setattr(Replica, "apply", wrongly)

    async def scenario(world: SimulatedWorld) -> None:
        for peer in peers:
            await peer.start(world.network(peer.identity))
        with pytest.raises(StateError, match="replaced 3 times"):
            await peers[2].reached(20)
        await all_reach(peers[:2], 8)
        for peer in peers:
            await peer.stop()

    run_virtual(scenario, seed=1, limit_seconds=600)
