from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from swarm_diloco.diloco.aggregate import aggregate
from swarm_diloco.diloco.arithmetic import CHUNK_VALUES, LARGEST, SMALLEST, squash_
from swarm_diloco.diloco.codec import codec
from swarm_diloco.diloco.outer_optimizer import OuterSettings, momentum_at, outer_step_
from swarm_diloco.diloco.pseudo_gradient import pseudo_gradient

Floats = npt.NDArray[np.float32]


def test_the_momentum_ramps_up_with_the_results_applied() -> None:
    settings = OuterSettings(momentum=0.9, momentum_ramp=30)
    assert [momentum_at(settings, n) for n in (0, 1, 10, 30, 269, 270, 10_000)] == [
        0,
        1 / 31,
        0.25,
        0.5,
        269 / 299,
        0.9,
        0.9,
    ]
    assert momentum_at(OuterSettings(momentum=0.9, momentum_ramp=0), 0) == 0.9
    assert momentum_at(OuterSettings(momentum=0.0), 100) == 0
    with pytest.raises(ValueError, match="-1 results"):
        momentum_at(settings, -1)


def test_two_steps_by_hand() -> None:
    theta, momentum_buffer = torch.tensor([10.0]), torch.tensor([0.0])
    settings = OuterSettings(learning_rate=0.5, momentum=0.5, momentum_ramp=0)
    outer_step_(theta, momentum_buffer, torch.tensor([4.0]), settings, 0)
    assert (momentum_buffer.item(), theta.item()) == (4, 7)  # m = 4; θ = 10 − ½ (4 + ½·4)
    outer_step_(theta, momentum_buffer, torch.tensor([2.0]), settings, 1)
    assert (momentum_buffer.item(), theta.item()) == (4, 5)  # m = ½·4 + 2; θ = 7 − ½ (2 + ½·4)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_it_is_torchs_nesterov_sgd_to_rounding(momentum: float) -> None:
    generator = np.random.default_rng(5)
    start = generator.standard_normal(1000)
    reference = torch.from_numpy(start.copy()).requires_grad_()
    sgd = torch.optim.SGD([reference], lr=0.7, momentum=momentum, nesterov=momentum > 0)
    theta, momentum_buffer = torch.from_numpy(start.astype(np.float32)), torch.zeros(1000)
    settings = OuterSettings(learning_rate=0.7, momentum=momentum, momentum_ramp=0)
    for num_applied in range(50):
        delta = generator.standard_normal(1000)
        reference.grad = torch.from_numpy(delta)
        sgd.step()
        outer_step_(theta, momentum_buffer, torch.from_numpy(delta.astype(np.float32)), settings, num_applied)
    torch.testing.assert_close(theta.double(), reference.detach(), rtol=1e-5, atol=1e-4)


def test_with_rate_1_and_no_momentum_the_result_is_the_weighted_mean_of_the_models() -> None:
    theta = torch.tensor([1.0, -2.0, 8.0])
    locals_ = [torch.tensor([3.0, 0.0, 8.0]), torch.tensor([-1.0, 4.0, 0.0])]
    weights = [3, 1]
    form = codec("float32", 256)
    encoded = [form.encode(pseudo_gradient(theta, local, torch.empty(3))) for local in locals_]
    delta = aggregate(encoded, weights, form, 3)
    outer_step_(theta, torch.zeros(3), delta, OuterSettings(learning_rate=1.0, momentum=0.0), 0)
    assert torch.equal(theta, (3 * locals_[0] + 1 * locals_[1]) / 4)


def test_a_step_goes_down_where_the_workers_went_down() -> None:
    theta, target = torch.zeros(10), torch.linspace(-1, 1, 10)
    local = theta - 0.1 * 2 * (theta - target)  # one gradient step on |θ − target|²
    delta = pseudo_gradient(theta, local, torch.empty(10))
    before = (theta - target).square().sum()
    outer_step_(theta, torch.zeros(10), delta, OuterSettings(), 0)
    assert (theta - target).square().sum() < before


def reference_step(
    theta: Floats, m: Floats, delta: Floats, learning_rate: float, momentum: float
) -> tuple[Floats, Floats]:
    """The equations in numpy, one rounded operation at a time."""
    rate, mu = np.float32(learning_rate), np.float32(momentum)
    delta = squash(delta)
    m = squash(squash(m) * mu + delta)
    update = squash(squash(m * mu + delta) * rate)
    return squash(theta - update), m


def squash(values: Floats) -> Floats:
    return np.where(np.abs(values) < np.float32(SMALLEST), np.float32(0), values)


