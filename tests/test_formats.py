"""Every wire and disk format: what is written is read again, one value has one form, and no bytes break a reader.

A longer search than the usual one: pytest tests/test_formats.py --hypothesis-profile=thorough
"""

import ast
import functools
import itertools
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import swarm_diloco
import swarm_diloco_bootstrap
import swarm_diloco_client
from damage import HOSTILE, damaged, doublings
from file_formats import FILES
from record_formats import RECORDS, SIGNED_TEXTS, Format
from swarm_diloco.network import wire
from training_formats import TRAINING

FORMATS = {**RECORDS, **FILES, **TRAINING}
MAX_DOUBLINGS = 60
SPARE_BYTES = (
    2**23
)  # that a reader may use besides a small multiple of what it is given: a chunk of a snapshot has 2^22


def examples(form: Format) -> settings:
    """A part of the profile's examples: there are many formats, and this file has half a minute."""
    count = max(5, settings.default.max_examples // (3 * form.share))
    return settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_read_again(name: str) -> None:
    form = FORMATS[name]

    @examples(form)
    @given(form.values)
    def comes_back(value: Any) -> None:
        assert form.decode(form.encode(value)) == value

    comes_back()


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_bytes_are_refused_or_another_value_in_its_only_form(name: str) -> None:
    form = FORMATS[name]

    @examples(form)
    @given(damaged(form.values.map(form.encode), form.form) | st.binary(max_size=60))
    def is_survived(data: bytes) -> None:
        assert_survived(form, data)

    is_survived()


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.form == "msgpack"])
def test_an_entry_that_stands_twice_is_refused_or_counts_twice(name: str) -> None:
    form = FORMATS[name]

    @settings(examples(form), max_examples=10)
    @given(form.values)
    def is_seen(value: Any) -> None:
        for data in itertools.islice(doublings(form.encode(value)), MAX_DOUBLINGS):
            assert_survived(form, data)

    is_seen()


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_bytes_are_refused_and_take_no_memory(name: str) -> None:
    """Lengths that promise gigabytes, nests without end: all that a reader must not believe."""
    form = FORMATS[name]
    assert_survived(form, b"")  # what is imported or made once is not counted
    for data in HOSTILE:
        tracemalloc.start()
        try:
            assert_survived(form, data)
            used_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert used_bytes < SPARE_BYTES + 100 * len(data), data[:20]


def assert_survived(form: Format, data: bytes) -> None:
    try:
        value = form.decode(data)
    except form.refusals:
        return
    if form.is_canonical:
        assert form.encode(value) == data


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.limit_bytes is not None])
def test_more_than_the_stated_limit_is_not_looked_at(name: str) -> None:
    form = FORMATS[name]
    assert form.limit_bytes is not None
    with pytest.raises(form.refusals, match=r"at most|may have"):
        form.decode(bytes(form.limit_bytes + 1))


@pytest.mark.parametrize("name", SIGNED_TEXTS)
def test_two_things_that_are_signed_are_never_the_same_bytes(name: str) -> None:
    values, write = SIGNED_TEXTS[name]

    @given(values, values)
    def differ(first: Any, second: Any) -> None:
        assert (write(first) == write(second)) == (first == second)

    differ()


# --- the table is complete

