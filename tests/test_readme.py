"""The README's commands, as they stand there: each is one that the program has, and run in its order they work."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from dry_make import dry_make
from small_init import DOCUMENTS, SMALL
from swarm_diloco_client.cli import COMMANDS, cli
from swarm_diloco_client.context import AppContext

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINES = [
    shlex.split(line, comments=True)
    for page in ("README.md", "CONTRIBUTING.md")
    for block in BLOCK.findall((ROOT / page).read_text())
    for line in block.splitlines()
    if line.strip()
]
PROGRAM_LINES = [line for line in LINES if line[0] == "swarm-diloco"]
INVITE = "INVITE"  # stands in the README for what bootstrap prints
# What makes each command small enough for a test; the README's own words stay.
SMALLER = {
    "init": ["--tokenizer", "byte", "--inner-steps", "2", *(f"--set={key}={value}" for key, value in SMALL.items())],
    "join": ["--max-rounds", "2", "--threads", "1", "--device", "cpu"],
    "generate": ["--tokens", "5"],
}


def test_the_readme_has_a_line_for_every_command() -> None:
    shown = {line[1] for line in PROGRAM_LINES}
    assert shown | {"demo"} == set(COMMANDS)  # demo is run by make


@pytest.mark.parametrize("line", PROGRAM_LINES, ids=" ".join)
def test_the_program_takes_the_line(line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-run").mkdir()  # bootstrap wants it to be there
    monkeypatch.chdir(tmp_path)
    command = cli.get_command(click.Context(cli, obj=AppContext()), line[1])
    assert command is not None
    command.make_context(line[1], [*line[2:], *SMALLER.get(line[1], [])], obj=AppContext())


@pytest.mark.parametrize("line", [line for line in LINES if line[0] == "make"], ids=" ".join)
def test_make_has_the_target(line: list[str]) -> None:
    (targets,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line[1] in targets.split()
    assert dry_make(line[1:])


def test_make_demo_is_the_demonstration_with_its_options() -> None:
    """The demonstration itself is run by tests/swarm/test_demo.py."""
    assert dry_make(["demo", "DEMO=--minutes 2"])[-1] == ".venv/bin/swarm-diloco demo --minutes 2"


@pytest.mark.swarm
@pytest.mark.timeout(300)
def test_the_lines_work_one_after_the_other(tmp_path: Path) -> None:
    """Operator, volunteer and researcher, each with a home of its own."""
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS))
    lines = {line[1]: line[2:] for line in PROGRAM_LINES}
    run(tmp_path, "operator", "init", lines.pop("init"))
    bootstrap = start(tmp_path, "operator", "bootstrap", lines.pop("bootstrap"))
    try:
        invite = invite_of(bootstrap)
        assert "round 2 " in run(tmp_path, "volunteer", "join", lines.pop("join"), invite)
        shown = {name: run(tmp_path, "researcher", name, arguments, invite) for name, arguments in lines.items()}
    finally:
        bootstrap.send_signal(signal.SIGINT)
        rest, _ = bootstrap.communicate(timeout=60)
    assert "round 2 " in rest
    assert re.search(r"^round +2$", shown["status"], re.MULTILINE)
    assert "nats a token" in shown["evaluate"]
    assert shown["generate"].startswith(lines["generate"][1])
    assert (tmp_path / "model" / "model.safetensors").is_file()


def start(folder: Path, who: str, name: str, arguments: list[str], invite: str = INVITE) -> "subprocess.Popen[str]":
    """One line, in `folder`, with the home of `who`."""
    words = [invite if word == INVITE else word for word in arguments]
    return subprocess.Popen(
        [sys.executable, "-m", "swarm_diloco_client", name, *words, *SMALLER.get(name, [])],
        cwd=folder,
        env=os.environ | {"SWARM_DILOCO_HOME": str(folder / who), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, who: str, name: str, arguments: list[str], invite: str = INVITE) -> str:
    """What the line printed. It must end well."""
    process = start(folder, who, name, arguments, invite)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def invite_of(bootstrap: "subprocess.Popen[str]") -> str:
    """The invite in the line that others are to paste."""
    assert bootstrap.stdout is not None
    seen = []
    for line in bootstrap.stdout:
        seen.append(line)
        if found := re.search(r"swarm-diloco join (sd1\S+)", line):
            return found[1]
    raise AssertionError("bootstrap printed no line to paste:\n" + "".join(seen))
