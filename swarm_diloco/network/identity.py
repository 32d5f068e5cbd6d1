"""Who a peer is: an Ed25519 key whose public half is the libp2p peer id.

libp2p puts an Ed25519 public key into the peer id itself (identity multihash of its protobuf form), so a signature is
checked from the id alone, offline. p2pd reads the same file.
"""

import fcntl
import os
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from swarm_diloco.disk import write_durably
from swarm_diloco.errors import IdentityError

PEER_ID_PREFIX = bytes.fromhex("002408011220")  # identity multihash, 36 bytes: PublicKey{Ed25519, 32 bytes}
PRIVATE_KEY_PREFIX = bytes.fromhex("08011240")  # protobuf PrivateKey{Ed25519, 64 bytes: seed, public key}
PRIVATE_KEY_BYTES = len(PRIVATE_KEY_PREFIX) + 64


def peer_id_of(public_key: bytes) -> str:
    """The libp2p peer id (base58, "12D3Koo…") of a raw 32-byte Ed25519 public key."""
    encoded: bytes = base58.b58encode(PEER_ID_PREFIX + public_key)
    return encoded.decode()


def public_key_of(peer: str) -> bytes:
    """The raw public key inside a peer id. Raises ValueError if the id is not an Ed25519 one."""
    if len(peer) > 64:
        raise ValueError(f"not a peer id: {len(peer)} characters")
    decoded: bytes = base58.b58decode(peer)
    if len(decoded) != len(PEER_ID_PREFIX) + 32 or not decoded.startswith(PEER_ID_PREFIX):
        raise ValueError(f"not the id of an Ed25519 peer: {peer}")
    public_key = decoded[len(PEER_ID_PREFIX) :]
    if peer_id_of(public_key) != peer:  # base58 also reads an id with blanks at its end: one key, one name
        raise ValueError(f"not a peer id as it is written: {peer!r}")
    return public_key


def is_signed_by(peer: str, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is the peer's over `message`; False for a malformed id or signature."""
    try:
        return is_signed_by_key(public_key_of(peer), message, signature)
    except ValueError:
        return False


def is_signed_by_key(public_key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class Identity:
    """One private key. `peer` is its peer id; the operator's key is one too, of which only `public_key` is used."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key().public_bytes_raw()
        self.peer = peer_id_of(self.public_key)
        self._lock: int | None = None

    @classmethod
    def generate(cls) -> "Identity":
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> "Identity":
        """A key made from 32 given bytes, for tests and simulation."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load(cls, path: Path) -> "Identity":
        """Read a key file as p2pd writes it. Raises IdentityError naming the file."""
        if path.is_dir():
            raise IdentityError(f"{path} is a folder, not a key file")
        try:
            data = path.read_bytes() if path.stat().st_size <= 4096 else b""
        except OSError as error:
            raise IdentityError(f"cannot read the key {path}: {error.strerror or error}") from error
        if len(data) != PRIVATE_KEY_BYTES or not data.startswith(PRIVATE_KEY_PREFIX):
            raise IdentityError(
                f"{path} is not an Ed25519 key of ours (wrong form, {len(data)} bytes); restore it from a backup. "
                "It was left as it is"
            )
        identity = cls(Ed25519PrivateKey.from_private_bytes(data[4:36]))
        if identity.public_key != data[36:]:
            raise IdentityError(f"{path} is damaged (its two halves do not match); restore it from a backup")
        return identity

    @classmethod
    def load_or_create(cls, path: Path) -> "Identity":
        if path.exists() or path.is_symlink():
            return cls.load(path)
        identity = cls.generate()
        identity.save(path)
        return identity

    def save(self, path: Path) -> None:
        write_durably(path, PRIVATE_KEY_PREFIX + self._key.private_bytes_raw() + self.public_key, mode=0o600)

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        return self._key.sign(message)

    def lock(self, path: Path) -> None:
        """Hold the key file for this process until it ends. Raises IdentityError if another process holds it."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise IdentityError(f"cannot lock the key {path}: {error.strerror or error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise IdentityError(
                f"the identity {path} is in use by another process; stop it, or give this one its own home (--home)"
            ) from error
        self._lock = descriptor

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
