"""genesis: only the operator's own commit 0 of this very run is taken."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_run import BOOTSTRAP, OPERATOR, example_manifest, example_run_settings
from swarm_diloco.diloco.ledger import Commit, Head, Header, Member, Vote, genesis_message
from swarm_diloco.errors import RecordError
from swarm_diloco.genesis import NO_HASH, make_genesis, verify_genesis
from swarm_diloco.network.identity import Identity

MANIFEST = example_manifest()
BASE = bytes(range(32))
HEADER = make_genesis(MANIFEST, OPERATOR, bases=[BASE], first_due_ms=0, wall_ms=1)
STRANGER = Identity.from_seed(bytes([3]) * 32)


def signed(commit: Commit, *, by: Identity = OPERATOR) -> bytes:
    data = commit.encode()
    return Header(data, 0, (Vote(by.peer, by.sign(genesis_message(data))),)).encode()


def test_a_genesis_is_verified_and_names_the_bootstrap_peers_and_the_state() -> None:
    commit = verify_genesis(HEADER.encode(), MANIFEST).commit()
    assert [member.peer for member in commit.members] == [BOOTSTRAP.peer]
    assert (commit.round, commit.base, commit.members[0].weight) == (0, BASE, 0)


def test_another_manifests_genesis_is_refused() -> None:
    other = example_manifest(run=example_run_settings(name="another"))
    with pytest.raises(RecordError, match="this run"):
        verify_genesis(HEADER.encode(), other)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"run": NO_HASH}, "this run"),
        ({"prev": BASE}, "follow"),
        ({"fragment": 1}, "follow"),
        ({"base": BASE * 2}, "one state a fragment"),
        ({"base": b""}, "one a fragment"),
        ({"members": ()}, "bootstrap peers"),
        ({"members": (Member(STRANGER.peer, 0, 0, 0, True, (), NO_HASH),)}, "bootstrap peers"),
        ({"members": (Member(BOOTSTRAP.peer, 5, 0, 5, True, (), NO_HASH),)}, "bootstrap peers"),
        ({"absorbs": Head(1, BASE)}, "no genesis has"),
        ({"lever": b"x"}, "no genesis has"),
    ],
)
def test_even_the_operator_cannot_sign_what_is_no_genesis(change: dict[str, object], what: str) -> None:
    with pytest.raises(RecordError, match=what):
        verify_genesis(signed(replace(HEADER.commit(), **change)), MANIFEST)  # type: ignore[arg-type]


def test_a_strangers_signature_is_refused() -> None:
    with pytest.raises(RecordError, match="operator"):
        verify_genesis(signed(HEADER.commit(), by=STRANGER), MANIFEST)


@pytest.mark.parametrize(
    "change",
    [
        {"votes": ()},
        {"votes": (*HEADER.votes, *HEADER.votes)},
        {"votes": (Vote(OPERATOR.peer, bytes(64)),)},
        {"ballot": 1},
        {"degraded": (BOOTSTRAP.peer,)},
    ],
)
def test_another_certificate_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(RecordError, match=r"genesis|votes twice"):
        verify_genesis(replace(HEADER, **change).encode(), MANIFEST)  # type: ignore[arg-type]


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        verify_genesis(data, MANIFEST)


@given(st.integers(0, len(HEADER.encode()) - 1), st.integers(1, 255))
def test_one_changed_byte_is_noticed(at: int, change: int) -> None:
    data = bytearray(HEADER.encode())
    data[at] ^= change
    with pytest.raises(RecordError):
        verify_genesis(bytes(data), MANIFEST)


def test_only_the_manifests_operator_makes_its_genesis() -> None:
    with pytest.raises(ValueError, match="not the operator's"):
        make_genesis(MANIFEST, STRANGER, bases=[BASE], first_due_ms=0, wall_ms=1)
    with pytest.raises(ValueError, match="one a fragment"):
        make_genesis(MANIFEST, OPERATOR, bases=[], first_due_ms=0, wall_ms=1)
