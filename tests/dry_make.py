"""What make would do, whoever runs the tests."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
FROM_OUTER_MAKE = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}  # `make test` hands them on


def dry_make(arguments: Sequence[str]) -> list[str]:
    """The lines that `make` would run for these targets and settings once all is installed. It must know them."""
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "--old-file=.venv/.installed", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in FROM_OUTER_MAKE},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()
