"""`join`: train for a run."""

import os

import click

from swarm_diloco_client.context import AppContext

DEVICES = ("auto", "cpu", "cuda", "mps")


def _usable_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@click.command()
@click.argument("invite", metavar="INVITE")
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    default="auto",
    envvar="SWARM_DILOCO_DEVICE",
    show_envvar=True,
    show_default=True,
    help="What to train on; auto is the fastest that is there.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    default=lambda: max(1, _usable_cores() - 1),
    envvar="SWARM_DILOCO_THREADS",
    show_envvar=True,
    show_default="all cores but one",
    help="Processor threads that train.",
)
@click.option(
    "--micro-batch",
    type=click.IntRange(min=1),
    metavar="N",
    envvar="SWARM_DILOCO_MICRO_BATCH",
    show_envvar=True,
    help="Sequences in memory at once.  [default: as many as fit]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    envvar="SWARM_DILOCO_PORT",
    show_envvar=True,
    show_default=True,
    help="TCP port to listen at; 0 is any. A forwarded port needs a fixed one.",
)
@click.option(
    "--listen",
    multiple=True,
    metavar="ADDRESS",
    envvar="SWARM_DILOCO_LISTEN",
    show_envvar=True,
    help="Where to listen, such as /ip4/0.0.0.0/tcp/31337, instead of everywhere at --port.",
)
@click.option(
    "--announce",
    multiple=True,
    metavar="ADDRESS",
    envvar="SWARM_DILOCO_ANNOUNCE",
    show_envvar=True,
    help="Where others reach this machine, instead of what it finds out itself.",
)
@click.option(
    "--client-mode",
    is_flag=True,
    envvar="SWARM_DILOCO_CLIENT_MODE",
    show_envvar=True,
    help="Listen nowhere: for machines that others cannot reach.",
)
@click.option(
    "--max-rounds", type=click.IntRange(min=1), metavar="N", help="Leave after N more rounds.  [default: never]"
)
@click.pass_obj
def join(
    context: AppContext,
    invite: str,
    device: str,
    threads: int,
    micro_batch: int | None,
    port: int,
    listen: tuple[str, ...],
    announce: tuple[str, ...],
    max_rounds: int | None,
    *,
    client_mode: bool,
) -> int:
    """Train for the run that INVITE names, until Ctrl-C. Joining again resumes with the same identity."""
    from swarm_diloco.invite import Invite
    from swarm_diloco_bootstrap.signals import run_app
    from swarm_diloco_client.trainer_process import TrainerSettings
    from swarm_diloco_client.worker_app import WorkerOptions, run_worker

    options = WorkerOptions(
        home=context.home,
        listen=listen,
        port=port,
        announce=announce,
        client_mode=client_mode,
        trainer=TrainerSettings(device=None if device == "auto" else device, threads=threads, micro_batch=micro_batch),
        max_rounds=max_rounds,
    )
    decoded = Invite.decode(invite)
    return run_app(lambda stop: run_worker(decoded, options, stop, say=stop.say))
