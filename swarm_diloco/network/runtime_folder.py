"""A folder for the sockets of one running process; those whose owner has died are removed by whoever comes next."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from swarm_diloco.errors import DiskError

PREFIX = "p2p-"
MAX_SOCKET_PATH_BYTES = 100  # of the 108 that a Unix socket's address has on Linux, 104 on macOS
LONGEST_NAME_BYTES = 10  # of a socket in the folder, with its slash


class RuntimeFolder:
    """`path` is ours, empty and locked until `remove`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, parent: Path) -> "RuntimeFolder":
        """Make a folder below `parent`, after removing those of dead processes there. Raises DiskError."""
        parent = parent.absolute()
        if len(os.fsencode(parent)) + len(PREFIX) + 9 + LONGEST_NAME_BYTES > MAX_SOCKET_PATH_BYTES:
            raise DiskError(f"the path {parent} is too long for a socket in it; choose a shorter runtime folder")
        try:
            parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in parent.glob(f"{PREFIX}*"):
                _remove_if_dead(folder)
            while True:
                path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
                lock = _lock_if_free(path)
                if lock is not None:
                    return cls(path, lock)
        except OSError as error:
            raise DiskError(f"cannot use the runtime folder {parent}: {error.strerror or error}") from error

    def remove(self) -> None:
        """May be called twice."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _lock_if_free(folder: Path) -> int | None:
    """A locked descriptor of the folder, or None if somebody else holds it or it has been removed meanwhile."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _remove_if_dead(folder: Path) -> None:
    lock = _lock_if_free(folder)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
