"""Folders for sockets: one a process, removed by the next when the owner is dead, never when it lives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarm_diloco.errors import DiskError
from swarm_diloco.network.runtime_folder import RuntimeFolder


def test_two_living_owners_have_two_folders(tmp_path: Path) -> None:
    first, second = RuntimeFolder.create(tmp_path), RuntimeFolder.create(tmp_path)
    assert first.path != second.path
    assert first.path.is_dir()
    first.remove()
    first.remove()
    assert [second.path] == list(tmp_path.iterdir())
    second.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_dead_owners_folder_goes_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from swarm_diloco.network.runtime_folder import RuntimeFolder\n"
        "folder = RuntimeFolder.create(Path(sys.argv[1])); (folder.path / 'd.sock').touch(); os.abort()"
    )
    (tmp_path / "something else").mkdir()
    died = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, stderr=subprocess.DEVNULL)
    assert died.returncode < 0
    (left,) = tmp_path.glob("p2p-*")
    assert (left / "d.sock").exists()
    folder = RuntimeFolder.create(tmp_path)
    assert not left.exists()
    assert (tmp_path / "something else").is_dir()
    folder.remove()


def test_a_path_too_long_for_a_socket_is_said_before_p2pd_fails_on_it(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="too long"):
        RuntimeFolder.create(tmp_path / ("x" * 100))


def test_a_runtime_folder_that_is_a_file_is_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=os.fsdecode(tmp_path / "file")):
        RuntimeFolder.create(tmp_path / "file")
