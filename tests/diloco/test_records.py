import math
import unicodedata
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.diloco.records import MAX_INTEGER, Field, Fields, hash_of, pack, unpack
from swarm_diloco.errors import RecordError

STRINGS = (
    st.text(max_size=16).map(lambda text: unicodedata.normalize("NFC", text)).filter(lambda s: len(s.encode()) <= 64)
)
SCALARS = st.integers(0, MAX_INTEGER) | st.binary(max_size=40) | STRINGS
FIELDS: st.SearchStrategy[Field] = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=5))
RECORDS = st.lists(FIELDS, max_size=6)


def read(data: bytes) -> Fields:
    return unpack(data, "thing", limit_bytes=10_000)


Scalar = int | bytes | str


def take(fields: Fields, value: Scalar | list[list[Scalar]]) -> object:
    """Take one field as what `value` is."""
    match value:
        case int():
            return fields.integer()
        case bytes():
            return fields.bytes_()
        case str():
            return fields.string()
        case list():
            entries = iter(value)
            return [*fields.list_of(lambda entry: [take(entry, v) for v in next(entries)], limit=len(value))]


@given(st.lists(SCALARS | st.lists(st.lists(SCALARS, max_size=3), max_size=3), max_size=6))
def test_reading_gives_back_what_was_packed(record: list[Scalar | list[list[Scalar]]]) -> None:
    fields = read(pack(record))
    assert [take(fields, value) for value in record] == record
    fields.end()


@given(RECORDS, st.data())
def test_one_byte_changed_is_refused_or_another_canonical_record(record: list[Field], data: st.DataObject) -> None:
    packed = bytearray(pack(record))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    assert_refused_or_canonical(bytes(packed))


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_a_canonical_record(data: bytes) -> None:
    assert_refused_or_canonical(data)


def assert_refused_or_canonical(data: bytes) -> None:
    try:
        read(data)
    except RecordError:
        return
    assert pack(msgpack.unpackb(data)) == data


@given(RECORDS, st.data())
def test_a_record_cut_short_or_with_more_behind_it_is_refused(record: list[Field], data: st.DataObject) -> None:
    packed = pack(record)
    with pytest.raises(RecordError, match="thing"):
        read(packed[: data.draw(st.integers(0, len(packed) - 1))])
    with pytest.raises(RecordError, match="thing"):
        read(packed + data.draw(st.binary(min_size=1, max_size=3)))


@pytest.mark.parametrize(
    "value",
    [-1, 2**63, True, None, 1.0, math.nan, {}, {"a": 1}, "e\u0301", "x" * 65, "\ud800", {1}],
    ids=repr,
)
@pytest.mark.parametrize("nested", [False, True])
def test_what_no_record_holds_is_neither_packed_nor_read(value: Any, nested: bool) -> None:
    record: list[Any] = [1, [value]] if nested else [value]
    with pytest.raises(ValueError, match=r"record holds|surrogates"):
        pack(record)
    try:
        packed = msgpack.packb(record)
    except (TypeError, ValueError):  # MessagePack itself cannot say it
        return
    with pytest.raises(RecordError, match="thing"):
        read(packed)


@pytest.mark.parametrize(
    "data",
    [
        b"\x01",  # no list
        b"\x91\xcc\x05",  # 5 in two bytes
        b"\x91\xd9\x01a",  # "a" with a long header
        b"\xdc\x00\x01\x05",  # a long list header
        b"\x91\xc5\x00\x01a",  # bytes with a long header
        b"\x91\xa2\xff\xfe",  # no UTF-8
        b"\xdd\xff\xff\xff\xff",  # four billion fields
        b"\x91\xc6\xff\xff\xff\xff",  # four billion bytes
        b"\x91" * 5000 + b"\x90",
        (b"\xdd" + (9999).to_bytes(4, "big")) * 1000,
        b"",
    ],
    ids=lambda data: data[:8].hex(),
)
def test_bytes_in_another_form_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError, match="thing"):
        read(data)


def test_an_extension_type_is_no_list() -> None:
    with pytest.raises(ValueError, match="record holds"):
        pack([msgpack.ExtType(1, b"")])
    with pytest.raises(RecordError, match="thing"):
        read(b"\x91\xc7\x00\x01")


def test_more_bytes_than_allowed_are_refused() -> None:
    data = pack([b"x" * 20])
    unpack(data, "thing", limit_bytes=len(data))
    with pytest.raises(RecordError, match=f"{len(data)} bytes where at most {len(data) - 1}"):
        unpack(data, "thing", limit_bytes=len(data) - 1)


@pytest.mark.parametrize(
    ("record", "reader"),
    [
        ([], Fields.integer),
        ([b"1"], Fields.integer),
        ([6], lambda fields: fields.integer(maximum=5)),
        ([2], Fields.flag),
        ([2], lambda fields: fields.version(1)),
        (["x"], Fields.bytes_),
        ([b"123"], lambda fields: fields.bytes_(limit=2)),
        ([b"123"], lambda fields: fields.bytes_(length=2)),
        ([b"1" * 31], Fields.hash_),
        ([b"x"], Fields.string),
        (["x"], lambda fields: fields.list_of(Fields.integer, limit=5)),
        ([[[1], [2]]], lambda fields: fields.list_of(Fields.integer, limit=1)),
        ([[1]], lambda fields: fields.list_of(Fields.integer, limit=5)),
        ([[[1, 2]]], lambda fields: fields.list_of(Fields.integer, limit=5)),
        ([[1]], lambda fields: fields.strings(limit=5)),
        ([["a", "b"]], lambda fields: fields.strings(limit=1)),
        ([[1, 2]], lambda fields: fields.optional(Fields.integer)),
        ([1], lambda fields: fields.optional(Fields.integer)),
        ([1], Fields.end),
    ],
)
def test_a_field_that_does_not_fit_is_refused(record: list[Field], reader: Any) -> None:
    with pytest.raises(RecordError, match="thing"):
        reader(read(pack(record)))


def test_a_missing_sub_record_is_the_empty_list() -> None:
    fields = read(pack([[], [7], ["a", "b"], [[1], [2]]]))
    assert fields.optional(Fields.integer) is None
    assert fields.optional(Fields.integer) == 7
    assert fields.strings(limit=2) == ("a", "b")
    assert fields.list_of(Fields.integer, limit=2) == (1, 2)
    fields.end()


def test_the_hash_is_blake3() -> None:
    assert hash_of(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
