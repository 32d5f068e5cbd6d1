"""operator_folder: what init made opens, what was edited or damaged since does not."""

from pathlib import Path

import pytest

from swarm_diloco.errors import DiskError, ManifestError
from swarm_diloco.manifest import Manifest
from swarm_diloco_bootstrap.init import NewRun
from swarm_diloco_bootstrap.operator_folder import BootstrapSettings, OperatorFolder, free_port


def test_the_port_is_free_and_kept(made: NewRun) -> None:
    assert made.folder.read_settings() == BootstrapSettings(port=made.folder.read_settings().port)
    assert free_port(made.folder.read_settings().port) == made.folder.read_settings().port


def test_an_edited_manifest_is_another_run_and_the_message_says_how_to_start_it(made: NewRun) -> None:
    text = made.folder.manifest.read_text()
    for edited in (
        text.replace("# It", "# So it", 1) + "# remark\n",
        text.replace("inner_steps = 20", "inner_steps = 30"),
    ):
        assert Manifest.parse(edited.encode()).run_id != made.manifest.run_id
        made.folder.manifest.write_text(edited)
        with pytest.raises(ManifestError, match=f"init --config {made.folder.manifest} NEW_DIR"):
            made.folder.open()
    made.folder.manifest.write_text("not [ toml")
    with pytest.raises(ManifestError, match="edited after init"):
        made.folder.open()
    made.folder.manifest.write_text(text)
    made.folder.open()


@pytest.mark.parametrize(
    "settings", ["port = 0\n", "port = 70000\n", 'port = 1\nannounce = ["/ip4/1.2.3.4/tcp/0"]\n', "prot = 1\n"]
)
def test_a_wrong_bootstrap_toml_is_refused(made: NewRun, settings: str) -> None:
    made.folder.settings_file.write_text(f"[bootstrap]\n{settings}")
    with pytest.raises(ManifestError, match=r"bootstrap\.toml line \d"):
        made.folder.read_settings()


def test_a_folder_of_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="swarm-diloco init"):
        OperatorFolder(tmp_path).open()


def test_a_damaged_genesis_is_named(made: NewRun) -> None:
    made.folder.genesis.write_bytes(made.folder.genesis.read_bytes()[:-1])
    with pytest.raises(DiskError, match="genesis is damaged"):
        made.folder.open()
