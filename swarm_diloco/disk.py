"""Files that are whole or not there: written aside, fsynced, renamed."""

import os
import tempfile
from pathlib import Path

from swarm_diloco.errors import DiskError


def write_durably(path: Path, data: bytes | memoryview, *, mode: int = 0o644) -> None:
    """Replace `path` by `data`; after a crash at any point either the old or the new file is there, whole.

    Raises DiskError (full, unwritable); the old file is then untouched.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise DiskError(f"{path} is written, but the disk may not keep it: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path, *, limit_bytes: int) -> bytes:
    """The file's bytes. Raises DiskError if it is missing, unreadable or larger than `limit_bytes`."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size  # room is made for all that is asked for, there or not
            data = file.read(min(size, limit_bytes) + 1)
    except OSError as error:
        raise DiskError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > limit_bytes:
        raise DiskError(f"{path} is larger than the {limit_bytes} bytes that such a file may have")
    return data
