"""Every kind of message: what is written is read again, and bytes from anybody are refused or right, never an error."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_swarm import identity
from swarm_diloco.diloco.ledger import MAX_TOKENS, DataRange, Evaluation, Head
from swarm_diloco.diloco.records import MAX_INTEGER, hash_of, pack, unpack
from swarm_diloco.errors import RecordError
from swarm_diloco.network.interface import MAX_FRAME_BYTES
from swarm_diloco.network.messages import (
    MAX_BALLOT,
    MAX_PROMISES,
    Ahead,
    Beat,
    Behind,
    Bye,
    CastVote,
    Coming,
    Decided,
    Here,
    Knock,
    NotMe,
    OtherState,
    Plan,
    PlannedPart,
    Promised,
    Propose,
    Refused,
    Sealed,
    VoteCast,
    Waiting,
)
from swarm_diloco.network.wire import KINDS, MAX_MESSAGE_BYTES, NAMES, Signed, read_signed, sign
from swarm_diloco.rounds.part_frame import PartFrame
from swarm_diloco.rounds.parts_stream import Hello

ANN, BEN = identity("ann"), identity("ben")
RUN = hash_of(b"this run")

integers = st.integers(0, MAX_INTEGER)
tokens = st.integers(0, MAX_TOKENS)
hashes = st.binary(min_size=32, max_size=32)
names = st.text("abcåß中", max_size=20)
ballots = st.integers(0, MAX_BALLOT)
bitmaps = st.integers(0, 2**70).map(lambda bits: bits.to_bytes((bits.bit_length() + 7) // 8, "little"))
ranges = st.builds(
    lambda data_pass, shard, first, size: DataRange(data_pass, shard, first, first + size),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.integers(1, 2**40),
)
evaluations = st.builds(Evaluation, names, integers, integers, integers)
knocks = st.builds(
    lambda pair, **fields: Knock(tokens_from=min(pair), tokens_to=max(pair), **fields),
    st.tuples(tokens, tokens),
    fragment=st.integers(0, 2**16),
    base=hashes,
    weight=tokens,
    ranges=st.lists(ranges, max_size=4).map(tuple),
    evaluation=st.lists(evaluations, max_size=3).map(tuple),
    upload_kilobits=integers,
    step_microseconds=integers,
    norm_millionths=integers,
    reachable=st.booleans(),
    vote=st.none() | st.builds(VoteCast, ballots, st.binary(max_size=60)),
)
plans = st.integers(1, 5).flatmap(
    lambda size: st.builds(
        Plan,
        st.lists(st.tuples(names, tokens), min_size=size, max_size=size).map(tuple),
        st.lists(st.builds(PlannedPart, st.integers(0, size - 1), st.integers(0, 255), bitmaps), max_size=4).map(tuple),
        st.integers(0, 86_400_000),
        st.integers(0, 86_400_000),
    )
)
MESSAGES: dict[type, st.SearchStrategy[Any]] = {
    Knock: knocks,
    Coming: st.just(Coming()),
    NotMe: st.builds(NotMe, names),
    Behind: st.builds(Behind, st.binary(max_size=100)),
    Ahead: st.just(Ahead()),
    Promised: st.builds(Promised, ballots),
    Refused: st.builds(Refused, names),
    OtherState: st.builds(OtherState, st.lists(st.binary(max_size=50), max_size=9).map(tuple)),
    Waiting: st.builds(Waiting, integers, integers),
    Plan: plans,
    Sealed: st.builds(Sealed, st.integers(0, 2**14), st.integers(0, 255), hashes, bitmaps),
    Propose: st.builds(Propose, st.binary(max_size=100), st.lists(st.binary(max_size=50), max_size=9).map(tuple)),
    CastVote: st.builds(CastVote, hashes, st.binary(min_size=64, max_size=64)),
    Decided: st.builds(Decided, st.binary(max_size=100)),
    Beat: st.just(Beat()),
    Here: st.just(Here()),
    Bye: st.just(Bye()),
}
heads = st.builds(Head, integers, hashes)


def signed_by_ann(message: Any, *, ballot: int = 3) -> Signed:
    return sign(ANN, run=RUN, round_=7, ballot=ballot, head=Head(6, hash_of(b"head")), message=message)


def resigned(fields: list[Any]) -> bytes:
    """A frame by ann over any payload."""
    payload = pack(fields)
    return pack([payload, ANN.sign(payload)])


def test_every_kind_has_one_name_and_is_tried_here() -> None:
    assert {KINDS[name] for name in NAMES.values()} == set(KINDS.values())
    assert set(MESSAGES) == set(NAMES)


@pytest.mark.parametrize("kind", MESSAGES)
def test_what_is_written_is_read_again(kind: type) -> None:
    @given(MESSAGES[kind], integers, ballots, heads)
    def round_trip(message: Any, round_: int, ballot: int, head: Head) -> None:
        written = sign(ANN, run=RUN, round_=round_, ballot=ballot, head=head, message=message)
        assert read_signed(written.frame, run=RUN, sender=ANN.peer) == written

    round_trip()


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_body_with_anything_changed_is_refused_or_another_right_message(kind: type) -> None:
    """Signed by a peer that lies: every field of the body is replaced by something that it should not be."""
    junk: list[Any] = [0, MAX_INTEGER, b"", b"\xff" * 70, "", "text", [], [[]], [[0]], [[[[]]]], [0] * 300]

    @given(MESSAGES[kind], st.data())
    def hostile(message: Any, data: st.DataObject) -> None:
        envelope = unpack(signed_by_ann(message).frame, "frame", limit_bytes=MAX_MESSAGE_BYTES)
        fields: list[Any] = unpack(envelope.bytes_(limit=MAX_MESSAGE_BYTES), "", limit_bytes=MAX_MESSAGE_BYTES)._fields
        body = fields[-1]
        if body and data.draw(st.booleans()):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from(junk))
        else:
            fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(st.sampled_from(junk))
        frame = resigned(fields)
        try:
            read = read_signed(frame, run=RUN, sender=ANN.peer)
        except RecordError:
            return
        again = sign(ANN, run=RUN, round_=read.round, ballot=read.ballot, head=read.head, message=read.message)
        assert again.frame == frame

    hostile()


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        read_signed(data, run=RUN)
    for read in (Hello.decode, PartFrame.decode):
        with pytest.raises(RecordError):
            read(data)


@given(MESSAGES[Plan], st.data())
def test_a_cut_or_changed_frame_is_refused(message: Plan, data: st.DataObject) -> None:
    frame = signed_by_ann(message).frame
    cut = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(RecordError):
        read_signed(frame[:cut], run=RUN)
    with pytest.raises(RecordError):
        read_signed(frame + b"\x00", run=RUN)
    changed = bytearray(frame)
    changed[cut] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RecordError):
        read_signed(bytes(changed), run=RUN)


def test_a_message_counts_for_its_run_and_its_author_alone() -> None:
    frame = signed_by_ann(Beat()).frame
    with pytest.raises(RecordError, match="another run"):
        read_signed(frame, run=hash_of(b"another"))
    with pytest.raises(RecordError, match="came from"):
        read_signed(frame, run=RUN, sender=BEN.peer)
    payload = unpack(frame, "", limit_bytes=1000).bytes_()
    with pytest.raises(RecordError, match="signature"):
        read_signed(pack([payload, BEN.sign(payload)]), run=RUN)
    forged = [1, "beat", RUN, BEN.peer, 7, 3, [6, hash_of(b"head")], []]
    with pytest.raises(RecordError, match="signature"):
        read_signed(resigned(forged), run=RUN)
    with pytest.raises(RecordError, match="format version"):
        read_signed(resigned([2, *forged[1:]]), run=RUN)
    with pytest.raises(RecordError, match="unknown kind"):
        read_signed(resigned([1, "gossip", RUN, ANN.peer, 7, 3, [6, hash_of(b"head")], []]), run=RUN)


@pytest.mark.parametrize("kind", ["promised", "knock"])
def test_no_peer_can_be_led_past_the_last_ballot(kind: str) -> None:
    """A ballot that is read must be one that can be written again: else who heeds it is out of the round."""
    assert read_signed(signed_by_ann(Beat(), ballot=MAX_BALLOT).frame, run=RUN).ballot == MAX_BALLOT
    with pytest.raises(RecordError):
        read_signed(signed_by_ann(Beat(), ballot=MAX_BALLOT + 1).frame, run=RUN)
    message = Promised(MAX_BALLOT + 1)
    if kind == "knock":
        message = Knock(fragment=0, base=RUN, vote=VoteCast(MAX_BALLOT + 1, b""))  # type: ignore[assignment]
    with pytest.raises(RecordError):
        read_signed(signed_by_ann(message).frame, run=RUN)


def test_a_proposal_with_the_longest_promises_can_be_sent_and_read() -> None:
    """A big model's commit, reported by a whole council, must not make its own adoption impossible."""
    commit = bytes(2**20)
    knock = signed_by_ann(Knock(fragment=0, base=RUN, vote=VoteCast(1, commit)))
    proposal = signed_by_ann(Propose(commit, (knock.frame,) * 9))
    assert len(proposal.frame) <= min(MAX_MESSAGE_BYTES, MAX_FRAME_BYTES)
    assert read_signed(proposal.frame, run=RUN) == proposal
    with pytest.raises(RecordError):
        read_signed(signed_by_ann(Propose(b"", (b"",) * (MAX_PROMISES + 1))).frame, run=RUN)


def test_token_counters_do_not_run_backwards_and_a_reducer_is_a_member() -> None:
    for message in (
        Knock(fragment=0, base=RUN, tokens_from=2, tokens_to=1),
        Plan((("a", 1),), (PlannedPart(1, 0, b"\x01"),), 1, 1),
        Sealed(0, 0, RUN, b"\x01\x00"),
    ):
        with pytest.raises(RecordError):
            read_signed(signed_by_ann(message).frame, run=RUN)


@given(st.integers(0, 2**14), st.integers(0, 255), st.binary(max_size=200))
def test_a_parts_frame_proves_its_bytes(part: int, attempt: int, data: bytes) -> None:
    frame = PartFrame(part, attempt, data)
    assert PartFrame.decode(frame.encode()) == frame
    with pytest.raises(RecordError, match="hash"):
        PartFrame.decode(pack([part, attempt, hash_of(data + b"x"), data]))
    assert Hello.decode(Hello(part, attempt, RUN).encode()) == Hello(part, attempt, RUN)
