"""A second machine, played by a host of the laboratory: the line that `bootstrap` prints works there as it stands."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from laboratory import Laboratory, Link, why_not
from small_init import DOCUMENTS, MODEL, SMALL
from swarm_diloco_bootstrap.status_file import read_status

pytestmark = [
    pytest.mark.swarm,
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


def popen(command: list[str], home: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        env=os.environ | {"SWARM_DILOCO_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def join_line(output: IO[str]) -> str:
    """What the operator is told to hand out, unedited."""
    seen = []
    for line in output:
        seen.append(line)
        if line.strip().startswith("swarm-diloco join sd1"):
            return line.strip()
    raise AssertionError("bootstrap printed no join line:\n" + "".join(seen))


def test_the_printed_join_line_works_on_a_second_machine_unedited(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("swarm-diloco"))
    text, model, run = tmp_path / "text.jsonl", tmp_path / "model", tmp_path / "run"
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS))
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL))
    settings = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    what = ["--data", str(text), "--model", str(model), "--tokenizer", "byte", "--inner-steps", "4", *settings]
    subprocess.run([program, "init", str(run), *what], check=True, capture_output=True)
    with Laboratory({"operator": Link(), "volunteer": Link()}) as laboratory:
        bootstrap = popen(laboratory.command("operator", program, "bootstrap", str(run)), tmp_path / "operator-home")
        try:
            assert bootstrap.stdout is not None
            command = shlex.split(join_line(bootstrap.stdout))
            assert command[0] == Path(program).name
            join = laboratory.command("volunteer", program, *command[1:], "--max-rounds", "2")
            joined = popen(join, tmp_path / "volunteer-home")
            output, _ = joined.communicate(timeout=200)
            assert joined.returncode == 0, output
            (folder,) = (tmp_path / "volunteer-home" / "runs").iterdir()
            there, here = read_status(folder), read_status(run)
            assert there.round >= 2
            assert there.own_tokens > 0
            if here.round == there.round:
                assert (here.digest, here.state_hash) == (there.digest, there.state_hash)
        finally:
            bootstrap.send_signal(signal.SIGTERM)
            bootstrap.communicate(timeout=60)
    assert bootstrap.returncode in (0, 143)
