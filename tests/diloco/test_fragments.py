import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.diloco.fragments import MAX_LAYOUT_BYTES, ParameterLayout
from swarm_diloco.errors import RecordError

NAMES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=12)
SHAPES = st.lists(st.integers(1, 4), max_size=3)
LAYOUTS = st.dictionaries(NAMES, SHAPES, min_size=1, max_size=6).map(lambda shapes: ParameterLayout.of(shapes.items()))


def test_the_order_is_that_of_sorted_names_whatever_the_order_given() -> None:
    layout = ParameterLayout.of([("b", [2]), ("a.weight", [2, 3]), ("a.bias", [])])
    assert layout.names == ("a.bias", "a.weight", "b")
    assert layout.shapes == ((), (2, 3), (2,))
    assert layout.offsets == (0, 1, 7)
    assert layout.num_values == 9
    assert layout.fragment_slices == (slice(0, 9),)


def test_a_matrix_lies_row_major() -> None:
    layout = ParameterLayout.of([("w", [2, 2])])
    flat = layout.flatten({"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()}, torch.zeros(4))
    assert flat.tolist() == [1, 3, 2, 4]


@given(LAYOUTS)
def test_views_cover_the_vector_once_and_flatten_gives_it_back(layout: ParameterLayout) -> None:
    flat = torch.arange(layout.num_values, dtype=torch.float32)
    views = layout.views(flat)
    assert tuple(views) == layout.names
    assert tuple(tuple(view.shape) for view in views.values()) == layout.shapes
    assert torch.equal(layout.flatten(views, torch.full_like(flat, -1)), flat)
    for view in views.values():
        view.add_(1)
    assert torch.equal(flat, torch.arange(1, layout.num_values + 1, dtype=torch.float32))


@given(LAYOUTS, st.integers(1, 20))
def test_parts_joined_are_the_fragment(layout: ParameterLayout, part_values: int) -> None:
    flat = torch.arange(layout.num_values)
    parts = [flat[part] for part in layout.part_slices(0, part_values)]
    assert torch.equal(torch.cat(parts), flat[layout.fragment_slices[0]])
    assert all(len(part) == part_values for part in parts[:-1])
    assert 1 <= len(parts[-1]) <= part_values


def test_flatten_converts_other_precisions_and_leaves_no_gradient() -> None:
    layout = ParameterLayout.of([("w", [2])])
    out = layout.flatten({"w": torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)}, torch.zeros(2))
    assert out.dtype == torch.float32
    assert not out.requires_grad


@pytest.mark.parametrize(
    "named",
    [
        {"a": torch.ones(2)},
        {"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(1)},
        {"a": torch.ones(2), "b": torch.ones(1, 3)},
    ],
    ids=["one missing", "one too many", "another shape"],
)
def test_flatten_refuses_other_parameters_and_leaves_out_untouched(named: dict[str, torch.Tensor]) -> None:
    out = torch.zeros(5)
    with pytest.raises(ValueError, match=r"\bb\b|\bc\b"):
        ParameterLayout.of([("a", [2]), ("b", [3])]).flatten(named, out)
    assert out.tolist() == [0] * 5


@pytest.mark.parametrize("flat", [torch.zeros(4), torch.zeros(6), torch.zeros(5, 1), torch.zeros(10)[::2]])
def test_views_refuse_a_vector_of_another_form(flat: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="contiguous vector of 5"):
        ParameterLayout.of([("a", [5])]).views(flat)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [("a", [1]), ("a", [1])],
        [("", [1])],
        [("a\n", [1])],
        [("a", [0])],
        [("a", [-1])],
        [("a", [True])],
        [("a", [1] * 17)],
        [("a", [2**21, 2**20])],
    ],
)
def test_a_layout_that_cannot_be_is_refused(pairs: list[tuple[str, list[int]]]) -> None:
    with pytest.raises(ValueError, match=r"parameter|values"):
        ParameterLayout.of(pairs)


def test_several_fragments_and_empty_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="one fragment"):
        ParameterLayout.of([("a", [2])], num_fragments=2)
    with pytest.raises(ValueError, match="at least one value"):
        ParameterLayout.of([("a", [2])]).part_slices(0, 0)


def test_the_file_is_plain_json() -> None:
    layout = ParameterLayout.of([("b", [2, 3]), ("å", [])])
    assert layout.encode() == b'[["b",[2,3]],["\\u00e5",[]]]'


@given(LAYOUTS)
def test_the_file_gives_the_layout_back(layout: ParameterLayout) -> None:
    assert ParameterLayout.decode(layout.encode()) == layout


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"5",
        b"{}",
        b"null",
        b'{"a":[1]}',
        b'[["a",[1]]',
        b'[["a"]]',
        b'[["a",1]]',
        b'[["a","1"]]',
        b'[["a",[1.0]]]',
        b'[["a",[1e9]]]',
        b'[["a",[NaN]]]',
        b'[["a",[true]]]',
        b'[["a",[[1]]]]',
        b'[["a",[0]]]',
        b'[["a",[1]],["a",[1]]]',
        b'[["b",[1]],["a",[1]]]',
        b"[[1,[1]]]",
        b'[[["a"],[1]]]',
        b'[["a", [1]]]',
        b'[["a",[1]]]\n',
        b'[["\\u0061",[1]]]',
        b'[["\\ud800",[1]]]',
        '[["å",[1]]]'.encode(),
        b'[["a",[' + b"9" * 5000 + b"]]]",
        b"[" * 100_000,
        b" " * (MAX_LAYOUT_BYTES + 1),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_a_file_that_is_no_layout_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError, match="layout"):
        ParameterLayout.decode(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value, separators=(",", ":")).encode()))
def test_hostile_bytes_are_refused_or_canonical(data: bytes) -> None:
    try:
        layout = ParameterLayout.decode(data)
    except RecordError:
        return
    assert layout.encode() == data
