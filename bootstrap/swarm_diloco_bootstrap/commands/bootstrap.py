"""`bootstrap`: run the operator's entry to a run."""

from pathlib import Path

import click


@click.command(short_help="Run the entry of a run that init has made.")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--announce",
    multiple=True,
    metavar="ADDRESS",
    envvar="SWARM_DILOCO_ANNOUNCE",
    show_envvar=True,
    help="Where others reach this machine, such as /ip4/203.0.113.7/tcp/31337, instead of what it finds out itself. "
    "May be given several times.  [default: bootstrap.toml's, else the machine's own]",
)
@click.option(
    "--listen",
    multiple=True,
    metavar="ADDRESS",
    envvar="SWARM_DILOCO_LISTEN",
    show_envvar=True,
    help="Where to listen, such as /ip4/0.0.0.0/tcp/31337.  [default: everywhere, at bootstrap.toml's port]",
)
@click.option(
    "--max-rounds", type=click.IntRange(min=1), metavar="N", help="Leave after N more rounds.  [default: never]"
)
def bootstrap(folder: Path, announce: tuple[str, ...], listen: tuple[str, ...], max_rounds: int | None) -> int:
    """Run the bootstrap peer of the run in DIR: the entry for others, and the archive of its log."""
    from swarm_diloco_bootstrap.archive_app import ArchiveOptions, run_archive
    from swarm_diloco_bootstrap.operator_folder import OperatorFolder
    from swarm_diloco_bootstrap.signals import run_app

    options = ArchiveOptions(listen=listen, announce=announce, max_rounds=max_rounds)
    return run_app(lambda stop: run_archive(OperatorFolder(folder), options, stop, say=stop.say))
