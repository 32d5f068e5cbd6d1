"""How a run's peers publish their records in the DHT: one key for each of 16 groups of peers, a sub-key a peer, signed.

A key with more than about a hundred sub-keys becomes slow, and with a thousand fails (measured). Without the signature
anybody could store something under another's sub-key that expires later, and so keep the owner out for good.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import msgpack
from blake3 import blake3

from swarm_diloco.network.identity import Identity, is_signed_by

MAX_RECORD_BYTES = 2048
NUM_SHARDS = 16  # for 64 sub-keys a key and 1,000 peers
SIGNATURE_BYTES = 64
NUM_REMEMBERED_CHECKS = 8192  # a look-up brings each record from up to 5 replicas; a check takes 0.13 ms


def record_key(run_id: bytes, peer: str) -> str:
    """The key under which `peer` publishes."""
    return record_keys(run_id)[blake3(peer.encode()).digest()[0] % NUM_SHARDS]


def record_keys(run_id: bytes) -> Sequence[str]:
    """All keys of a run."""
    return tuple(f"{run_id.hex()[:16]}.peers.{shard}" for shard in range(NUM_SHARDS))


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

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def sign_value(self, record: StoredRecord) -> bytes:
        return record.value + self._identity.sign(_message(record, record.value))

    def strip_value(self, record: StoredRecord) -> bytes:
        return record.value[:-SIGNATURE_BYTES]

    def validate(self, record: StoredRecord) -> bool:
        return _is_owners(record.key, record.subkey, record.value, record.expiration_time)


def _message(record: StoredRecord, value: bytes) -> bytes:
    return _signed_bytes(record.key, record.subkey, value, record.expiration_time)


def _signed_bytes(key: bytes, subkey: bytes, value: bytes, expiration_time: float) -> bytes:
    expiry = struct.pack(">d", expiration_time)
    return b"swarm-diloco.peer-record.1" + blake3(key).digest() + blake3(subkey).digest() + expiry + value


@lru_cache(maxsize=NUM_REMEMBERED_CHECKS)
def _is_owners(key: bytes, subkey: bytes, value: bytes, expiration_time: float) -> bool:
    if len(value) > MAX_RECORD_BYTES + 8 + SIGNATURE_BYTES or len(subkey) > 100:
        return False
    packed, signature = value[:-SIGNATURE_BYTES], value[-SIGNATURE_BYTES:]
    try:
        peer, content = msgpack.unpackb(subkey), msgpack.unpackb(packed)
    except (ValueError, msgpack.UnpackException):
        return False
    if not isinstance(peer, str) or not isinstance(content, bytes):
        return False
    return is_signed_by(peer, _signed_bytes(key, subkey, packed, expiration_time), signature)
