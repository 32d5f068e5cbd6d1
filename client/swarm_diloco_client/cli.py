"""`swarm-diloco`: one program, whose commands are loaded when they are asked for.

Neither this module nor a command's own imports torch, transformers or hivemind at its top: `--help` answers at once.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import click
from platformdirs import user_data_path

from swarm_diloco_client.context import AppContext
from swarm_diloco_client.errors_to_text import report

PROGRAM = "swarm-diloco"
COMMANDS: Mapping[str, str] = {  # as --help lists them
    "join": "swarm_diloco_client.commands.join:join",
    "status": "swarm_diloco_client.commands.status:status",
    "export": "swarm_diloco_client.commands.export:export",
    "generate": "swarm_diloco_client.commands.generate:generate",
    "evaluate": "swarm_diloco_client.commands.evaluate:evaluate",
    "demo": "swarm_diloco_client.commands.demo:demo",
    "init": "swarm_diloco_bootstrap.commands.init:init",
    "bootstrap": "swarm_diloco_bootstrap.commands.bootstrap:bootstrap",
}


class LazyGroup(click.Group):
    """Knows its commands by name and imports a command's module when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="PATH",
    envvar="SWARM_DILOCO_HOME",
    show_envvar=True,
    default=lambda: user_data_path(PROGRAM),
    show_default="the system's folder for user data",
    help="Where this client keeps its key and its runs. Several clients on one machine need one each.",
)
@click.option(
    "--debug", is_flag=True, envvar="SWARM_DILOCO_DEBUG", show_envvar=True, help="Show an error's whole trace."
)
@click.version_option(version(PROGRAM), prog_name=PROGRAM)
@click.pass_obj
def cli(context: AppContext, home: Path, *, debug: bool) -> None:
    """Train one language model together with strangers, over home internet links."""
    context.home = home.absolute()
    context.debug = debug


def run(arguments: Sequence[str]) -> int:
    """Run one command line to its end; returns the exit status."""
    context = AppContext()
    try:
        status = cli.main(list(arguments) or ["--help"], prog_name=PROGRAM, standalone_mode=False, obj=context)
    except (Exception, KeyboardInterrupt) as error:
        return report(error, debug=context.debug)
    return status if isinstance(status, int) else 0


def main() -> None:
    sys.exit(run(sys.argv[1:]))
