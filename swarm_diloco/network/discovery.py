"""How a run's peers publish their records in the DHT: one key for each of 16 groups of peers, a sub-key a peer, signed.

A key with more than about a hundred sub-keys becomes slow, and with a thousand fails (measured). Without the signature
anybody could store something under another's sub-key that expires later, and so keep the owner out for good. Nothing
but the run's own keys is taken, each peer's record at its own key alone and for an hour at most: what a stranger can
make others keep is bounded.
"""

import hashlib
import struct
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import msgpack
from blake3 import blake3

from swarm_diloco.network.identity import Identity, is_signed_by

MAX_RECORD_BYTES = 2048
NUM_SHARDS = 16  # for 64 sub-keys a key and 1,000 peers
MAX_SUBKEYS = 128  # that a peer keeps of one key; 64 are meant, and hashes are uneven
MAX_LIFETIME_SECONDS = 3600.0
SIGNATURE_BYTES = 64
NUM_REMEMBERED_CHECKS = 8192  # a look-up brings each record from up to 5 replicas; a check takes 0.13 ms


def record_key(run_id: bytes, peer: str) -> str:
    """The key under which `peer` publishes."""
    return record_keys(run_id)[blake3(peer.encode()).digest()[0] % NUM_SHARDS]


def record_keys(run_id: bytes) -> Sequence[str]:
    """All keys of a run."""
    return tuple(f"{run_id.hex()[:16]}.peers.{shard}" for shard in range(NUM_SHARDS))


def id_of_key(key: str) -> bytes:
    """Where in the DHT a key lies, as hivemind computes it."""
    return hashlib.sha1(msgpack.packb(key), usedforsecurity=False).digest()


class StoredRecord(Protocol):
    """What the DHT stores: hivemind's DHTRecord. Sub-key and value are MessagePack."""

    key: bytes
    subkey: bytes
    value: bytes
    expiration_time: float


class OwnersOnly:
    """A record validator of hivemind's: takes a record only from the peer whose id its sub-key is.

    A stored value is the packed record (bytes), followed by its owner's signature over key, sub-key, record and expiry.
    """

    def __init__(self, identity: Identity, run_id: bytes, now: Callable[[], float] = time.time) -> None:
        self._identity, self._run_id, self._now = identity, run_id, now

    def sign_value(self, record: StoredRecord) -> bytes:
        return record.value + self._identity.sign(_message(record, record.value))

    def strip_value(self, record: StoredRecord) -> bytes:
        return record.value[:-SIGNATURE_BYTES]

    def validate(self, record: StoredRecord) -> bool:
        if not isinstance(record.expiration_time, float):  # within a dictionary it is what a peer has packed
            return False
        if not record.expiration_time <= self._now() + MAX_LIFETIME_SECONDS:
            return False
        return _is_owners(self._run_id, record.key, record.subkey, record.value, record.expiration_time)


def _message(record: StoredRecord, value: bytes) -> bytes:
    return _signed_bytes(record.key, record.subkey, value, record.expiration_time)


def _signed_bytes(key: bytes, subkey: bytes, value: bytes, expiration_time: float) -> bytes:
    expiry = struct.pack(">d", expiration_time)
    return b"swarm-diloco.peer-record.1" + blake3(key).digest() + blake3(subkey).digest() + expiry + value


@lru_cache(maxsize=NUM_REMEMBERED_CHECKS)
def _is_owners(run_id: bytes, key: bytes, subkey: bytes, value: bytes, expiration_time: float) -> bool:
    if len(value) > MAX_RECORD_BYTES + 8 + SIGNATURE_BYTES or len(subkey) > 100:
        return False
    packed, signature = value[:-SIGNATURE_BYTES], value[-SIGNATURE_BYTES:]
    try:
        peer, content = msgpack.unpackb(subkey), msgpack.unpackb(packed)
    except (ValueError, msgpack.UnpackException):
        return False
    if not isinstance(peer, str) or not isinstance(content, bytes):
        return False
    if msgpack.packb(peer) != subkey or msgpack.packb(content) != packed or id_of_key(record_key(run_id, peer)) != key:
        return False
    return is_signed_by(peer, _signed_bytes(key, subkey, packed, expiration_time), signature)
