import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.errors import IdentityError
from swarm_diloco.network.identity import (
    PRIVATE_KEY_BYTES,
    Identity,
    is_signed_by,
    is_signed_by_key,
    peer_id_of,
    public_key_of,
)

ALICE = Identity.from_seed(bytes(32))
BOB = Identity.from_seed(bytes(31) + b"\1")


# The Ed25519 vector of libp2p's specification of peer ids: a private key file, with the id that libp2p gives it.
LIBP2P_KEY_FILE = bytes.fromhex(
    "080112407e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
    "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
)
LIBP2P_PEER = "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"


def test_keys_and_ids_are_libp2ps(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(LIBP2P_KEY_FILE)
    assert Identity.load(path).peer == LIBP2P_PEER
    assert public_key_of(LIBP2P_PEER) == LIBP2P_KEY_FILE[36:]
    Identity.from_seed(LIBP2P_KEY_FILE[4:36]).save(path)
    assert path.read_bytes() == LIBP2P_KEY_FILE


@given(st.binary(min_size=32, max_size=32))
def test_the_key_comes_back_from_the_id(key: bytes) -> None:
    assert public_key_of(peer_id_of(key)) == key


@given(st.text(max_size=70) | st.text("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", max_size=70))
def test_any_text_is_no_peer_id(text: str) -> None:
    assert not is_peer_id(text)
    assert not is_signed_by(text, b"message", ALICE.sign(b"message"))


@pytest.mark.parametrize(
    "form",
    [
        "{} ",
        "{}\n",
        "{}\u3000",
        " {}",
        "1{}",
        "{}1",
    ],
)
def test_a_key_has_one_id_only(form: str) -> None:
    peer = form.format(ALICE.peer)
    assert not is_peer_id(peer)
    assert not is_signed_by(peer, b"message", ALICE.sign(b"message"))


def is_peer_id(text: str) -> bool:
    try:
        public_key_of(text)
    except ValueError:
        return False
    return True


def test_a_signature_is_its_signers_over_its_message() -> None:
    signature = ALICE.sign(b"message")
    assert len(signature) == 64
    assert is_signed_by(ALICE.peer, b"message", signature)
    assert not is_signed_by(ALICE.peer, b"other", signature)
    assert not is_signed_by(BOB.peer, b"message", signature)


@given(st.binary(max_size=80))
def test_any_bytes_are_no_signature_and_no_key(data: bytes) -> None:
    assert not is_signed_by(ALICE.peer, b"message", data)
    assert not is_signed_by_key(data, b"message", ALICE.sign(b"message"))


@given(st.integers(0, 511))
def test_a_signature_with_one_bit_changed_is_none(bit: int) -> None:
    signature = bytearray(ALICE.sign(b"message"))
    signature[bit // 8] ^= 1 << bit % 8
    assert not is_signed_by(ALICE.peer, b"message", bytes(signature))


def test_a_key_file_is_private_and_gives_the_identity_back(tmp_path: Path) -> None:
    path = tmp_path / "home" / "identity.key"
    created = Identity.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size == PRIVATE_KEY_BYTES
    loaded = Identity.load_or_create(path)
    assert loaded.peer == created.peer
    assert is_signed_by(created.peer, b"message", loaded.sign(b"message"))


DAMAGED_FILES = {
    "empty": b"",
    "cut": LIBP2P_KEY_FILE[:-1],
    "longer": LIBP2P_KEY_FILE + b"\0",
    "another kind": b"\x08\x00" + LIBP2P_KEY_FILE[2:],
    "halves of two keys": LIBP2P_KEY_FILE[:36] + ALICE.public_key,
    "huge": bytes(5000),
}


@pytest.mark.parametrize("damage", DAMAGED_FILES)
def test_a_damaged_key_file_is_refused_by_name_and_left_as_it_is(damage: str, tmp_path: Path) -> None:
    path, data = tmp_path / "identity.key", DAMAGED_FILES[damage]
    path.write_bytes(data)
    with pytest.raises(IdentityError, match=r"identity\.key .*restore it from a backup"):
        Identity.load_or_create(path)
    assert path.read_bytes() == data


def test_a_missing_key_a_folder_and_a_dangling_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "link"):
        with pytest.raises(IdentityError, match=path.name):
            Identity.load(path)
    with pytest.raises(IdentityError, match="link"):
        Identity.load_or_create(tmp_path / "link")


def test_a_locked_key_is_refused_to_another_until_it_is_unlocked(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    first, second = Identity.load_or_create(path), Identity.load_or_create(path)
    first.lock(path)
    with pytest.raises(IdentityError, match="in use by another process"):
        second.lock(path)
    first.unlock()
    first.unlock()
    second.lock(path)
    second.unlock()


@pytest.mark.swarm
def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    program = (
        "import sys; from pathlib import Path; from swarm_diloco.network.identity import Identity\n"
        "path = Path(sys.argv[1]); Identity.load_or_create(path).lock(path)\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(IdentityError, match="in use"):
            Identity.load(path).lock(path)
        holder.kill()
    identity = Identity.load(path)
    identity.lock(path)
    identity.unlock()


def test_locking_a_key_that_is_not_there_is_an_identity_error(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"nothing\.key"):
        ALICE.lock(tmp_path / "nothing.key")
