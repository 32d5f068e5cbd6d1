"""Strategies for every value that is hashed, signed, sent or stored, made from the types of the fields.

A field is drawn by its type; SHAPES says more where the type does not: what is a hash, what has a bound, what two
fields have to do with each other.
"""

import dataclasses
import hashlib
import types
import unicodedata
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from swarm_diloco.diloco.ledger import (
    MAX_DURATION_MS,
    MAX_TOKENS,
    Commit,
    DataRange,
    Evaluation,
    Header,
    Kind,
    Member,
    PartRecord,
    Vote,
    member_bitmap,
)
from swarm_diloco.diloco.records import MAX_INTEGER
from swarm_diloco.network import messages
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.messages import MAX_BALLOT, Knock, Plan, PlannedPart, VoteCast

Strategy = st.SearchStrategy[Any]

MAX_DRAWN = 3  # entries of a list
COUNTS = st.integers(0, MAX_INTEGER)
TOKENS = st.integers(0, MAX_TOKENS)
HASHES = st.binary(min_size=32, max_size=32)
SIGNATURES = st.binary(min_size=64, max_size=64)
TEXTS = (
    st.text(max_size=20)
    .map(lambda text: unicodedata.normalize("NFC", text))
    .filter(lambda text: len(text.encode("utf-8", "replace")) <= 64 and text.isprintable())
)
IDENTITY_LIST = [Identity.from_seed(hashlib.sha256(bytes([number])).digest()) for number in range(10)]
PEERS = st.sampled_from([identity.peer for identity in IDENTITY_LIST])
BITMAPS = st.sets(st.integers(0, 40)).map(member_bitmap)
NORMAL_BALLOTS = st.integers(0, min(MAX_BALLOT, 2**32 - 1))
DEGRADED_BALLOTS = st.integers(min(MAX_BALLOT, 2**32), MAX_BALLOT)

BY_NAME: dict[str, Strategy] = {  # wherever a field of this name stands
    "peer": PEERS,
    "candidate": PEERS,
    "run": HASHES,
    "run_id": HASHES,
    "base": HASHES,
    "prev": HASHES,
    "digest": HASHES,
    "result_hash": HASHES,
    "commit_digest": HASHES,
    "knock_hash": HASHES,
    "signature": SIGNATURES,
    "senders": BITMAPS,
    "attempt": st.integers(0, 255),
    "fragment": st.integers(0, 2**16),
    "part": st.integers(0, 2**14),
    "ballot": NORMAL_BALLOTS,
    "weight": TOKENS,
    "weight_sum": TOKENS,
    "close_in_ms": st.integers(0, 86_400_000),
    "deadline_in_ms": st.integers(0, 86_400_000),
    "next_due_ms": st.integers(0, MAX_DURATION_MS),
}


def values_of(hint: Any, name: str = "") -> Strategy:
    """What a field of this type, and perhaps of this name, may hold."""
    if name in BY_NAME:
        return BY_NAME[name]
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        if inner[-1] is Ellipsis:
            return st.lists(values_of(inner[0]), max_size=MAX_DRAWN).map(tuple)
        return st.tuples(*map(values_of, inner))
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of(*map(values_of, get_args(hint)))
    if dataclasses.is_dataclass(hint):
        return records_of(hint)
    plain: dict[Any, Strategy] = {
        int: COUNTS,
        bool: st.booleans(),
        bytes: st.binary(max_size=60),
        str: TEXTS,
        type(None): st.none(),
    }
    return plain[hint]


def records_of(kind: Any) -> Strategy:
    """Values of a record's class."""
    if kind in SHAPES:
        return SHAPES[kind]()
    hints = get_type_hints(kind)
    return st.builds(
        kind, **{field.name: values_of(hints[field.name], field.name) for field in dataclasses.fields(kind)}
    )


def _data_ranges() -> Strategy:
    numbers = st.integers(0, 2**62)
    return st.builds(
        lambda data_pass, shard, ends: DataRange(data_pass, shard, min(ends), max(ends) + 1),
        numbers,
        numbers,
        st.tuples(numbers, numbers),
    )


