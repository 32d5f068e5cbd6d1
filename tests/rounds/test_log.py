"""The log on disk: what is damaged, cut or another's ends it there, and parts are right or not there."""

import shutil
from pathlib import Path

import pytest

from small_swarm import SmallPeer, genesis_of, identity, played, rules_for
from swarm_diloco.diloco.ledger import Header, Kind, Vote, genesis_message
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.errors import DataError, DiskError, RecordError
from swarm_diloco.rounds.log import Log, PartStore, verify_genesis

RULES = rules_for()
GENESIS = genesis_of(RULES, [identity("boot").peer])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> list[SmallPeer]:
    return played(tmp_path_factory.mktemp("run"), 6)


@pytest.fixture
def folder(run: list[SmallPeer], tmp_path: Path) -> Path:
    shutil.copytree(run[0].folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_log_opens_as_it_was_left(run: list[SmallPeer], folder: Path) -> None:
    log = Log(folder, RULES, GENESIS)
    assert log.head.round == 6
    for round_, (digest, _) in run[0].states.items():
        assert log.digest(round_) == digest
    assert log.totals.tokens == sum(log.commit(round_).tokens for round_ in range(7))
    assert log.totals.rounds_by_peer[identity("ann").peer] == 6
    assert log.applied_after(6) == (6,)
    assert log.applied_after(4) == (4,)
    assert log.applied_after(0) == (0,)
    assert [commit.round for commit in log.newest(3)] == [4, 5, 6]


@pytest.mark.parametrize("damage", [b"", b"rubbish", bytes(2**23)])
def test_a_damaged_first_header_is_written_anew(folder: Path, damage: bytes) -> None:
    (folder / "log" / "0").write_bytes(damage)
    log = Log(folder, RULES, GENESIS)
    assert log.head.round == 6
    assert log.header_bytes(0) == GENESIS


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "empty", "another's", "too long"])
def test_a_damaged_header_ends_the_log_there_and_what_comes_after_can_be_appended_again(
    folder: Path, damage: str
) -> None:
    whole = Log(folder, RULES, GENESIS)
    headers = [whole.header_bytes(round_) for round_ in range(7)]
    path = folder / "log" / "4"
    data = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(data[:-1])
        case "flipped":
            path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "another's":
            path.write_bytes(headers[5])
        case "too long":
            path.write_bytes(data + bytes(2**21))
    log = Log(folder, RULES, GENESIS)
    assert log.head.round == 3
    for header in headers[4:]:
        log.append(Header.decode(header))
    assert Log(folder, RULES, GENESIS).head == whole.head


def test_rounds_that_are_not_there_are_said_so(folder: Path) -> None:
    log = Log(folder, RULES, GENESIS)
    for round_ in (7, -1, 10**9):
        with pytest.raises(DiskError, match="has no round"):
            log.header_bytes(round_)


def test_a_genesis_counts_only_if_the_operator_signed_it_for_this_run() -> None:
    operator = identity("operator")
    header = verify_genesis(GENESIS, run_id=RULES.run_id, operator_key=operator.public_key)
    assert header.commit().kind is Kind.GENESIS
    with pytest.raises(RecordError):
        verify_genesis(GENESIS, run_id=hash_of(b"another"), operator_key=operator.public_key)
    with pytest.raises(RecordError):
        verify_genesis(GENESIS, run_id=RULES.run_id, operator_key=identity("ann").public_key)
    ann, signed = identity("ann"), genesis_message(header.commit_bytes)
    for vote in (
        Vote(operator.peer, ann.sign(signed)),
        Vote(ann.peer, ann.sign(signed)),
        Vote("nobody", operator.sign(signed)),
    ):
        forged = Header(header.commit_bytes, 0, (vote,)).encode()
        with pytest.raises(RecordError):
            verify_genesis(forged, run_id=RULES.run_id, operator_key=operator.public_key)
    for cut in range(0, len(GENESIS), 7):
        with pytest.raises(RecordError):
            verify_genesis(GENESIS[:cut], run_id=RULES.run_id, operator_key=operator.public_key)


def test_old_parts_are_dropped_and_newer_ones_kept(folder: Path) -> None:
    log = Log(folder, RULES, GENESIS)
    log.prune_parts(5)
    old, newer = (
        {part.result_hash for r in rounds for part in log.commit(r).parts} for rounds in ((1, 2, 3, 4), (5, 6))
    )
    assert old - newer
    assert all(log.parts.get(part_hash) is None for part_hash in old - newer)
    assert all(log.parts.get(part_hash) is not None for part_hash in newer)


def test_a_damaged_part_is_removed_and_not_given_to_anybody(folder: Path) -> None:
    log = Log(folder, RULES, GENESIS)
    part_hash = log.commit(6).parts[0].result_hash
    path = folder / "parts" / part_hash.hex()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert log.parts.get(part_hash) is None
    assert not path.exists()


def test_a_part_is_held_until_it_is_durable_or_dropped(tmp_path: Path) -> None:
    store = PartStore(tmp_path / "parts")
    kept, dropped = store.hold(b"kept"), store.hold(b"dropped")
    store.make_durable([kept])
    store.drop_held()
    assert store.get(kept) == b"kept"
    assert store.get(dropped) is None
    store.make_durable([kept])  # it is: whoever dropped it from memory meanwhile
    with pytest.raises(DataError, match="no longer here"):
        store.make_durable([dropped])
    store.hold(b"kept")
    store.prune([])
    store.drop([kept])
    assert store.get(kept) is None
