"""A second machine, played by a network namespace: the line that `bootstrap` prints works there as it stands."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_init import small_init_arguments

from swarm_diloco.run_folder import RunFolder
from swarm_diloco_bootstrap.status_file import read_status

BRIDGE_SECONDS = 120

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="network namespaces need iproute2"),
]
OPERATOR, VOLUNTEER = f"sd-op-{os.getpid()}", f"sd-vol-{os.getpid()}"