def _counters() -> Strategy:
    """(from, to] of a member's token counter."""
    return st.tuples(TOKENS, TOKENS).map(sorted)


def _members() -> Strategy:
    return st.builds(
        lambda peer, weight, counter, reachable, ranges, knock_hash: Member(
            peer, weight, *counter, reachable, ranges, knock_hash
        ),
        PEERS,
        TOKENS,
        _counters(),
        st.booleans(),
        values_of(tuple[DataRange, ...]),
        HASHES,
    )


def _knocks() -> Strategy:
    hints = get_type_hints(Knock)
    special = {"tokens_from", "tokens_to", "vote", "degraded_vote"}
    fields = {name: values_of(hint, name) for name, hint in hints.items() if name not in special}
    votes = {
        name: st.none() | st.builds(VoteCast, ballots, st.binary(max_size=60))
        for name, ballots in (("vote", NORMAL_BALLOTS), ("degraded_vote", DEGRADED_BALLOTS))
        if name in hints
    }
    return st.builds(
        lambda counter, **given: Knock(tokens_from=counter[0], tokens_to=counter[1], **given),
        _counters(),
        **fields,
        **votes,
    )


def _plans() -> Strategy:
    return st.lists(st.tuples(PEERS, TOKENS), min_size=1, max_size=4).flatmap(
        lambda members: st.builds(
            Plan,
            st.just(tuple(members)),
            st.lists(
                st.builds(PlannedPart, st.integers(0, len(members) - 1), st.integers(0, 255), BITMAPS), max_size=4
            ).map(tuple),
            BY_NAME["close_in_ms"],
            BY_NAME["deadline_in_ms"],
        )
    )


@st.composite
def commits(draw: Callable[[Strategy], Any]) -> Commit:
    """Commits in the form that any peer takes; whether one follows a chain is another matter."""
    kind = draw(st.sampled_from(Kind))
    members = draw(st.lists(_members(), max_size=4, unique_by=lambda member: member.peer).map(tuple))
    senders = st.sets(st.integers(0, len(members) - 1)).map(member_bitmap) if members else st.just(b"")
    parts = st.lists(st.builds(PartRecord, st.integers(0, 255), HASHES, senders, TOKENS), min_size=1, max_size=3)
    hints = get_type_hints(Commit)
    special = {"round", "kind", "base", "members", "parts", "lever"}
    rest = {name: draw(values_of(hint, name)) for name, hint in hints.items() if name not in special}
    return Commit(
        round=0 if kind is Kind.GENESIS else draw(st.integers(1, MAX_INTEGER)),
        kind=kind,
        base=b"".join(draw(st.lists(HASHES, min_size=1, max_size=3 if kind is Kind.GENESIS else 1))),
        members=members,
        parts=tuple(draw(parts)) if kind is Kind.NORMAL else (),
        lever=draw(st.binary(max_size=20)),
        **rest,
    )


def _headers() -> Strategy:
    votes = st.lists(records_of(Vote), max_size=3, unique_by=lambda vote: vote.peer).map(tuple)
    plans = st.lists(PEERS, max_size=3, unique=True).map(tuple)
    return st.builds(Header, commits().map(Commit.encode), COUNTS, votes, plans)


SHAPES: dict[Any, Callable[[], Strategy]] = {
    DataRange: _data_ranges,
    Member: _members,
    Knock: _knocks,
    Plan: _plans,
    Commit: commits,
    Header: _headers,
    Evaluation: lambda: st.builds(Evaluation, TEXTS, COUNTS, COUNTS, COUNTS),
    messages.OtherState: lambda: st.builds(
        messages.OtherState, st.lists(st.binary(max_size=30), max_size=9).map(tuple)
    ),
    messages.Propose: lambda: st.builds(
        messages.Propose, st.binary(max_size=60), st.lists(st.binary(max_size=30), max_size=9).map(tuple)
    ),
}
