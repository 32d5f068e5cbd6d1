"""The command line: what it loads, what it is called, and how it fails."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import pytest

from swarm_diloco.errors import InviteError, NetworkError
from swarm_diloco_client.cli import COMMANDS, cli, run
from swarm_diloco_client.context import AppContext

HEAVY = ("torch", "hivemind", "transformers", "datasets", "tokenizers", "numpy", "uvloop")

# Names that people have in their scripts: a change here is a change for them.
OPTIONS = {
    "join": {
        "--device", "--threads", "--micro-batch", "--port", "--listen", "--announce", "--client-mode", "--max-rounds",
    },
    "init": {
        "--preset", "--config", "--name", "--purpose", "--contact", "--data", "--data-licence", "--held-out", "--model",
        "--from-scratch", "--tokenizer", "--inner-steps", "--set", "--port", "--seed",
    },
    "bootstrap": {"--announce", "--listen", "--max-rounds"},
}  # fmt: skip


def help_loads(*arguments: str) -> list[str]:
    """Which of HEAVY a command line imports in a process of its own; the last line printed is ours."""
    code = (
        "import sys; from swarm_diloco_client.cli import run; status = run(sys.argv[1:]); "
        f"print(status, *(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    status, *loaded = done.stdout.splitlines()[-1].split()
    assert status == "0"
    return loaded


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)], ids=" ".join
)
def test_help_imports_nothing_heavy(arguments: list[str]):
    assert help_loads(*arguments) == []


def test_the_programs_commands_are_these():
    assert list(COMMANDS) == ["join", "status", "export", "generate", "evaluate", "demo", "init", "bootstrap"]


@pytest.fixture
def context() -> Iterator[click.Context]:
    with click.Context(cli, obj=AppContext()) as made:
        yield made


def long_options(command: click.Command) -> set[str]:
    return {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
        if name.startswith("--")
    }


@pytest.mark.parametrize("name", OPTIONS)
def test_option_names_are_frozen(name: str, context: click.Context):
    command = cli.get_command(context, name)
    assert command is not None
    assert long_options(command) == OPTIONS[name]


def test_global_option_names_are_frozen():
    assert long_options(cli) == {"--home", "--debug", "--version"}


def test_a_volunteers_options_can_be_set_from_the_environment(context: click.Context):
    command = cli.get_command(context, "join")
    assert command is not None
    variables = {
        parameter.name: parameter.envvar for parameter in command.params if isinstance(parameter, click.Option)
    }
    assert variables == {
        "device": "SWARM_DILOCO_DEVICE",
        "threads": "SWARM_DILOCO_THREADS",
        "micro_batch": "SWARM_DILOCO_MICRO_BATCH",
        "port": "SWARM_DILOCO_PORT",
        "listen": "SWARM_DILOCO_LISTEN",
        "announce": "SWARM_DILOCO_ANNOUNCE",
        "client_mode": "SWARM_DILOCO_CLIENT_MODE",
        "max_rounds": None,
    }


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let `status` raise the given error."""

    def fail_with(error: BaseException) -> None:
        @click.command("status")
        def command() -> None:
            raise error

        monkeypatch.setattr(type(cli), "get_command", lambda *_: command)

    return fail_with


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (InviteError("the invite is cut short"), 11, "error: the invite is cut short\n"),
        (NetworkError("no peer answers"), 20, "error: no peer answers\n"),
        (ExceptionGroup("", [ExceptionGroup("", [KeyError(1), NetworkError("gone")])]), 20, "error: gone\n"),
        (ValueError("a port is a number"), 2, "error: a port is a number\n"),
        (KeyboardInterrupt(), 130, "\n"),  # after the terminal's ^C
        (click.Abort(), 130, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_one_line_and_its_own_exit_status(
    error: BaseException,
    status: int,
    text: str,
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
):
    failing(error)
    assert run(["status"]) == status
    assert capsys.readouterr() == ("", text)


def test_a_fault_of_ours_says_so(failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]):
    failing(AssertionError("two writers"))
    assert run(["status"]) == 70
    output = capsys.readouterr().err
    assert "fault of swarm-diloco: AssertionError: two writers" in output
    assert "Traceback" not in output


def test_debug_shows_the_trace(failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]):
    failing(NetworkError("gone"))
    assert run(["--debug", "status"]) == 20
    assert "Traceback" in capsys.readouterr().err


def test_a_wrong_option_names_the_help(capsys: pytest.CaptureFixture[str]):
    assert run(["join", "sd1", "--devices", "cpu"]) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert "--devices" in output
    assert "swarm-diloco join --help" in output


def test_a_cut_invite_is_refused_before_anything_is_made(tmp_path, capsys: pytest.CaptureFixture[str]):
    home = tmp_path / "home"
    assert run(["--home", str(home), "join", "sd1AAAA"]) == 11
    assert capsys.readouterr().err.startswith("error: the invite is cut short")
    assert not home.exists()
