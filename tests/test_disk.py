import os
import stat
from pathlib import Path

import pytest

from swarm_diloco.disk import read_file, write_durably
from swarm_diloco.errors import DiskError


def test_what_is_written_is_read_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    write_durably(path, b"one")
    write_durably(path, memoryview(b"other"), mode=0o600)
    assert read_file(path, limit_bytes=5) == b"other"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(6))
    with pytest.raises(DiskError, match="larger than the 5 bytes"):
        read_file(tmp_path / "file", limit_bytes=5)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(DiskError, match=f"cannot read {path}"):
            read_file(path, limit_bytes=5)


@pytest.mark.parametrize("call", ["fsync", "replace", "fchmod"])
def test_after_a_failed_write_the_old_file_is_there_and_nothing_else(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    write_durably(path, b"old")
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(DiskError, match=f"cannot write {path}: No space left"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DiskError, match="cannot write"):
        write_durably(tmp_path / "folder", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_contents_are_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def note(name: str) -> None:
        original = getattr(os, name)

        def noted(*arguments: object) -> None:
            calls.append(name)
            original(*arguments)

        monkeypatch.setattr(os, name, noted)

    note("fsync")
    note("replace")
    write_durably(tmp_path / "file", b"data")
    assert calls == ["fsync", "replace", "fsync"]
