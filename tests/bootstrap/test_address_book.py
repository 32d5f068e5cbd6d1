from dataclasses import replace
from pathlib import Path

from swarm_diloco.network.identity import Identity
from swarm_diloco.network.peer_record import PeerRecord
from swarm_diloco_bootstrap.address_book import (
    MAX_AGE_MS,
    MAX_AHEAD_MS,
    MAX_DIALLED_PEERS,
    MAX_PEERS,
    SILENT_MS,
    AddressBook,
)

RUN = bytes(range(32))
NOW_MS = 1_800_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def book_in(folder: Path, *, clock: Clock | None = None, run_id: bytes = RUN) -> AddressBook:
    return AddressBook(folder / "peers", run_id, clock or Clock())


def record(identity: Identity, *, at_ms: int, address: str = "/ip4/203.0.113.7/tcp/31337") -> PeerRecord:
    return PeerRecord(
        run_id=RUN,
        peer=identity.peer,
        role="worker",
        is_leaving=False,
        round=1,
        digest=bytes(32),
        addresses=(address,) if address else (),
        client_version="0.1.0",
        issued_at_ms=at_ms,
    )


def peer(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32))


def signed(number: int, *, at_ms: int = NOW_MS, address: str = "/ip4/203.0.113.7/tcp/31337") -> bytes:
    return record(peer(number), at_ms=at_ms, address=address).signed(peer(number))


def test_addresses_survive_a_restart(tmp_path: Path):
    book_in(tmp_path).add([signed(1)])
    assert book_in(tmp_path).dial_addresses() == [f"/ip4/203.0.113.7/tcp/31337/p2p/{peer(1).peer}"]


def test_the_newer_record_of_a_peer_counts_in_whatever_order_they_come(tmp_path: Path):
    old, new = record(peer(1), at_ms=NOW_MS - 1), record(peer(1), at_ms=NOW_MS, address="/ip4/203.0.113.8/tcp/1")
    book = book_in(tmp_path)
    book.add([new.signed(peer(1)), old.signed(peer(1))])
    assert book.records == {peer(1).peer: new}


def test_who_cannot_be_dialled_is_not_in_it(tmp_path: Path):
    book = book_in(tmp_path)
    book.add([signed(1, address="")])
    assert not book.records
    assert not (tmp_path / "peers").exists()


def test_of_too_many_who_was_silent_longest_makes_room(tmp_path: Path):
    book = book_in(tmp_path)
    silent = NOW_MS - 2 * SILENT_MS
    book.add(signed(number, at_ms=silent + number) for number in range(1, MAX_PEERS + 1))
    book.add(signed(number) for number in range(MAX_PEERS + 1, MAX_PEERS + 6))
    assert set(book.records) == {peer(number).peer for number in range(6, MAX_PEERS + 6)}
    assert book_in(tmp_path).records == book.records


def test_made_up_peers_push_nobody_out_who_still_speaks(tmp_path: Path):
    """However many there are, and whatever time they claim."""
    book = book_in(tmp_path)
    book.add(signed(number, at_ms=NOW_MS - number) for number in range(1, MAX_PEERS + 1))
    before = book.records
    book.add(signed(number, at_ms=NOW_MS + MAX_AHEAD_MS) for number in range(100, 300))
    assert book.records == before


def test_a_record_from_the_future_or_of_last_year_is_left_out(tmp_path: Path):
    book = book_in(tmp_path)
    book.add([signed(1, at_ms=NOW_MS + MAX_AHEAD_MS + 1), signed(2, at_ms=2**63 - 1)])
    book.add([signed(3, at_ms=NOW_MS - MAX_AGE_MS - 1), signed(4, at_ms=0)])
    assert not book.records


def test_whom_nobody_heard_for_a_month_is_forgotten(tmp_path: Path):
    clock = Clock()
    book_in(tmp_path, clock=clock).add([signed(1)])
    clock.now_ms += MAX_AGE_MS + 1
    book = book_in(tmp_path, clock=clock)
    assert not book.records
    book.add([signed(2, at_ms=clock.now_ms)])
    assert set(book_in(tmp_path, clock=clock).records) == {peer(2).peer}


def test_a_start_dials_a_few_of_those_who_spoke_last(tmp_path: Path):
    book = book_in(tmp_path)
    book.add(signed(number, at_ms=NOW_MS - number) for number in range(1, MAX_PEERS + 1))
    dialled = [address.rpartition("/")[2] for address in book.dial_addresses()]
    assert dialled == [peer(number).peer for number in range(1, MAX_DIALLED_PEERS + 1)]


def test_a_damaged_book_is_an_empty_one(tmp_path: Path):
    path = tmp_path / "peers"
    book = book_in(tmp_path)
    book.add([signed(1)])
    path.write_bytes(path.read_bytes()[:-1])
    assert not book_in(tmp_path).records
    book.add([replace(record(peer(1), at_ms=NOW_MS + 1)).signed(peer(1))])
    assert book_in(tmp_path).records == book.records


def test_another_runs_records_do_not_come_in(tmp_path: Path):
    book = book_in(tmp_path, run_id=bytes(32))
    book.add([signed(1), b"junk"])
    assert not book.records
