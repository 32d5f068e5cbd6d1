"""Records in the DHT: who may store what, checked on bytes that anybody may have made."""

from dataclasses import dataclass, replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.network.discovery import (
    MAX_LIFETIME_SECONDS,
    NUM_SHARDS,
    OwnersOnly,
    id_of_key,
    record_key,
    record_keys,
)
from swarm_diloco.network.identity import Identity

ALICE, BOB = (Identity.from_seed(bytes([number] * 32)) for number in (1, 2))
RUN_ID = bytes(range(32))
NOW = 1_800_000_000.0
KEY = id_of_key(record_keys(RUN_ID)[0])


@dataclass(frozen=True)
class Record:
    key: bytes
    subkey: bytes
    value: bytes
    expiration_time: float


def validator(identity: Identity = BOB) -> OwnersOnly:
    return OwnersOnly(identity, RUN_ID, now=lambda: NOW)


def record_of(identity: Identity, owner: str, content: object = b"record", **changes: object) -> Record:
    """As `identity` signs it, with anything in it."""
    key = id_of_key(record_key(RUN_ID, owner))
    record = replace(Record(key, msgpack.packb(owner), msgpack.packb(content), NOW + 60.0), **changes)  # type: ignore[arg-type]
    return replace(record, value=validator(identity).sign_value(record))


def test_a_peers_own_record_is_taken_and_stripped_to_what_it_was() -> None:
    record = record_of(ALICE, ALICE.peer)
    assert validator().validate(record)
    assert msgpack.unpackb(validator().strip_value(record)) == b"record"


@pytest.mark.parametrize(
    "forged",
    [
        record_of(BOB, ALICE.peer),
        record_of(ALICE, "alice"),
        record_of(ALICE, ALICE.peer, content="text"),
        record_of(ALICE, ALICE.peer, content=bytes(4096)),
        replace(record_of(ALICE, ALICE.peer), expiration_time=NOW + 70.0),
        replace(record_of(ALICE, ALICE.peer), key=b"another key"),
        replace(record_of(ALICE, ALICE.peer), subkey=msgpack.packb(BOB.peer)),
        replace(record_of(ALICE, ALICE.peer), subkey=msgpack.packb([ALICE.peer])),
        replace(record_of(ALICE, ALICE.peer), value=msgpack.packb(b"record")),
        replace(record_of(ALICE, ALICE.peer), value=b""),
        record_of(ALICE, ALICE.peer, key=id_of_key("another key")),
        record_of(ALICE, ALICE.peer, key=id_of_key(record_key(bytes(32), ALICE.peer))),
        record_of(ALICE, ALICE.peer, subkey=b"\xd9" + bytes([len(ALICE.peer)]) + ALICE.peer.encode()[:-1] + b"x"),
        record_of(ALICE, ALICE.peer, subkey=b"\xda\x00" + bytes([len(ALICE.peer)]) + ALICE.peer.encode()),
        record_of(ALICE, ALICE.peer, value=b"\xc5\x00\x06record"),
        record_of(ALICE, ALICE.peer, expiration_time=NOW + MAX_LIFETIME_SECONDS + 1),
        record_of(ALICE, ALICE.peer, expiration_time=float("inf")),
        record_of(ALICE, ALICE.peer, expiration_time=float("nan")),
    ],
)
def test_what_its_owner_did_not_sign_as_it_is_is_refused(forged: Record) -> None:
    assert not validator().validate(forged)


@given(st.binary(max_size=100), st.binary(max_size=200), st.floats())
def test_random_bytes_are_refused_without_an_error(subkey: bytes, value: bytes, expiration_time: float) -> None:
    assert not validator().validate(Record(KEY, subkey, value, expiration_time))


def test_peers_spread_over_all_keys_of_their_own_run() -> None:
    peers = [Identity.from_seed(number.to_bytes(32, "big")).peer for number in range(200)]
    assert {record_key(RUN_ID, peer) for peer in peers} == set(record_keys(RUN_ID))
    assert len(set(record_keys(RUN_ID))) == NUM_SHARDS
    assert not set(record_keys(RUN_ID)) & set(record_keys(bytes(32)))
