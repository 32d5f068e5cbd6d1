from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.diloco.records import pack
from swarm_diloco.errors import RecordError
from swarm_diloco.network.discovery import MAX_RECORD_BYTES
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.peer_record import MAX_ADDRESSES, SIGNED_BEFORE, PeerRecord, verified_records

RUN = bytes(range(32))
AUTHOR, OTHER = Identity.from_seed(b"a" * 32), Identity.from_seed(b"o" * 32)
RECORD = PeerRecord(
    run_id=RUN,
    peer=AUTHOR.peer,
    role="worker",
    is_leaving=False,
    round=7,
    digest=bytes(32),
    addresses=("/ip4/203.0.113.7/tcp/31337", "/ip6/2001:db8::1/tcp/31337"),
    client_version="0.1.0",
    issued_at_ms=1_700_000_000_000,
)


def test_a_record_reads_back_as_it_was_signed():
    assert PeerRecord.read(RECORD.signed(AUTHOR), run_id=RUN) == RECORD


def test_a_record_with_many_long_addresses_still_fits_into_the_dht():
    long = tuple(f"/dns4/{'x' * 140}{number}/tcp/31337" for number in range(100))
    data = replace(RECORD, addresses=("/dns4/" + "y" * 200 + "/tcp/1", *long)).signed(AUTHOR)
    assert len(data) <= MAX_RECORD_BYTES
    assert PeerRecord.read(data, run_id=RUN).addresses == long[:MAX_ADDRESSES]


@pytest.mark.parametrize("address", ["/dns4/bücher.example/tcp/1", "/dns4/\x1b[31m/tcp/1", "/dns4/a b/tcp/1", ""])
def test_an_address_that_not_every_terminal_shows_is_neither_told_nor_believed(address: str):
    data = replace(RECORD, addresses=(address, *RECORD.addresses)).signed(AUTHOR)
    assert PeerRecord.read(data, run_id=RUN) == RECORD
    body, _ = _split(data)
    fields = msgpack.unpackb(body)
    fields[7] = [[address.encode()]]
    body = pack(fields)
    with pytest.raises(RecordError, match="no address"):
        PeerRecord.read(pack([body, AUTHOR.sign(SIGNED_BEFORE + body)]), run_id=RUN)


def test_another_runs_record_is_refused():
    with pytest.raises(RecordError, match="another run"):
        PeerRecord.read(RECORD.signed(AUTHOR), run_id=bytes(32))


def test_a_record_that_names_another_peer_is_refused():
    """Somebody signs with its own key what claims to be the author's."""
    body, signature = _split(RECORD.signed(AUTHOR))
    forged = pack([body, OTHER.sign(body)])
    with pytest.raises(RecordError, match="not signed"):
        PeerRecord.read(forged, run_id=RUN)
    assert len(signature) == 64


@given(st.integers(0, len(RECORD.signed(AUTHOR)) - 1), st.integers(1, 255))
def test_a_changed_byte_anywhere_is_noticed(where: int, change: int):
    data = bytearray(RECORD.signed(AUTHOR))
    data[where] ^= change
    with pytest.raises(RecordError):
        PeerRecord.read(bytes(data), run_id=RUN)


@given(st.binary(max_size=300))
def test_bytes_from_anybody_are_read_or_refused(data: bytes):
    with pytest.raises(RecordError):
        PeerRecord.read(data, run_id=RUN)


def test_a_look_up_keeps_only_what_is_right_and_its_owners():
    mine = RECORD.signed(AUTHOR)
    found = {AUTHOR.peer: mine, OTHER.peer: mine, "12D3KooWnobody": b"junk"}
    assert verified_records(found, RUN) == {AUTHOR.peer: RECORD}


def _split(data: bytes) -> tuple[bytes, bytes]:
    body, signature = msgpack.unpackb(data)
    return body, signature