ROOTS = [Path(str(package.__file__)).parent for package in (swarm_diloco, swarm_diloco_bootstrap, swarm_diloco_client)]
READING = {  # names of functions that make something of bytes
    "b64decode", "frombuffer", "from_pretrained", "load_file", "loads", "ParseFromString", "read_pbmsg_safe", "unpack",
    "unpackb", "urlsafe_b64decode", "validate_json", "from_private_bytes", "readexactly", "take_bytes", "_integer_at",
    "from_file", "from_str",
}  # fmt: skip
MODULES: dict[str, str] = {  # those that use one, and the formats that try them; or in brackets why none does
    "swarm_diloco.diloco.codec": "(any bytes of the right size are values: tests/diloco/test_codec.py)",
    "swarm_diloco.diloco.fragments": "layout",
    "swarm_diloco.diloco.ledger": "commit, header",
    "swarm_diloco.diloco.records": "(every record below)",
    "swarm_diloco.invite": "invite, invite's record",
    "swarm_diloco.network.discovery": "stored record",
    "swarm_diloco.network.framed_stream": "frames",
    "swarm_diloco.network.handshake": "handshake",
    "swarm_diloco.network.identity": "identity key",
    "swarm_diloco.network.p2p_daemon": "(p2pd, our own child, speaks protobuf)",
    "swarm_diloco.network.peer_record": "peer record, peer record frame",
    "swarm_diloco.network.reachability": "reachability question",
    "swarm_diloco.network.wire": "message frame",
    "swarm_diloco.rounds.decision.voter": "vote file",
    "swarm_diloco.rounds.forks": "fork",
    "swarm_diloco.rounds.library": "head answer, headers answer, forks answer, snapshots answer, snapshot index answer",
    "swarm_diloco.rounds.part_frame": "part frame",
    "swarm_diloco.rounds.parts_stream": "parts hello, parts acknowledged",
    "swarm_diloco.rounds.snapshot": "snapshot index, snapshot state",
    "swarm_diloco.settings_file": "manifest, bootstrap.toml",
    "swarm_diloco.training.channel": "trainer's channel",
    "swarm_diloco.training.checkpoint": "checkpoint",
    "swarm_diloco.training.data.assignment": "position in the text",
    "swarm_diloco.training.data.builtin": "(a package's own files)",
    "swarm_diloco.training.data.documents": "line of text",
    "swarm_diloco.training.data.remote": "(a state in memory; hub text is read by datasets)",
    "swarm_diloco.training.data.tokenizer": "tokenizer",
    "swarm_diloco.training.data.web": "(a state in memory; lines of text)",
    "swarm_diloco.training.model": "model config",
    "swarm_diloco.training.shared_memory": "(memory of our own)",
    "swarm_diloco_bootstrap.address_book": "address book",
    "swarm_diloco_bootstrap.run_model": "model config",
    "swarm_diloco_bootstrap.status_file": "status",
    "swarm_diloco_client.demo_outcome": "(a model that it exported itself)",
    "swarm_diloco_client.trainer_process": "trainer's channel",
}


def test_every_module_that_reads_bytes_is_tried() -> None:
    """A new reader fails here until the table has its format."""
    assert modules_that_read() <= set(MODULES)
    assert set(MODULES) <= {name for name, _ in sources()}
    for formats in MODULES.values():
        assert formats.startswith("(") or set(formats.split(", ")) <= FORMATS.keys(), formats


def test_every_class_with_a_reader_is_covered() -> None:
    covered = {name for form in FORMATS.values() for name in form.covers}
    assert classes_that_read() <= covered


def test_every_kind_of_message_is_tried() -> None:
    assert {f"message {name}" for name in wire.KINDS} <= FORMATS.keys()
    assert set(wire.NAMES.values()) == set(wire.KINDS)


@functools.lru_cache(maxsize=1)
def sources() -> list[tuple[str, ast.Module]]:
    found = []
    for root in ROOTS:
        for path in root.rglob("*.py"):
            name = ".".join((root.name, *path.relative_to(root).with_suffix("").parts))
            found.append((name.removesuffix(".__init__"), ast.parse(path.read_text())))
    return found


def modules_that_read() -> set[str]:
    return {name for name, tree in sources() if any(name_of_call(node) in READING for node in ast.walk(tree))}


def name_of_call(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else None


def classes_that_read() -> set[str]:
    """Those with a class method `decode` or `read`."""
    return {
        node.name
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, ast.FunctionDef)
        and member.name in ("decode", "read")
        and any(isinstance(mark, ast.Name) and mark.id == "classmethod" for mark in member.decorator_list)
    }
