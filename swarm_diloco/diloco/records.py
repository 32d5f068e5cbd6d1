"""Canonical MessagePack: the form of every record that is hashed, signed, sent or stored.

A record is a list of fields in a fixed order, its format version first. Fields are integers (0 to 2^63 − 1), bytes,
strings (NFC, at most 64 bytes) and lists of these: no floats, no maps, nothing that two programs could write in two
ways. Absent is the empty list. A decoder takes bytes only if encoding what it read gives the same bytes again.
"""

import unicodedata
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgpack
from blake3 import blake3

from swarm_diloco.errors import RecordError

Field = int | bytes | str | Sequence["Field"]
T = TypeVar("T")

HASH_BYTES = 32
MAX_STRING_BYTES = 64
MAX_INTEGER = 2**63 - 1


def hash_of(data: bytes | memoryview) -> bytes:
    """H(x) of the protocol: blake3, 32 bytes."""
    return blake3(data).digest()


def pack(fields: Sequence[Field]) -> bytes:
    """The record's bytes. Raises ValueError for a field that no record may hold."""
    _check(fields)
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def _check(field: Field) -> None:
    if isinstance(field, bool):
        raise ValueError("a record holds 0 or 1, not a boolean")
    if isinstance(field, int):
        if not 0 <= field <= MAX_INTEGER:
            raise ValueError(f"a record holds integers from 0 to 2^63 - 1, not {field}")
    elif isinstance(field, str):
        if len(field.encode()) > MAX_STRING_BYTES or unicodedata.normalize("NFC", field) != field:
            raise ValueError(f"a record holds NFC strings of at most {MAX_STRING_BYTES} bytes, not {field[:80]!r}")
    elif type(field) in (list, tuple):  # msgpack's extension type is a tuple too
        for inner in field:
            _check(inner)
    elif not isinstance(field, bytes):
        raise ValueError(f"a record holds integers, bytes, strings and lists, not {type(field).__name__}")


def unpack(data: bytes, what: str, *, limit_bytes: int) -> "Fields":
    """Read a record that may come from anybody. Raises RecordError naming `what`."""
    if len(data) > limit_bytes:
        raise RecordError(f"{what}: {len(data)} bytes where at most {limit_bytes} are allowed")
    try:
        fields = msgpack.unpackb(
            data, raw=False, use_list=True, strict_map_key=True, max_map_len=0, max_ext_len=0, max_array_len=len(data)
        )
        canonical = isinstance(fields, list) and pack(fields) == data
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise RecordError(f"{what}: not a record ({type(error).__name__})") from error
    if not canonical:
        raise RecordError(f"{what}: not in canonical form")
    return Fields(fields, what)


class Fields:
    """Takes a record's fields one by one, each with its bound; `end` refuses leftovers. All raise RecordError."""

    def __init__(self, fields: list[object], what: str) -> None:
        self._fields = fields
        self._what = what
        self._next = 0

    def _take(self, kind: type[T]) -> T:
        if self._next >= len(self._fields):
            raise RecordError(f"{self._what}: field {self._next} is missing")
        value = self._fields[self._next]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RecordError(f"{self._what}: field {self._next} is not {kind.__name__}")
        self._next += 1
        return value

    def integer(self, *, maximum: int = MAX_INTEGER) -> int:
        value = self._take(int)
        if not 0 <= value <= maximum:
            raise RecordError(f"{self._what}: field {self._next - 1} is {value}, at most {maximum} is allowed")
        return value

    def version(self, expected: int) -> None:
        found = self.integer()
        if found != expected:
            raise RecordError(f"{self._what}: format version {found}, this program reads {expected}")

    def flag(self) -> bool:
        return self.integer(maximum=1) == 1

    def bytes_(self, *, length: int | None = None, limit: int = 2**16) -> bytes:
        value = self._take(bytes)
        if len(value) > limit or (length is not None and len(value) != length):
            raise RecordError(f"{self._what}: field {self._next - 1} has {len(value)} bytes")
        return value

    def hash_(self) -> bytes:
        return self.bytes_(length=HASH_BYTES)

    def string(self) -> str:
        return self._take(str)

    def list_of(self, read: Callable[["Fields"], T], *, limit: int) -> tuple[T, ...]:
        """A list of sub-records, each read by `read` to its end."""
        values = self._take(list)
        if len(values) > limit:
            raise RecordError(f"{self._what}: {len(values)} entries where at most {limit} are allowed")
        return tuple(self._sub(value, read) for value in values)

    def strings(self, *, limit: int) -> tuple[str, ...]:
        values = self._take(list)
        if len(values) > limit or not all(isinstance(value, str) for value in values):
            raise RecordError(f"{self._what}: field {self._next - 1} is not a list of at most {limit} strings")
        return tuple(values)

    def integers(self, *, limit: int) -> tuple[int, ...]:
        values = self._take(list)
        if len(values) > limit or not all(isinstance(value, int) for value in values):
            raise RecordError(f"{self._what}: field {self._next - 1} is not a list of at most {limit} integers")
        return tuple(values)

    def required(self, read: Callable[["Fields"], T]) -> T:
        """A sub-record."""
        return self._sub(self._take(list), read)

    def optional(self, read: Callable[["Fields"], T]) -> T | None:
        """A sub-record, or None for the empty list."""
        values = self._take(list)
        return self._sub(values, read) if values else None

    def _sub(self, value: object, read: Callable[["Fields"], T]) -> T:
        if not isinstance(value, list):
            raise RecordError(f"{self._what}: an entry is not a list")
        fields = Fields(value, self._what)
        result = read(fields)
        fields.end()
        return result

    def rest(self, read: Callable[["Fields"], T]) -> list[T]:
        """All remaining fields, each a sub-record."""
        values = self._fields[self._next :]
        self._next = len(self._fields)
        return [self._sub(value, read) for value in values]

    def remaining_integers(self) -> list[int]:
        return [self.integer() for _ in self._fields[self._next :]]

    def end(self) -> None:
        if self._next != len(self._fields):
            raise RecordError(f"{self._what}: {len(self._fields) - self._next} fields too many")
