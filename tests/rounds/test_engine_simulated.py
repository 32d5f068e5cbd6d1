"""The real engine over the simulated network, in virtual time."""

from pathlib import Path

from small_swarm import QUICK, SmallPeer, assert_one_log, genesis_of, identity, rules_for
from swarm_diloco.network.simulated_network import SimulatedWorld, run_virtual
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
