import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.diloco.aggregate import WeightedSum, aggregate, coefficient
from swarm_diloco.diloco.arithmetic import CHUNK_VALUES
from swarm_diloco.diloco.codec import CODEC_NAMES, codec
from swarm_diloco.errors import RecordError


def test_a_coefficient_is_the_float64_quotient_rounded_once() -> None:
    assert coefficient(1, 2) == 0.5
    assert coefficient(1, 3) == 11184811 / 2**25
    assert coefficient(0, 1) == 0
    assert coefficient(2**53 - 1, 2**53 - 1) == 1
    assert coefficient(2**53 - 2, 2**53 - 1) == 1
    assert coefficient(2**24 + 1, 2**25) == 0.5  # past 2^24 the integer itself is no float32
    assert coefficient(1, 2**53 - 1) == 2.0**-53


@pytest.mark.parametrize(("weight", "total"), [(0, 0), (-1, 2), (3, 2), (1, 2**53), (0, -1)])
def test_weights_that_make_no_share_are_refused(weight: int, total: int) -> None:
    with pytest.raises(ValueError, match="weight"):
        coefficient(weight, total)


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=5).filter(any), st.integers(0, 2**32))
def test_the_sum_is_multiplies_and_adds_in_float32_in_the_order_given(weights: list[int], seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((len(weights), 37), dtype=np.float32)
    weighted_sum, expected = WeightedSum(37), np.zeros(37, np.float32)
    for weight, row in zip(weights, rows, strict=True):
        share = coefficient(weight, sum(weights))
        weighted_sum.add(torch.from_numpy(row), share)
        product = np.float32(share) * row
        expected = expected + np.where(np.abs(product) < np.float32(2**-100), np.float32(0), product)
    assert weighted_sum.total().numpy().tobytes() == expected.tobytes()


def test_the_order_is_part_of_the_result() -> None:
    rows = [torch.tensor([value]) for value in (1.0, 2.0**-24, 2.0**-24)]

    def total(order: tuple[int, ...]) -> float:
        weighted_sum = WeightedSum(1)
        for index in order:
            weighted_sum.add(rows[index], 1.0)
        return weighted_sum.total().item()

    assert {total(order) for order in itertools.permutations(range(3))} == {1.0, 1 + 2.0**-23}


def test_a_product_below_the_smallest_value_adds_nothing() -> None:
    weighted_sum = WeightedSum(3)
    weighted_sum.add(torch.tensor([2.0**-99, -(2.0**-99), -1.0]), 0.25)
    assert weighted_sum.total().tolist() == [0, 0, -0.25]
    weighted_sum.add(torch.tensor([-1.0, 1.0, 0.0]), 0.0)
    assert weighted_sum.total().signbit().tolist() == [False, False, True]


def test_a_long_vector_is_summed_to_its_end_and_the_input_is_left_as_it_is() -> None:
    values = torch.arange(2 * CHUNK_VALUES + 5, dtype=torch.float32)
    weighted_sum = WeightedSum(values.numel())
    for _ in range(2):
        weighted_sum.add(values, 0.5)
    assert torch.equal(weighted_sum.total(), values)
    assert values[-1].item() == 2 * CHUNK_VALUES + 4


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="lengths differ"):
        WeightedSum(3).add(torch.zeros(1), 1.0)


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("num_values", [50, CHUNK_VALUES + 21])
def test_aggregate_is_the_sum_of_what_the_bytes_stand_for(name: str, num_values: int) -> None:
    form = codec(name, 16)
    rows = torch.from_numpy(np.random.default_rng(2).standard_normal((3, num_values), dtype=np.float32))
    encoded, weights = [form.encode(row) for row in rows], [5, 0, 7]
    weighted_sum = WeightedSum(num_values)
    for data, weight in zip(encoded, weights, strict=True):
        weighted_sum.add(form.decode(data, num_values), coefficient(weight, 12))
    assert torch.equal(aggregate(encoded, weights, form, num_values), weighted_sum.total())


def test_what_is_tiny_in_the_bytes_adds_nothing() -> None:
    """Not even where denormal numbers count, and signs of zeros do not show."""
    form = codec("float32", 256)
    tiny = np.array([2.0**-101, -(2.0**-101), 1e-40, -0.0, -(2.0**-99)], "<f4").tobytes()
    for weights in ([1, 0], [1, 1], [3, 2**40]):
        assert aggregate([tiny, bytes(20)], weights, form, 5).numpy()[:4].tobytes() == bytes(16)


def test_the_mean_of_equal_vectors_by_powers_of_two_is_the_vector() -> None:
    form, values = codec("float32", 256), torch.tensor([1.5, -2.25, 0.0])
    assert torch.equal(aggregate([form.encode(values)] * 4, [7, 7, 7, 7], form, 3), values)


def test_aggregate_refuses_damaged_bytes_and_weights() -> None:
    form = codec("float32", 256)
    good = form.encode(torch.ones(3))
    with pytest.raises(RecordError):
        aggregate([good, good[:-1]], [1, 1], form, 3)
    with pytest.raises(ValueError, match="weight 0 of 0"):
        aggregate([good], [0], form, 3)
    with pytest.raises(ValueError, match="shorter"):
        aggregate([good, good], [1], form, 3)
    with pytest.raises(ValueError, match="no sender"):
        aggregate([], [], form, 3)
