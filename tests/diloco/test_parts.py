"""Fragments and parts give back the whole, and an encoded part has exactly the size that was stated."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.diloco.arithmetic import CHUNK_VALUES
from swarm_diloco.diloco.codec import BLOCK_VALUES, CODEC_NAMES, Codec, codec
from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.errors import RecordError

shapes = st.dictionaries(st.text("abc.01", min_size=1, max_size=8), st.lists(st.integers(1, 9), max_size=3), min_size=1)
codecs = st.builds(codec, st.sampled_from(CODEC_NAMES), st.sampled_from(BLOCK_VALUES))
counts = st.integers(1, 300) | st.builds(
    lambda chunks, spare: max(1, chunks * CHUNK_VALUES + spare), st.integers(1, 3), st.integers(-300, 300)
)


@given(shapes, st.integers(1, 400))
def test_fragments_and_their_parts_are_the_whole_without_overlap(shapes: dict[str, list[int]], values: int) -> None:
    layout = ParameterLayout.of(shapes.items())
    whole = torch.arange(layout.num_values)
    seen = []
    for fragment, where in enumerate(layout.fragment_slices):
        within = whole[where]
        parts = layout.part_slices(fragment, values)
        assert all(0 < part.stop - part.start <= values for part in parts)
        seen += [within[part] for part in parts]
    assert torch.equal(torch.cat(seen), whole)
    assert [(first.stop, second.start) for first, second in itertools.pairwise(layout.fragment_slices)] == [
        (where.start, where.start) for where in layout.fragment_slices[1:]
    ]


@given(shapes, st.integers(1, 400), codecs)
def test_parts_that_were_encoded_alone_decode_to_the_whole(
    shapes: dict[str, list[int]], values: int, form: Codec
) -> None:
    layout = ParameterLayout.of(shapes.items())
    theta = torch.arange(layout.num_values, dtype=torch.float32) - 7
    back = torch.full_like(theta, float("nan"))
    for fragment, where in enumerate(layout.fragment_slices):
        for part in layout.part_slices(fragment, values):
            encoded = form.encode(theta[where][part])
            back[where][part] = form.decode(encoded, part.stop - part.start)
    assert bool(back.isfinite().all())
    if form.name == "float32":
        assert torch.equal(back, theta)


@given(codecs, counts)
def test_the_stated_size_is_the_size_for_any_number_of_values(form: Codec, num_values: int) -> None:
    encoded = form.encode(torch.linspace(-1, 1, num_values))
    assert len(encoded) == form.encoded_bytes(num_values)
    assert bool(form.decode(encoded, num_values).isfinite().all())


@given(codecs, st.integers(1, 300), st.integers(0, 1300))
def test_only_the_stated_size_is_taken(form: Codec, num_values: int, size: int) -> None:
    if size == form.encoded_bytes(num_values):
        size += 1
    with pytest.raises(RecordError, match=f"{num_values} values"):
        form.decode(bytes(size), num_values)


@given(codecs, st.integers(1, 2000))
def test_more_values_never_take_fewer_bytes(form: Codec, num_values: int) -> None:
    """So that a size says at most one number of values for a reader that knows it within one."""
    assert form.encoded_bytes(num_values) <= form.encoded_bytes(num_values + 1)
