"""Where this machine keeps sockets of running programs."""

import os
import tempfile
from pathlib import Path

APP_NAME = "swarm-diloco"


def runtime_folder() -> Path:
    """A short path of this user's, in XDG_RUNTIME_DIR or else in the temporary folder (TMPDIR). It need not exist."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    return Path(given) / APP_NAME if given else Path(tempfile.gettempdir()) / f"{APP_NAME}-{os.getuid()}"
