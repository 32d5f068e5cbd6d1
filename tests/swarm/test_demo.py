"""The demonstration itself, shortened: real processes, a kill and a join."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.swarm
@pytest.mark.timeout(600)
def test_a_short_demonstration_holds_all_it_promises(tmp_path: Path) -> None:
    """The loss need only fall a little in so short a time; everything else must hold as in the long one."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "swarm_diloco_client", "demo", "--dir", str(tmp_path / "demo")),
            *("--minutes", "0.4", "--require-drop", "0.3", "--require-margin", "-10"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok ") == 8
    assert "FAILED" not in done.stdout
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["logs", "made-by-swarm-diloco-demo", "model"]
    assert (tmp_path / "demo" / "model" / "model.safetensors").is_file()
