"""The real engine in real processes over hivemind on loopback."""

from pathlib import Path

import pytest

from process_swarm import PeerProcess, ProcessSwarm, all_until, candidate_of
from small_swarm import identity

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(240)]

MACHINES = {
    "boot": ({"ATEN_CPU_CAPABILITY": "default"}, []),
    "ann": ({"ATEN_CPU_CAPABILITY": "default"}, ["--flush"]),
    "ben": ({"ATEN_CPU_CAPABILITY": "avx2"}, ["--threads", "2"]),
    "cleo": ({"ATEN_CPU_CAPABILITY": "avx512"}, ["--flush", "--threads", "2"]),
}
NAMES = list(MACHINES)


def assert_one_log(peers: list[PeerProcess]) -> None:
    seen: dict[int, tuple[str, str]] = {}
    for peer in peers:
        for round_, state in peer.states.items():
            assert seen.setdefault(round_, state) == state, f"round {round_}: {peer.name} differs"


async def start_unlike_machines(swarm: ProcessSwarm, *arguments: str) -> list[PeerProcess]:
    peers = []
    for name, (environment, own) in MACHINES.items():
        peers.append(await swarm.start(name, *arguments, *own, **environment))
    swarm.go()
    return peers


async def test_peers_on_unlike_machines_have_equal_digests_and_states_after_every_round(tmp_path: Path) -> None:
    """Momentum 0.1 makes the untouched rows' momentum denormal within 40 rounds, were it not set to zero."""
    async with ProcessSwarm(tmp_path) as swarm:
        peers = await start_unlike_machines(swarm, "--rounds", "44", "--momentum", "0.1")
        await all_until(peers, 44)
    assert_one_log(peers)
    assert all(len(peer.states) >= 40 for peer in peers)


async def test_with_torchs_sgd_as_the_outer_step_unlike_machines_part(tmp_path: Path) -> None:
    """The test above can fail: a fused multiply-add is enough, and each peer notices by the next round's base."""
    async with ProcessSwarm(tmp_path) as swarm:
        peers = await start_unlike_machines(swarm, "--rounds", "44", "--momentum", "0.1", "--sgd")
        with pytest.raises(AssertionError, match="StateError"):
            await all_until(peers, 44)


@pytest.mark.parametrize(
    ("role", "phase"),
    [("coordinator", "exchanging"), ("coordinator", "voting"), ("reducer", "exchanging"), ("boot", "exchanging")],
)
async def test_a_killed_peer_costs_no_round_and_comes_back_by_replay(tmp_path: Path, role: str, phase: str) -> None:
    """SIGKILL in mid round: the others decide it without the victim, which later replays what it missed."""
    fatal = 4
    coordinator = candidate_of(fatal, NAMES)
    victims = {
        "coordinator": coordinator,
        "reducer": next(name for name in NAMES if name not in (coordinator, "boot")),
        "boot": "boot",
    }
    victim = victims[role]
    async with ProcessSwarm(tmp_path) as swarm:
        for name in NAMES:
            die = ["--die", str(fatal), phase] if name == victim else []
            await swarm.start(name, "--rounds", "20", *die)
        swarm.go()
        assert await swarm.peers[victim].ended() == -9
        others = [swarm.peers[name] for name in NAMES if name != victim]
        await all_until(others, fatal + 1)
        swarm.peers[victim].address = ""
        await swarm.start(victim, "--rounds", "20")
        await all_until(list(swarm.peers.values()), 20)
    assert_one_log(list(swarm.peers.values()))
    log = {line["round"]: line for line in others[0].lines}
    workers = {identity(peer.name).peer for peer in others} - {identity("boot").peer}
    assert workers <= set(log[fatal]["listed"]), "a survivor's work was not in the round"
    assert set(swarm.peers[victim].states) >= set(range(fatal, 21)), "the victim missed a round"
