"""What is installed: the wheel, its metadata, and what the repository says of itself."""

import ast
import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from dry_make import dry_make

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = {
    "swarm_diloco": ROOT / "swarm_diloco",
    "swarm_diloco_client": ROOT / "client" / "swarm_diloco_client",
    "swarm_diloco_bootstrap": ROOT / "bootstrap" / "swarm_diloco_bootstrap",
}
APACHE_2_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"  # as apache.org publishes it
NOT_IMPORTED = {"fsspec"}  # datasets reads web servers through it, with its extra "http"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(f"swarm_diloco-{PROJECT['version']}.dist-info/METADATA").decode())


def name_of(requirement: str) -> str:
    return normal(Requirement(requirement).name)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_distributions(folder: Path) -> set[str]:
    """Names of the installed distributions that the modules under `folder` import."""
    providers = packages_distributions()
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for top in {name.partition(".")[0] for name in names} - PACKAGES.keys() - sys.stdlib_module_names:
                found |= {normal(distribution) for distribution in providers.get(top, [top])}
    return found


def test_the_wheel_holds_the_three_packages_whole_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == sources


def test_the_wheel_says_which_python_and_licence_it_needs_and_brings(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.14"}
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"


def test_the_licence_is_apache_2_to_the_letter() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_SHA256


def test_the_program_swarm_diloco_is_the_only_one_and_can_be_called(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"swarm_diloco-{PROJECT['version']}.dist-info/entry_points.txt").decode()
    assert re.findall(r"^(\S+) = (\S+)$", text, re.MULTILINE) == [("swarm-diloco", "swarm_diloco_client.cli:main")]
    (installed,) = entry_points(group="console_scripts", name="swarm-diloco")
    assert callable(installed.load())


def test_every_import_is_a_declared_dependency_and_every_dependency_is_imported() -> None:
    declared = {name_of(requirement) for requirement in PROJECT["dependencies"]}
    imported = {found for folder in PACKAGES.values() for found in imported_distributions(folder)}
    assert imported - declared == set()
    assert declared - imported == NOT_IMPORTED


def test_every_dependency_has_one_tested_version() -> None:
    optional = [requirement for extra in PROJECT["optional-dependencies"].values() for requirement in extra]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(str(pin.specifier).startswith("==") for pin in pins)
    tested = {normal(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    assert len(tested) == len(pins)
    for requirement in map(Requirement, [*PROJECT["dependencies"], *optional]):
        assert requirement.specifier.contains(tested[normal(requirement.name)]), requirement


def test_the_version_is_the_same_everywhere() -> None:
    version = PROJECT["version"]
    assert re.search(rf"^version: {re.escape(version)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert re.findall(r"^## \[(\d\S*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == version


def test_make_check_runs_all_four_gates() -> None:
    lines = "\n".join(dry_make(["check"]))
    for gate in ("bin/ruff format --check", "bin/ruff check", "bin/mypy", "bin/lint-imports"):
        assert gate in lines
