"""A run looked at from outside: its folder, or its peers over a network."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from stored_run import WORKER, add_rounds, make_run
from swarm_diloco.diloco.ledger import Header, Member, Vote, genesis_message
from swarm_diloco.errors import DataError, DiskError, InviteError, ManifestError, RecordError
from swarm_diloco.invite import Invite
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.simulated_network import SimulatedWorld, run_virtual
from swarm_diloco.rounds.follower import Follower
from swarm_diloco.rounds.library import RunFiles
from swarm_diloco.rounds.snapshot import write_snapshot
from swarm_diloco.run_folder import RunFolder
from swarm_diloco_bootstrap.operator_folder import OperatorFolder
from swarm_diloco_client.observer import empty_replica, is_invite, observed, open_run, stored_state
from swarm_diloco_client.online_observer import open_online
from swarm_diloco_client.run_report import report_lines, report_of, report_values

NOWHERE = Path("/nonexistent")


@pytest.fixture(scope="module")
def run_of_five(tmp_path_factory: pytest.TempPathFactory) -> OperatorFolder:
    """Five rounds, one snapshot: that of round 0."""
    run = make_run(tmp_path_factory.mktemp("runs") / "five")
    add_rounds(run, 5)
    return run


@pytest.fixture
def run(run_of_five: OperatorFolder, tmp_path: Path) -> OperatorFolder:
    """A copy that a test may damage."""
    return OperatorFolder(Path(shutil.copytree(run_of_five.path, tmp_path / "run")))


async def test_a_folder_gives_the_state_that_its_log_ends_with(run: OperatorFolder) -> None:
    replica = add_rounds(run, 0)
    async with observed(str(run.path), NOWHERE) as seen:
        state = await seen.state()
        assert (state.round, state.digest) == (5, seen.log.head.digest)
        assert state.state_hash == replica.state_hash()
        assert torch.equal(state.theta, replica.theta)
        assert await seen.peers() == []


async def test_a_folder_is_read_without_being_changed(run: OperatorFolder) -> None:
    def contents() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}

    before = contents()
    async with observed(str(run.path), NOWHERE) as seen:
        await seen.state()
    assert contents() == before


def test_an_earlier_round_can_be_asked_for(run: OperatorFolder) -> None:
    seen = open_run(run)
    states = [stored_state(run, seen.rules, seen.log, last_round=round_) for round_ in range(6)]
    assert [state.round for state in states] == list(range(6))
    for state, following in zip(states, range(1, 6), strict=False):
        assert state.state_hash == seen.log.commit(following).base  # one fragment: its base is the whole state's hash


def test_rounds_without_their_parts_are_left_out(run: OperatorFolder) -> None:
    seen = open_run(run)
    (run.parts / seen.log.commit(4).parts[0].result_hash.hex()).unlink()
    assert stored_state(run, seen.rules, seen.log).round == 3


def test_a_damaged_snapshot_is_passed_over_for_an_older_one(run: OperatorFolder) -> None:
    replica = add_rounds(run, 0)
    seen = open_run(run)
    write_snapshot(
        run.snapshot(5),
        run=seen.manifest.run_id,
        round_=5,
        digest=seen.log.digest(5),
        theta=replica.theta,
        momentum=replica.momentum,
        applied=replica.applied,
    )
    (run.snapshot(5) / "state.safetensors").write_bytes(b"damaged")
    state = stored_state(run, seen.rules, seen.log)
    assert (state.round, state.state_hash) == (5, replica.state_hash())


def test_a_snapshot_of_another_chain_is_passed_over(run: OperatorFolder) -> None:
    seen = open_run(run)
    other = empty_replica(seen.rules)
    write_snapshot(
        run.snapshot(5),
        run=seen.manifest.run_id,
        round_=5,
        digest=bytes(32),
        theta=other.theta,
        momentum=other.momentum,
        applied=[5],
    )
    assert stored_state(run, seen.rules, seen.log).state_hash == add_rounds(run, 0).state_hash()


def test_a_folder_without_a_state_says_so(run: OperatorFolder) -> None:
    shutil.rmtree(run.snapshots)
    seen = open_run(run)
    with pytest.raises(DataError, match="no state of the run yet"):
        stored_state(run, seen.rules, seen.log)


async def test_a_file_that_is_not_here_is_named(run: OperatorFolder) -> None:
    (run.files / "data" / "held-out.jsonl").unlink()
    seen = open_run(run)
    with pytest.raises(DataError, match=r"data/held-out\.jsonl"):
        await seen.file("data/held-out.jsonl")
    with pytest.raises(ManifestError, match="no file data/other"):
        await seen.file("data/other")


def test_another_runs_genesis_is_refused(run: OperatorFolder, tmp_path: Path) -> None:
    shutil.copy(make_run(tmp_path / "other").genesis, run.genesis)
    with pytest.raises(RecordError, match="genesis"):
        open_run(run)


def test_a_genesis_with_other_members_than_the_manifests_is_refused(run: OperatorFolder) -> None:
    operator, stranger = Identity.load(run.operator_key), Member(WORKER.peer, 0, 0, 0, True, (), bytes(32))
    genuine = Header.decode(run.genesis.read_bytes()).commit()
    commit = dataclasses.replace(genuine, members=(stranger,)).encode()
    signed = Vote(operator.peer, operator.sign(genesis_message(commit)))
    run.genesis.write_bytes(Header(commit, 0, (signed,)).encode())
    with pytest.raises(RecordError, match="bootstrap peers"):
        open_run(run)


async def test_without_a_source_the_only_run_of_this_home_is_meant(run: OperatorFolder, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(DiskError, match="there is no run"):
        await _head(None, home)
    _put_into(home, run, "first")
    assert await _head(None, home) == 5
    _put_into(home, run, "second")
    with pytest.raises(DiskError, match=r"there are 2 runs.*\n.*first.*\n.*second"):
        await _head(None, home)


async def test_a_source_that_is_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="not the folder of a run"):
        await _head(str(tmp_path), NOWHERE)
    with pytest.raises(InviteError):
        await _head("sd1nonsense", NOWHERE)


def test_an_invite_may_be_longer_than_a_files_name() -> None:
    assert is_invite("sd1" + 300 * "x")


async def _head(source: str | None, home: Path) -> int:
    async with observed(source, home) as seen:
        return seen.log.head.round


def _put_into(home: Path, run: RunFolder, name: str) -> None:
    shutil.copytree(run.path, home / "runs" / name)


def test_a_run_is_followed_over_the_network_by_its_invite(run: OperatorFolder, tmp_path: Path) -> None:
    replica = add_rounds(run, 0)
    bootstrap = Identity.load(run.identity)
    manifest = run.read_manifest()
    invite = Invite(manifest.run_id, manifest.operator_key, (f"/ip4/127.0.0.1/tcp/1/p2p/{bootstrap.peer}",))
    folder = RunFolder(tmp_path / "observed")

    async def scenario(world: SimulatedWorld) -> None:
        served = world.network(bootstrap)
        files = {bytes.fromhex(entry.blake3): run.file(entry) for entry in manifest.files}
        seen = open_run(run)
        published = RunFiles(manifest.bytes_, run.genesis.read_bytes(), files)
        follower = Follower(served, seen.rules, published, run.path, empty_replica(seen.rules), keeps_all=True)
        await follower.serve()

        online = await open_online(invite, folder, world.network(Identity.from_seed(bytes([9]) * 32)))
        assert online.log.head == seen.log.head
        assert not folder.snapshots.exists(), "a look at the log fetches no state"
        state = await online.state()
        assert (state.round, state.state_hash) == (5, replica.state_hash())
        held_out = await online.file("data/held-out.jsonl")
        assert held_out.read_bytes() == (run.files / "data" / "held-out.jsonl").read_bytes()

    run_virtual(scenario, seed=1)
    assert open_run(folder).log.head.round == 5, "what was fetched is a run's folder"


def test_a_header_with_a_forged_vote_is_not_taken_from_the_network(run: OperatorFolder, tmp_path: Path) -> None:
    bootstrap = Identity.load(run.identity)
    manifest = run.read_manifest()
    invite = Invite(manifest.run_id, manifest.operator_key, (f"/ip4/127.0.0.1/tcp/1/p2p/{bootstrap.peer}",))
    header = Header.decode((run.log / "3").read_bytes())
    forged = Header(header.commit_bytes, 1, header.votes)  # the votes are for ballot 0
    (run.log / "3").write_bytes(forged.encode())

    async def scenario(world: SimulatedWorld) -> None:
        served = world.network(bootstrap)
        files = {bytes.fromhex(entry.blake3): run.file(entry) for entry in manifest.files}
        seen = open_run(run)
        published = RunFiles(manifest.bytes_, run.genesis.read_bytes(), files)
        await Follower(served, seen.rules, published, run.path, empty_replica(seen.rules)).serve()
        network = world.network(Identity.from_seed(bytes([9]) * 32))
        with pytest.raises(DataError, match=r"a vote by .* is not valid"):
            await open_online(invite, RunFolder(tmp_path / "observed"), network)

    run_virtual(scenario, seed=1)


def test_the_report_says_what_the_log_says(run: OperatorFolder) -> None:
    report = report_of(open_run(run))
    assert (report.round, report.tokens) == (5, 5 * 64)
    assert [member.peer for member in report.members][1] == WORKER.peer
    assert report.members[1].tokens == 5 * 64
    assert [each.round for each in report.rounds] == list(range(6))
    assert report.evaluations[-1].loss == pytest.approx(4.95)
    assert json.loads(json.dumps(report_values(report)))["digest"] == open_run(run).log.head.digest.hex()
    text = "\n".join(report_lines(report))
    assert "losses    held-out 4.990" in text
    assert "to be looked at" in text
