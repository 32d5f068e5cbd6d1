"""Bytes as a liar, a failing disk or a bad line makes them: a right encoding with something wrong in it."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgpack
from hypothesis import strategies as st

Form = Literal["msgpack", "json", "safetensors", "toml", "none"]
Draw = Callable[[st.SearchStrategy[Any]], Any]

JUNK: list[Any] = [
    0,
    1,
    -1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    1.5,
    True,
    None,
    "",
    "text",
    "e\u0301",
    "x" * 65,
    [],
    [[]],
    {},
]
JUNK += [[0] * 300, [[[[]]]], {"a": 1}]
BYTES_JUNK: list[Any] = [b"", b"\0", b"\xff" * 70, bytes(32), bytes(64)]
TOML_JUNK = ["", "[", "x = 1", "x = [", "format = 2", "= ", "[[file]]", "[run]", 'name = "\\u0007"', "port = 1e999"]
TOML_JUNK += ["learning_rate = inf", "learning_rate = 1" + "0" * 400, "port = true", "a.b.c = {}", "\x00"]

HOSTILE: list[bytes] = [  # of no format: lengths that promise gigabytes, nests without end, halves of things
    b"",
    b"\0",
    b"\xff" * 100,
    b"\xdd\xff\xff\xff\xff",  # MessagePack: 2^32 − 1 entries
    b"\xc6\x80\0\0\0",  # 2^31 bytes
    b"\xdb\x80\0\0\0",  # a string of as many
    b"\xdf\xff\xff\xff\xff",  # a map
    b"\xc9\x80\0\0\0\x50",  # an extension
    b"\x92\x01\xdd\xff\xff\xff\xff",
    b"\x91" * 100_000,
    b"\x91" * 100_000 + b"\x90",
    b"\x81\xa1a" * 50_000,
    b"\x91\xc1",
    b"\x92\xcb\x7f\xf8\0\0\0\0\0\0\xc0",
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000,
    b"9" * 100_000,
    b"x = " + b"[" * 100_000,
    b"x = 1e" + b"9" * 5000,
    b"[" + b"a." * 500_000 + b"a]",
    b"\x80\0\0\0" + bytes(100),  # a frame of 2^31 bytes, big-endian
    (2**31).to_bytes(8, "little") + b"{}",  # safetensors: a header of as many
    (2**63).to_bytes(8, "little") + b"{}",
    (2).to_bytes(8, "little") + b"{}",
    "sd1".encode("utf-16"),
    b"sd1" + b"A" * 10_000,
]


@st.composite
def damaged(draw: Draw, encodings: st.SearchStrategy[bytes], form: Form) -> bytes:
    """A right encoding in which a byte is changed, some are missing, too many, another's, or a field is another."""
    data = draw(encodings)
    ways = ["shape"] * 3 if form != "none" else []
    match draw(st.sampled_from(["flip", "cut", "grow", "splice", "lose", *ways])):
        case "flip" if data:
            at = draw(st.integers(0, len(data) - 1))
            return data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
        case "cut":
            return data[: draw(st.integers(0, max(0, len(data) - 1)))]
        case "lose":
            start, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
            return data[:start] + data[end:]
        case "splice":
            other = draw(encodings)
            return data[: draw(st.integers(0, len(data)))] + other[draw(st.integers(0, len(other))) :]
        case "shape":
            return reshaped(draw, data, form)
        case _:
            at = draw(st.integers(0, len(data)))
            return data[:at] + draw(st.binary(min_size=1, max_size=9)) + data[at:]


def reshaped(draw: Draw, data: bytes, form: Form) -> bytes:
    """Another value of the same notation: what a peer would send that knows the format and lies."""
    match form:
        case "msgpack":
            value = msgpack.unpackb(data, raw=False, strict_map_key=False)
            changed: bytes = msgpack.packb(changed_value(draw, value, JUNK + BYTES_JUNK), use_bin_type=True)
            return changed
        case "json":
            return json.dumps(changed_value(draw, json.loads(data), JUNK), separators=(",", ":")).encode()
        case "safetensors":
            end = 8 + int.from_bytes(data[:8], "little")
            header = json.dumps(changed_value(draw, json.loads(data[8:end]), [*JUNK, *DTYPES])).encode()
            return len(header).to_bytes(8, "little") + header + data[end:]
        case _:
            lines = data.decode().split("\n")
            at = draw(st.integers(0, len(lines) - 1))
            lines[at : at + draw(st.integers(0, 2))] = [draw(st.sampled_from([*TOML_JUNK, *lines]))]
            return "\n".join(lines).encode()


DTYPES = ["F64", "F16", "BF16", "I8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "C64", "U64", "no such"]


def changed_value(draw: Draw, value: Any, junk: list[Any]) -> Any:
    """`value` with one thing in it replaced, dropped, doubled or put elsewhere, at any depth."""
    if isinstance(value, list | dict) and value and draw(st.integers(0, 5)):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw(st.sampled_from(keys))
        inner = dict(value) if isinstance(value, dict) else list(value)
        match draw(st.sampled_from(["inside", "inside", "inside", "drop", "double", "copy"])):
            case "inside":
                inner[key] = changed_value(draw, value[key], junk)
            case "drop":
                del inner[key]
            case "double" if isinstance(inner, list):
                inner.insert(draw(st.integers(0, len(inner))), value[key])
            case _:
                inner[key] = value[draw(st.sampled_from(keys))]
        return inner
    return draw(st.sampled_from(junk))


def doublings(data: bytes) -> Iterator[bytes]:
    """Every record in which one entry of one list stands twice, next to itself."""
    for value in _doubled(msgpack.unpackb(data, raw=False)):
        yield msgpack.packb(value, use_bin_type=True)


def _doubled(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield [*value[: index + 1], *value[index:]]
            for changed in _doubled(inner):
                yield [*value[:index], changed, *value[index + 1 :]]
