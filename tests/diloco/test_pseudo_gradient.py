import math

import numpy as np
import pytest
import torch

from swarm_diloco.diloco.arithmetic import CHUNK_VALUES
from swarm_diloco.diloco.pseudo_gradient import norm, pseudo_gradient


def test_it_is_global_minus_local() -> None:
    theta_global, theta_local, out = torch.tensor([3.0, 1.0]), torch.tensor([1.0, 2.0]), torch.empty(2)
    assert pseudo_gradient(theta_global, theta_local, out) is out
    assert out.tolist() == [2, -1]
    assert theta_global.tolist() == [3, 1]
    assert theta_local.tolist() == [1, 2]


def test_it_may_overwrite_the_local_model() -> None:
    theta_local = torch.tensor([1.0, 2.0])
    pseudo_gradient(torch.tensor([3.0, 1.0]), theta_local, theta_local)
    assert theta_local.tolist() == [2, -1]


@pytest.mark.parametrize(
    "theta_local", [torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(1, 2), torch.zeros(4)[::2]]
)
def test_it_refuses_another_form(theta_local: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="theta_local"):
        pseudo_gradient(torch.zeros(2), theta_local, torch.zeros(2))


def test_norm_of_a_right_triangle() -> None:
    assert norm(torch.tensor([3.0, -4.0])) == 5
    assert norm(torch.zeros(0)) == 0


def test_norm_neither_overflows_nor_loses_small_values() -> None:
    largest = torch.finfo(torch.float32).max
    assert norm(torch.full((4,), largest)) == 2 * largest
    assert norm(torch.full((4,), 2.0**-100)) == 2.0**-99


def test_norm_of_a_long_vector_is_that_of_float64() -> None:
    values = np.random.default_rng(1).standard_normal(3 * CHUNK_VALUES + 7, dtype=np.float32)
    expected = float(np.linalg.norm(values.astype(np.float64)))
    assert norm(torch.from_numpy(values)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("index", [0, 5, CHUNK_VALUES, 2 * CHUNK_VALUES + 2])
def test_norm_names_the_first_value_that_is_not_finite(value: float, index: int) -> None:
    values = torch.ones(2 * CHUNK_VALUES + 3)
    values[index:] = value
    with pytest.raises(ValueError, match=f"value {index} of {len(values)} is {value}"):
        norm(values)
