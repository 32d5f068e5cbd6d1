from dataclasses import replace
from pathlib import Path

from swarm_diloco.network.identity import Identity
from swarm_diloco.network.peer_record import PeerRecord
from swarm_diloco_bootstrap.address_book import MAX_PEERS, AddressBook

RUN = bytes(range(32))


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


def test_addresses_survive_a_restart(tmp_path: Path):
    path = tmp_path / "peers"
    AddressBook(path, RUN).add([record(peer(1), at_ms=1).signed(peer(1))])
    assert AddressBook(path, RUN).dial_addresses() == [f"/ip4/203.0.113.7/tcp/31337/p2p/{peer(1).peer}"]


def test_the_newer_record_of_a_peer_counts_in_whatever_order_they_come(tmp_path: Path):
    old, new = record(peer(1), at_ms=1), record(peer(1), at_ms=2, address="/ip4/203.0.113.8/tcp/1")
    book = AddressBook(tmp_path / "peers", RUN)
    book.add([new.signed(peer(1)), old.signed(peer(1))])
    assert book.records == {peer(1).peer: new}


def test_who_cannot_be_dialled_is_not_in_it(tmp_path: Path):
    book = AddressBook(tmp_path / "peers", RUN)
    book.add([record(peer(1), at_ms=1, address="").signed(peer(1))])
    assert not book.records
    assert not (tmp_path / "peers").exists()


def test_of_too_many_the_newest_are_kept(tmp_path: Path):
    book = AddressBook(tmp_path / "peers", RUN)
    book.add(record(peer(number), at_ms=number).signed(peer(number)) for number in range(1, MAX_PEERS + 6))
    assert set(book.records) == {peer(number).peer for number in range(6, MAX_PEERS + 6)}
    assert AddressBook(tmp_path / "peers", RUN).records == book.records


def test_a_damaged_book_is_an_empty_one(tmp_path: Path):
    path = tmp_path / "peers"
    book = AddressBook(path, RUN)
    book.add([record(peer(1), at_ms=1).signed(peer(1))])
    path.write_bytes(path.read_bytes()[:-1])
    assert not AddressBook(path, RUN).records
    book.add([replace(record(peer(1), at_ms=2)).signed(peer(1))])
    assert AddressBook(path, RUN).records == book.records


def test_another_runs_records_do_not_come_in(tmp_path: Path):
    book = AddressBook(tmp_path / "peers", bytes(32))
    book.add([record(peer(1), at_ms=1).signed(peer(1)), b"junk"])
    assert not book.records