def floats(limit: float) -> st.SearchStrategy[Floats]:
    edges = [0.0, -0.0, SMALLEST, -SMALLEST, float(np.nextafter(np.float32(SMALLEST), np.float32(0))), 1e-40, limit]
    return arrays(np.float32, 7, elements=st.sampled_from(edges) | st.floats(-limit, limit, width=32))


@given(
    floats(LARGEST),
    floats(LARGEST),
    st.lists(floats(LARGEST), min_size=1, max_size=5),
    st.floats(0.001, 10),
    st.just(0.0) | st.floats(0.001, 0.999),
    st.integers(0, 400),
)
def test_every_bit_is_that_of_the_written_equations(
    theta: Floats, m: Floats, deltas: list[Floats], learning_rate: float, momentum: float, num_applied: int
) -> None:
    settings = OuterSettings(learning_rate=learning_rate, momentum=momentum)
    ours, our_momentum = torch.from_numpy(theta.copy()), torch.from_numpy(m.copy())
    for delta in deltas:
        outer_step_(ours, our_momentum, torch.from_numpy(delta), settings, num_applied)
        theta, m = reference_step(theta, m, delta, learning_rate, momentum_at(settings, num_applied))
        num_applied += 1
    assert ours.numpy().tobytes() == theta.tobytes()
    assert our_momentum.numpy().tobytes() == m.tobytes()


def test_what_is_too_small_is_zero_before_it_is_multiplied() -> None:
    half = OuterSettings(learning_rate=10, momentum=0.5, momentum_ramp=0)
    theta, m = torch.zeros(2), torch.tensor([0.75 * SMALLEST, -5 * SMALLEST])
    outer_step_(theta, m, torch.tensor([SMALLEST, SMALLEST]), half, 0)
    assert m.tolist() == [SMALLEST, -1.5 * SMALLEST]  # not 1.375: the momentum was 0
    assert theta.tolist() == [-15 * SMALLEST, 0]  # not −2.5: Δ + μ m is a quarter of the smallest value


def test_delta_is_left_as_it_is() -> None:
    delta = torch.tensor([1.0, 1e-40, -0.0])
    before = delta.numpy().tobytes()
    outer_step_(torch.zeros(3), torch.zeros(3), delta, OuterSettings(), 5)
    assert delta.numpy().tobytes() == before


def test_a_long_vector_is_stepped_chunk_by_chunk_to_its_end() -> None:
    num_values = 2 * CHUNK_VALUES + 5
    theta, m, delta = np.random.default_rng(6).standard_normal((3, num_values), dtype=np.float32)
    expected, expected_momentum = reference_step(theta, m, delta, 0.8, 100 / 130)
    outer_step_(torch.from_numpy(theta), torch.from_numpy(m), torch.from_numpy(delta), OuterSettings(), 100)
    assert theta.tobytes() == expected.tobytes()
    assert m.tobytes() == expected_momentum.tobytes()


def test_the_largest_values_of_all_rounds_stay_finite() -> None:
    theta, m, delta = torch.zeros(2), torch.zeros(2), torch.tensor([LARGEST, -LARGEST])
    for num_applied in range(1000):
        outer_step_(theta, m, delta, OuterSettings(learning_rate=10, momentum=0.999, momentum_ramp=0), num_applied)
    assert bool(theta.isfinite().all())


def test_squash_keeps_the_smallest_value_and_zeroes_what_is_below() -> None:
    below = float(np.nextafter(np.float32(SMALLEST), np.float32(0)))
    values = torch.tensor([SMALLEST, -SMALLEST, below, -below, 1e-45, -0.0, 1.0]).view(7, 1)
    assert squash_(values) is values
    assert values.view(-1).tolist() == [SMALLEST, -SMALLEST, 0, 0, 0, 0, 1]
    assert values.signbit().view(-1).tolist() == [False, True, False, False, False, False, False]


@pytest.mark.parametrize(
    "momentum_buffer", [torch.zeros(2), torch.zeros(3, dtype=torch.float64), torch.zeros(6)[::2], torch.zeros(3, 1)]
)
def test_another_form_is_refused_and_nothing_changed(momentum_buffer: torch.Tensor) -> None:
    theta = torch.ones(3)
    with pytest.raises(ValueError, match="momentum_buffer"):
        outer_step_(theta, momentum_buffer, torch.ones(3), OuterSettings(), 0)
    assert theta.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "bad",
    [
        {"learning_rate": 0.0},
        {"learning_rate": 11.0},
        {"learning_rate": float("nan")},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"momentum": 1e-30},
        {"momentum": float("nan")},
        {"momentum_ramp": -1},
        {"momentum_ramp": 10**6},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="outer"):
        OuterSettings(**bad)
