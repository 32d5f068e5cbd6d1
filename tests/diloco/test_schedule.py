"""The trajectories are those of torchft's published regression fixtures for streaming DiLoCo (data/)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.diloco.outer_optimizer import OuterSettings, outer_step_
from swarm_diloco.diloco.pseudo_gradient import pseudo_gradient
from swarm_diloco.diloco.schedule import (
    ScheduleSettings,
    fragment_of_round,
    is_due,
    mix,
    round_due,
    steps_per_round,
)

CASES = json.loads((Path(__file__).parent / "data" / "streaming_trajectories.json").read_text())["cases"]


def trajectory(case: dict[str, Any], num_steps: int) -> list[list[float]]:
    """The local model, one value a fragment, before each inner step; replicas are equal: one is the mean."""
    num_fragments, delay = case["fragments"], case["delay"]
    round_steps = steps_per_round(case["sync_every"], num_fragments)
    outer = OuterSettings(learning_rate=case["outer_lr"], momentum=case["outer_momentum"])
    theta = torch.full((num_fragments,), case["start"])
    momentum_buffer, local, delta = torch.zeros_like(theta), theta.clone(), torch.zeros_like(theta)
    seen = []
    for step in range(num_steps):
        forming = round_due(step, round_steps, overlap_steps=delay)
        if forming is not None:
            f = fragment_of_round(forming, num_fragments)
            pseudo_gradient(theta[f : f + 1], local[f : f + 1], delta[f : f + 1])
        taking = round_due(step, round_steps)
        if taking is not None:
            f = fragment_of_round(taking, num_fragments)
            num_applied = (taking - 1) // num_fragments
            outer_step_(theta[f : f + 1], momentum_buffer[f : f + 1], delta[f : f + 1], outer, num_applied)
            local[f] = mix(local[f], theta[f], case["alpha"])
        seen.append(local.tolist())
        local -= case["inner_lr"] * case["gradient"]
    return seen


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"delay {case['delay']}, alpha {case['alpha']}")
def test_the_published_trajectories_come_out(case: dict[str, Any]) -> None:
    expected = case["parameters_by_inner_step"]
    assert trajectory(case, len(expected)) == [expected[str(step)] for step in range(len(expected))]


def test_fragments_take_turns_from_round_1() -> None:
    assert [fragment_of_round(round_, 3) for round_ in range(1, 8)] == [0, 1, 2, 0, 1, 2, 0]
    with pytest.raises(ValueError, match="round 0"):
        fragment_of_round(0, 3)


def test_a_round_is_due_every_interval_and_formed_an_overlap_earlier() -> None:
    assert [step for step in range(20) if is_due(step, 5)] == [5, 10, 15]
    assert [step for step in range(20) if is_due(step, 5, overlap_steps=2)] == [3, 8, 13, 18]
    assert [round_due(step, 5, overlap_steps=2) for step in (3, 8, 9)] == [1, 2, None]


@given(st.integers(1, 8), st.integers(1, 20), st.data())
def test_each_fragment_is_synced_once_in_h_steps(num_fragments: int, round_steps: int, data: st.DataObject) -> None:
    overlap_steps = data.draw(st.integers(0, round_steps - 1))
    inner_steps = num_fragments * round_steps
    first = data.draw(st.integers(inner_steps, 3 * inner_steps))
    assert steps_per_round(inner_steps, num_fragments) == round_steps
    rounds = [round_due(step, round_steps, overlap_steps=overlap_steps) for step in range(first, first + inner_steps)]
    fragments = [fragment_of_round(round_, num_fragments) for round_ in rounds if round_ is not None]
    assert sorted(fragments) == list(range(num_fragments))


@pytest.mark.parametrize(("inner_steps", "num_fragments"), [(10, 3), (2, 4), (0, 1)])
def test_steps_that_cannot_be_split_are_refused(inner_steps: int, num_fragments: int) -> None:
    with pytest.raises(ValueError, match="evenly"):
        steps_per_round(inner_steps, num_fragments)


@pytest.mark.parametrize("overlap_steps", [-1, 5])
def test_an_overlap_past_the_next_round_is_refused(overlap_steps: int) -> None:
    with pytest.raises(ValueError, match="overlap"):
        round_due(1, 5, overlap_steps=overlap_steps)


def test_mixing_is_linear_and_without_it_the_local_model_does_not_matter() -> None:
    local, new = torch.tensor([1.0, torch.nan]), torch.tensor([3.0, 4.0])
    assert mix(local, new, 0).tolist() == [3, 4]
    assert mix(local[:1], new[:1], 0.25).tolist() == [2.5]
    taken = mix(local, new, 0)
    taken += 1
    assert new.tolist() == [3, 4]
    with pytest.raises(ValueError, match="mixing"):
        mix(local, new, 1)


@pytest.mark.parametrize(
    ("setting", "value"), [("fragments", 2), ("pattern", "strided"), ("overlap_steps", 1), ("mixing", 0.5)]
)
def test_what_comes_later_is_refused_with_the_version_that_brings_it(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{setting} is .* until version 0.2, not {value}"):
        ScheduleSettings(inner_steps=10, **{setting: value})


@pytest.mark.parametrize("bad", [{"inner_steps": 0}, {"inner_steps": 100_001}, {"inner_steps": 1, "pace": "fast"}])
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="schedule"):
        ScheduleSettings(**bad)


def test_one_fragment_is_due_every_h_steps() -> None:
    assert ScheduleSettings(inner_steps=30).round_steps == 30
