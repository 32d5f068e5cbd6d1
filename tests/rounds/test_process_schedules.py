"""PROTOCOL's schedules over hivemind, one of each group; benchmarks/schedules_hivemind.py runs all of them."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from lone_schedules import all_start_at_once, bootstrap_returns
from process_schedules import strike_one
from small_swarm import FAST

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(240)]

FOUR = ("boot", "ann", "ben", "cleo")


async def test_a_coordinator_killed_with_a_majority_of_votes_but_no_decision_has_its_commit_decided(
    tmp_path: Path,
) -> None:
    struck = await strike_one(tmp_path, "majority of votes", signal.SIGKILL, first_round=3, names=FOUR)
    assert struck.verdict.is_right, struck.verdict
    assert struck.happened.endswith("the victim's commit")
    assert not struck.missing
    assert struck.is_back


async def test_a_reducer_frozen_with_half_of_its_results_out_costs_nobodys_work(tmp_path: Path) -> None:
    struck = await strike_one(
        tmp_path, "half of the gather", signal.SIGSTOP, first_round=3, names=FOUR, stopped_seconds=8.0
    )
    assert struck.verdict.is_right, struck.verdict
    assert not struck.missing
    assert struck.is_back


async def test_workers_and_a_bootstrap_peer_that_start_together_have_one_log(tmp_path: Path) -> None:
    seen = await all_start_at_once(tmp_path)
    assert seen.verdict.is_right, seen.verdict


async def test_a_worker_goes_on_alone_and_the_bootstrap_peer_comes_back_from_its_disk(tmp_path: Path) -> None:
    seen = await bootstrap_returns(tmp_path, rounds=replace(FAST, degraded_seconds=4.0))
    assert seen.verdict.is_right, seen.verdict
    assert "degraded normal" in seen.happened
