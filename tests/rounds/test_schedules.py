"""One seed of each of PROTOCOL's schedules on the simulated network; benchmarks/schedules.py plays any number."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from schedules.catalogue import ALL, by_id
from schedules.runner import run
from schedules.schedule import Schedule

SEED = 1
ROOT = Path(__file__).parents[2]


QUICK = [schedule for schedule in ALL if schedule.most_seeds is None]  # the others take minutes each


@pytest.mark.parametrize("schedule", QUICK, ids=lambda schedule: schedule.id)
def test_the_four_properties_hold_after(tmp_path: Path, schedule: Schedule) -> None:
    result = run(schedule, SEED, tmp_path, is_short=True)
    assert result.is_right, f"{result}\nAgain: {result.command}"


def test_a_seed_gives_the_same_events_in_any_process(tmp_path: Path) -> None:
    """Else a failing seed could not be played again: not the order of a set, nor a hash, decides what happens."""
    id_ = "deciding/reducer frozen/mid part"
    program = (
        "import json, sys\n"
        "from schedules.catalogue import by_id\n"
        "from schedules.runner import run\n"
        f"result = run(by_id({id_!r}), {SEED})\n"
        "print(json.dumps([result.num_events, result.events]))\n"
    )
    path = os.pathsep.join([*map(str, (ROOT / "tests" / "rounds", ROOT / "tests")), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "4711"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True, timeout=200
    )
    here = run(by_id(id_), SEED, tmp_path)
    assert json.loads(done.stdout) == [here.num_events, here.events]
