"""What happens to rounds when peers freeze, hide, crash, come late or are slow: the real engine in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from small_swarm import (
    NUM_VALUES,
    QUICK,
    SmallPeer,
    assert_all_work_counts_once,
    assert_one_log,
    genesis_of,
    identity,
    rules_for,
    until_phase,
)
from swarm_diloco.diloco.ledger import Header
from swarm_diloco.disk import read_file
from swarm_diloco.errors import DiskError
from swarm_diloco.network.messages import Propose
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedWorld, run_virtual
from swarm_diloco.rounds.coordinator import Coordinator
from swarm_diloco.rounds.decision.voter import MAX_VOTE_FILE_BYTES, Voter
from swarm_diloco.rounds.settings import RunRules

Script = Callable[[SimulatedWorld, list[SmallPeer]], Awaitable[None]]


def make(tmp_path: Path, names: list[str], rules: RunRules) -> list[SmallPeer]:
    genesis = genesis_of(rules, [identity("boot").peer])
    peers = []
    for name in names:
        peer = SmallPeer(name, tmp_path / name, rules, genesis)
        if name == "boot":
            peer.trains = False
            peer.has_first_state()
        else:
            peer.donors = [identity("boot").peer]
        peers.append(peer)
    return peers


def play(
    peers: list[SmallPeer],
    script: Script,
    *,
    links: dict[str, LinkSettings] | None = None,
    seed: int = 1,
    limit_seconds: float = 600,
) -> None:
    """Start all peers, play the script, stop all. Whatever the script does, one log and every token counted once."""

    async def scenario(world: SimulatedWorld) -> None:
        for peer in peers:
            await peer.start(world.network(peer.identity, (links or {}).get(peer.name, LinkSettings())))
        await script(world, peers)
        for peer in peers:
            await peer.stop()

    run_virtual(scenario, seed=seed, limit_seconds=limit_seconds)
    assert_one_log(peers)
    assert_all_work_counts_once(peers)


async def all_reach(peers: list[SmallPeer], round_: int) -> None:
    for peer in peers:
        await peer.reached(round_)


def candidate_of(peers: list[SmallPeer], round_: int) -> SmallPeer:
    assert peers[0].follower is not None
    candidate = peers[0].follower.log.council(round_).candidates[0]
    return next(peer for peer in peers if peer.peer == candidate)


@pytest.mark.parametrize("role", ["coordinator", "member", "boot"])
@pytest.mark.parametrize("phase", ["idle", "knocked", "exchanging", "voting"])
def test_a_freeze_of_20_seconds_costs_nobody_any_work(tmp_path: Path, role: str, phase: str) -> None:
    async def script(world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await peers[0].reached(3)
        coordinator = candidate_of(peers, 4)
        others = [peer for peer in peers[1:] if peer is not coordinator]
        victim = {"coordinator": coordinator, "member": others[0], "boot": peers[0]}[role]
        await until_phase(victim, 4, phase)
        world.freeze(victim.peer)
        await asyncio.sleep(20)
        world.thaw(victim.peer)
        await all_reach(peers, 7)

    play(make(tmp_path, ["boot", "ann", "ben", "cleo"], rules_for()), script, seed=5, limit_seconds=300)


def test_a_member_that_nobody_can_dial_takes_part_in_full(tmp_path: Path) -> None:
    peers = make(tmp_path, ["boot", "ann", "nat"], rules_for())
    peers[2].is_reachable = False

    async def script(_world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await all_reach(peers, 5)

    play(peers, script, links={"nat": LinkSettings(client_mode=True)})
    assert [outcome.listed for outcome in peers[2].outcomes[:4]] == [1.0] * 4


@pytest.mark.parametrize("phase", ["knocked", "exchanging", "voting"])
def test_all_are_killed_in_a_round_and_go_on_from_their_disks(tmp_path: Path, phase: str) -> None:
    async def script(world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await peers[0].reached(3)
        await until_phase(peers[0], 4, phase)
        for peer in peers:
            world.crash(peer.peer)
        for peer in peers:
            await peer.stop()
        for peer in peers:
            peer.donors = ()  # nobody is there who could give anything
            await peer.start(world.restart(peer.peer))
        await all_reach(peers, 7)

    play(make(tmp_path, ["boot", "ann", "ben"], rules_for()), script)


def test_a_worker_that_restarts_in_a_round_counts_its_tokens_once(tmp_path: Path) -> None:
    """A commit may list what it knocked with before; what it brings now counts less so much, or later."""
    peers = make(tmp_path, ["boot", "ann"], rules_for())

    async def script(world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        ann = peers[1]
        for number in range(12):  # a round begins 1 s after the one before it, and takes some tenths
            await ann.reached(2 * number + 2)
            await asyncio.sleep(1 + 0.04 * number)
            world.crash(ann.peer)
            await ann.stop()
            await asyncio.sleep(1)
            await ann.start(world.restart(ann.peer))
        await all_reach(peers, 26)

    play(peers, script)


def test_a_joiner_comes_in_while_rounds_go_on(tmp_path: Path) -> None:
    peers = make(tmp_path, ["boot", "ann", "ben", "late"], rules_for())
    late = peers.pop()

    async def script(world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await peers[0].reached(10)
        await late.start(world.network(late.identity))
        assert late.follower is not None
        assert late.follower.replica.round >= 8  # a snapshot and what came after it, not all from the start
        peers.append(late)
        await all_reach(peers, 15)

    play(peers, script)
    assert 1 not in late.states
    assert late.outcomes[-1].listed == 1.0


def test_a_joiner_with_a_thin_line_gets_in_though_rounds_are_quick(tmp_path: Path) -> None:
    """The snapshot takes it several rounds; what was decided meanwhile is replayed."""
    peers = make(tmp_path, ["boot", "ann", "late"], rules_for())
    late = peers.pop()

    async def script(world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await peers[0].reached(5)
        thin = LinkSettings(down_bytes_per_second=9_000, up_bytes_per_second=20_000)
        await late.start(world.network(late.identity, thin))
        peers.append(late)
        assert peers[0].follower is not None
        await all_reach(peers, peers[0].follower.log.head.round + 4)

    play(peers, script)


def test_a_worker_that_is_late_keeps_its_work(tmp_path: Path) -> None:
    rules = rules_for(replace(QUICK, opening_seconds=1.5, deadline_seconds=4))
    peers = make(tmp_path, ["boot", "ann", "ben", "slow"], rules)
    peers[3].step_seconds = 4.0

    async def script(_world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await all_reach(peers, 20)

    play(peers, script)
    slow = peers[3]
    assert any(outcome.listed == 0 for outcome in slow.outcomes)
    assert slow.credited > 0


def test_who_knocks_long_before_the_round_is_due_waits_and_drags_nobody_to_another_ballot(tmp_path: Path) -> None:
    """A step that takes minutes ends when it ends: its worker's knock is early by so much."""
    peers = make(tmp_path, ["boot", "ann", "ben", "early"], rules_for(pace="time"))
    for peer in peers[1:3]:
        peer.step_seconds, peer.keeps_time = 40.0, True

    async def script(_world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await all_reach(peers, 8)

    play(peers, script, limit_seconds=2000)
    log = peers[0].follower.log  # type: ignore[union-attr]
    assert {Header.decode(log.header_bytes(round_)).ballot for round_ in range(4, 9)} == {0}
    assert all(outcome.listed == 1.0 for outcome in peers[3].outcomes[3:])


def test_nothing_is_decided_until_enough_workers_are_there(tmp_path: Path) -> None:
    peers = make(tmp_path, ["boot", "ann", "ben", "cleo"], rules_for(replace(QUICK, minimum_workers=3)))
    cleo = peers.pop()

    async def script(world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await asyncio.sleep(120)
        for peer in peers[1:]:
            assert peer.engine is not None
            assert peer.engine.status().round == 0
            assert peer.engine.status().waiting_for == (2, 3)
            assert peer.engine.status().ballot == 0
        await cleo.start(world.network(cleo.identity))
        peers.append(cleo)
        await all_reach(peers, 3)

    play(peers, script)
    assert cleo.outcomes[0].listed == 1.0


def test_a_line_of_1_megabit_takes_part_and_the_round_waits_for_nothing_else(tmp_path: Path) -> None:
    peers = make(tmp_path, ["boot", "ann", "ben", "thin"], rules_for())

    async def script(_world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await all_reach(peers, 6)

    thin = LinkSettings(up_bytes_per_second=125_000, down_bytes_per_second=125_000)
    play(peers, script, links={"thin": thin}, limit_seconds=60)
    assert all(outcome.listed == 1.0 for outcome in peers[3].outcomes[:5])


@pytest.mark.parametrize("seed", [1, 2])
def test_lost_packets_and_failing_dials_cost_time_and_no_work(tmp_path: Path, seed: int) -> None:
    async def script(_world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await all_reach(peers, 8)

    names = ["boot", "ann", "ben", "cleo"]
    bad = LinkSettings(loss_fraction=0.15, jitter_seconds=0.05, dial_failure_fraction=0.15, tail_loss_fraction=0.1)
    play(make(tmp_path, names, rules_for()), script, links=dict.fromkeys(names, bad), seed=seed)


def test_peers_that_trained_the_same_number_of_tokens_agree(tmp_path: Path) -> None:
    peers = make(tmp_path, ["boot", "ann", "ben", "cleo", "dan"], rules_for())

    async def script(_world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await all_reach(peers, 4)

    play(peers, script)
    log = peers[0].follower.log  # type: ignore[union-attr]
    assert {member.weight for member in log.commit(4).members} == {0, 100}
    assert log.commit(4).tokens == 400


def test_16_peers_keep_one_log(tmp_path: Path) -> None:
    peers = make(tmp_path, ["boot", *(f"worker{number}" for number in range(15))], rules_for())

    async def script(_world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await all_reach(peers, 3)

    play(peers, script)
    log = peers[0].follower.log  # type: ignore[union-attr]
    assert len(log.commit(3).members) == 16
    assert len(log.council(4).members) == 9


def test_the_coordinators_own_vote_is_on_its_disk_before_anybody_sees_the_proposal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crash between the two lets it propose another commit at the same ballot, and a round can split."""
    peers = make(tmp_path, ["boot", "ann", "ben"], rules_for())
    num_seen = 0
    broadcast = Coordinator._broadcast

    def checking(self: Coordinator, message: object, to: set[str] | None = None) -> None:
        nonlocal num_seen
        if isinstance(message, Propose):
            path = next(peer.folder / "votes" for peer in peers if peer.peer == self.ballot.me)
            cast = Voter.decode(read_file(path, limit_bytes=MAX_VOTE_FILE_BYTES)).vote_cast(self.view)
            assert cast is not None
            assert (cast.ballot, cast.commit_bytes) == (self.ballot.ballot, message.commit_bytes)
            num_seen += 1
        broadcast(self, message, to)  # type: ignore[arg-type]

    monkeypatch.setattr(Coordinator, "_broadcast", checking)

    async def script(_world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await all_reach(peers, 3)

    play(peers, script)
    assert num_seen >= 3


def test_who_has_lost_its_vote_file_votes_no_more_under_its_key(tmp_path: Path) -> None:
    peers = make(tmp_path, ["boot", "ann", "ben"], rules_for())

    async def script(world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await all_reach(peers, 2)
        ann = peers[1]
        world.crash(ann.peer)
        await ann.stop()
        (ann.folder / "votes").unlink()
        await ann.start(world.restart(ann.peer))
        with pytest.raises(DiskError, match="must not vote again under its key"):
            await ann.tasks[0]
        await ann.stop()
        peers.remove(ann)
        await all_reach(peers, 5)

    play(peers, script)


def test_a_stop_in_any_phase_ends_at_once_and_leaves_no_task(tmp_path: Path) -> None:
    """No wait swallows the cancellation, at whatever moment it comes."""

    async def scenario(world: SimulatedWorld) -> None:
        before = asyncio.all_tasks()
        peers = make(tmp_path, ["boot", "ann", "ben"], rules_for())
        for peer in peers:
            await peer.start(world.network(peer.identity))
        ann = peers[1]
        loop = asyncio.get_running_loop()
        for number in range(60):
            await asyncio.sleep(0.07)
            started = loop.time()
            await ann.stop()
            assert loop.time() - started < 1
            world.crash(ann.peer)
            await ann.start(world.restart(ann.peer))
            if number % 10 == 9:
                await ann.reached(ann.follower.log.head.round + 1)  # type: ignore[union-attr]
        for peer in peers:
            await peer.stop()
            await world.networks[peer.peer].close()
        await asyncio.sleep(30)
        assert asyncio.all_tasks() == before
        assert_one_log(peers)

    run_virtual(scenario, seed=4, limit_seconds=2000)


def test_the_state_is_what_the_log_says(tmp_path: Path) -> None:
    """A replica that replays the log's parts from θ_0 has the same bits as those that were there."""
    peers = make(tmp_path, ["boot", "ann", "ben", "watcher"], rules_for(replace(QUICK, snapshot_interval=8)))
    watcher = peers.pop()
    watcher.trains = False

    async def script(world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        await all_reach(peers, 5)
        await watcher.start(world.network(watcher.identity))
        peers.append(watcher)
        await all_reach(peers, 7)

    play(peers, script)
    assert watcher.states[3] == peers[0].states[3]
    assert peers[0].rules.layout.num_values == NUM_VALUES


def test_a_member_that_moves_on_alone_does_not_end_the_others_exchange(tmp_path: Path) -> None:
    """On a thin line heartbeats wait behind parts: its owner thinks its coordinator dead and knocks at the next ballot,
    whose candidate is in the middle of a good plan.
    """
    peers = make(tmp_path, ["boot", "ann", "ben"], rules_for())
    line = LinkSettings(up_bytes_per_second=6_000)

    async def script(_world: SimulatedWorld, peers: list[SmallPeer]) -> None:
        hasty = peers[2]
        assert hasty.follower is not None
        await hasty.reached(3)
        assert hasty.engine is not None
        while (status := hasty.engine.status()).phase != "exchanging" or hasty.peer in status.council[:2]:
            await asyncio.sleep(0.002)
        round_ = status.round + 1
        assert hasty.engine._session is not None
        hasty.engine._session._raise_ballot(1)
        await all_reach(peers, round_ + 2)
        assert Header.decode(hasty.follower.log.header_bytes(round_)).ballot == 0

    play(peers, script, links={peer.name: line for peer in peers})
