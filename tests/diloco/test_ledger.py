import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.diloco.ledger import (
    MAX_COMMIT_BYTES,
    MAX_DURATION_MS,
    MAX_MEMBERS,
    MAX_TOKENS,
    Commit,
    DataRange,
    Evaluation,
    Head,
    Header,
    Kind,
    Member,
    PartRecord,
    Vote,
    degraded_message,
    digest_of,
    genesis_message,
    listed_spans,
    listed_values,
    member_bitmap,
    vote_message,
)
from swarm_diloco.diloco.records import MAX_INTEGER, hash_of, pack
from swarm_diloco.errors import RecordError

HASHES = st.binary(min_size=32, max_size=32)
COUNTS = st.integers(0, MAX_INTEGER)
TOKENS = st.integers(0, MAX_TOKENS)
PEERS = st.text("abcXYZ123", min_size=1, max_size=52)
RANGES = st.builds(
    lambda p, s, first, n: DataRange(p, s, first, first + n), *[st.integers(0, 2**40)] * 3, st.integers(1, 99)
)


def members_of(peers: list[str], draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[Member, ...]:
    def one(peer: str) -> Member:
        first, last = sorted(draw(st.tuples(TOKENS, TOKENS)))
        ranges = tuple(draw(st.lists(RANGES, max_size=3)))
        return Member(peer, draw(TOKENS), first, last, draw(st.booleans()), ranges, draw(HASHES))

    return tuple(one(peer) for peer in peers)


@st.composite
def commits(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Commit:
    kind = draw(st.sampled_from(Kind))
    members = members_of(draw(st.lists(PEERS, max_size=20, unique=True)), draw)
    senders = st.sets(st.integers(0, len(members) - 1)) if members else st.just(set[int]())
    part = st.builds(PartRecord, st.integers(0, 255), HASHES, senders.map(member_bitmap), TOKENS)
    evaluation = st.builds(Evaluation, PEERS, COUNTS, COUNTS, COUNTS)
    return Commit(
        run=draw(HASHES),
        round=0 if kind is Kind.GENESIS else draw(st.integers(1, MAX_INTEGER)),
        fragment=draw(st.integers(0, 2**16)),
        prev=draw(HASHES),
        kind=kind,
        base=b"".join(draw(st.lists(HASHES, min_size=1, max_size=4 if kind is Kind.GENESIS else 1))),
        members=members,
        parts=tuple(draw(st.lists(part, min_size=1, max_size=4))) if kind is Kind.NORMAL else (),
        next_due_ms=draw(st.integers(0, MAX_DURATION_MS)),
        wall_ms=draw(COUNTS),
        evaluation=tuple(draw(st.lists(evaluation, max_size=2))),
        absorbs=draw(st.none() | st.builds(Head, COUNTS, HASHES)),
        lever=draw(st.binary(max_size=20)),
    )


HEADERS = st.builds(
    Header,
    st.binary(max_size=50),
    COUNTS,
    st.lists(
        st.builds(Vote, PEERS, st.binary(min_size=64, max_size=64)), max_size=3, unique_by=lambda vote: vote.peer
    ).map(tuple),
    st.lists(PEERS, max_size=3).map(tuple),
)


def member(peer: str = "a", **changes: Any) -> Member:
    plain = Member(peer, 10, 0, 10, True, (DataRange(0, 0, 0, 5),), bytes(32))
    return dataclasses.replace(plain, **changes)


def commit(**changes: Any) -> Commit:
    plain = Commit(
        run=bytes(32),
        round=7,
        fragment=0,
        prev=bytes(32),
        kind=Kind.NORMAL,
        base=bytes(32),
        members=(member("a"), member("b"), member("archive", weight=0, tokens_to=0, ranges=())),
        parts=(PartRecord(0, bytes(32), b"\x03", 20), PartRecord(1, bytes(32), b"\x02", 10)),
        next_due_ms=1000,
        wall_ms=0,
    )
    return dataclasses.replace(plain, **changes)


@given(commits())
def test_a_commit_comes_back_as_it_was(original: Commit) -> None:
    assert Commit.decode(original.encode()) == original


@given(HEADERS)
def test_a_header_comes_back_as_it_was(original: Header) -> None:
    assert Header.decode(original.encode()) == original


@given(st.one_of(commits().map(Commit.encode), HEADERS.map(Header.encode)), st.data())
def test_damaged_bytes_are_refused_or_another_record_in_canonical_form(packed: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(packed) - 1))
    damaged = packed[:position] + data.draw(st.binary(max_size=3)) + packed[position + data.draw(st.integers(0, 3)) :]
    for kind in (Commit, Header):
        try:
            decoded = kind.decode(damaged)
        except RecordError:
            continue
        assert decoded.encode() == damaged


@given(st.binary(max_size=100))
def test_any_bytes_are_no_commit_and_no_header(data: bytes) -> None:
    for kind in (Commit, Header):
        with pytest.raises(RecordError):
            kind.decode(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": bytes(31)},
        {"fragment": 2**16 + 1},
        {"prev": b""},
        {"round": 0},
        {"kind": Kind.GENESIS},
        {"kind": Kind.VOID},
        {"parts": ()},
        {"base": bytes(64)},
        {"members": (member("a"), member("a"))},
        {"members": (member(weight=MAX_TOKENS + 1),)},
        {"members": (member(tokens_from=11),)},
        {"members": (member(tokens_to=MAX_TOKENS + 1),)},
        {"members": (member(knock_hash=b""),)},
        {"members": (member(ranges=(DataRange(0, 0, 5, 5),)),)},
        {"members": (member(ranges=(DataRange(0, 0, 0, 1),) * 257),)},
        {"members": tuple(member(str(i)) for i in range(MAX_MEMBERS + 1))},
        {"parts": (PartRecord(256, bytes(32), b"", 0),)},
        {"parts": (PartRecord(0, bytes(32), bytes(MAX_MEMBERS // 8 + 1), 0),)},
        {"next_due_ms": MAX_DURATION_MS + 1},
        {"evaluation": (Evaluation("e", 0, 0, 0),) * 17},
        {"lever": bytes(4097)},
    ],
    ids=lambda changes: f"{next(iter(changes))} {str(next(iter(changes.values())))[:30]}",
)
def test_a_commit_that_breaks_a_bound_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        Commit.decode(commit(**changes).encode())


@pytest.mark.parametrize("position", range(13))
def test_a_commit_with_a_field_missing_or_of_another_type_is_refused(position: int) -> None:
    fields: list[Any] = msgpack.unpackb(commit().encode())
    for changed in ([*fields[:position], *fields[position + 1 :]], [*fields[:position], "?", *fields[position + 1 :]]):
        with pytest.raises(RecordError):
            Commit.decode(pack(changed))
    with pytest.raises(RecordError, match="too many"):
        Commit.decode(pack([*fields, 0]))


def test_a_commit_over_the_limit_is_refused() -> None:
    large = commit(members=tuple(member(str(i), ranges=(DataRange(0, 0, 2**40, 2**41),) * 200) for i in range(600)))
    assert len(large.encode()) > MAX_COMMIT_BYTES
    with pytest.raises(RecordError, match="at most"):
        Commit.decode(large.encode())


def test_the_digest_is_of_the_commit_alone() -> None:
    data = commit().encode()
    one, other = Header(data, 0, ()), Header(data, 3, (Vote("a", bytes(64)),), ("a",))
    assert one.digest == other.digest == digest_of(data) == hash_of(data)
    assert one.commit() == commit()


def test_messages_to_sign_differ_in_every_argument() -> None:
    run, digest = bytes(32), hash_of(b"commit")
    messages = [
        vote_message(run, 1, 0, digest),
        vote_message(run, 2, 0, digest),
        vote_message(run, 1, 1, digest),
        vote_message(run, 1, 0, bytes(32)),
        vote_message(digest, 1, 0, digest),
        degraded_message(run, 1, 0, digest, []),
        degraded_message(run, 1, 0, digest, ["a"]),
        genesis_message(b"commit"),
        genesis_message(b"other"),
    ]
    assert len(set(messages)) == len(messages)


@given(st.lists(st.integers(0, 100)))
def test_a_bitmap_lists_its_members_and_no_other(members: list[int]) -> None:
    part = PartRecord(0, bytes(32), member_bitmap(members), 1)
    assert [i for i in range(110) if part.lists(i)] == sorted(set(members))
    assert not part.senders.endswith(b"\0")


def test_listed_values_count_the_parts_that_hold_a_contribution() -> None:
    sizes = [100, 30]
    assert [listed_values(commit(), peer, sizes) for peer in ("a", "b", "archive", "stranger")] == [100, 130, 0, 0]
    slices = [slice(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]
    for peer in ("a", "b", "archive", "stranger"):
        spans = listed_spans(commit(), peer, slices)
        assert sum(end - first for first, end in spans) == listed_values(commit(), peer, sizes)
        assert all(earlier[1] < later[0] for earlier, later in pairwise(spans)), "spans that touch are one"


def test_workers_and_tokens_of_a_commit() -> None:
    assert commit().workers == ("a", "b")
    assert commit().tokens == 20
    assert commit().member("b") == member("b")
    assert commit().member("c") is None


def test_a_header_in_which_a_peer_votes_twice_is_refused() -> None:
    twice = Header(b"commit", 0, (Vote("a", bytes(64)), Vote("a", bytes(64)))).encode()
    with pytest.raises(RecordError, match="votes twice"):
        Header.decode(twice)


@pytest.mark.parametrize("senders", [b"\x03\x00", b"\x08", b"\x00"])
def test_a_set_of_senders_has_one_form_and_holds_members_only(senders: bytes) -> None:
    with pytest.raises(RecordError, match=r"zero bytes|no member"):
        Commit.decode(commit(parts=(PartRecord(0, bytes(32), senders, 20),)).encode())
