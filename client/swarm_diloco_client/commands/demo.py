"""`demo`: a whole swarm on this machine."""

import shutil
from pathlib import Path

import click


@click.command(short_help="Train a small model with a whole swarm on this machine.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    envvar="SWARM_DILOCO_DEMO_DIR",
    show_envvar=True,
    default="demo-run",
    show_default=True,
    help="Where the peers live meanwhile, and where the model is put. An earlier demonstration there is replaced.",
)
@click.option(
    "--workers",
    type=click.IntRange(2, 16),
    metavar="N",
    envvar="SWARM_DILOCO_DEMO_WORKERS",
    show_envvar=True,
    default=3,
    show_default=True,
    help="Workers at the start, of one thread each.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1),
    metavar="M",
    envvar="SWARM_DILOCO_DEMO_MINUTES",
    show_envvar=True,
    default=4.0,
    show_default=True,
    help="Of training; what comes before and after takes about one more.",
)
@click.option(
    "--require-drop",
    type=float,
    metavar="NATS",
    default=2.0,
    show_default=True,
    help="How far the held-out loss must fall.",
)
@click.option(
    "--require-margin",
    type=float,
    metavar="NATS",
    default=0.3,
    show_default=True,
    help="How far below the held-out text's unigram entropy it must end.",
)
@click.option("--keep", is_flag=True, help="Keep the peers' folders too, not only the model and the logs.")
def demo(folder: Path, workers: int, minutes: float, require_drop: float, require_margin: float, *, keep: bool) -> int:
    """Train a small model with a whole swarm on this machine: a bootstrap peer and some workers.

    One worker is killed, a new one joins. Exit status 0 only if everything that must hold did hold.
    """
    from swarm_diloco_client.cancellable import run_cancellable
    from swarm_diloco_client.demo import MARK, Demo, DemoSettings
    from swarm_diloco_client.demo_outcome import DemoOutcome, outcome_of
    from swarm_diloco_client.demo_report import Requirements, checks, summary
    from swarm_diloco_client.demo_screen import DemoScreen

    settings = DemoSettings(folder=folder.absolute(), num_workers=workers, training_seconds=60 * minutes)

    async def run() -> DemoOutcome:
        with DemoScreen() as screen:
            course = Demo(settings, show=screen.show, say=screen.say)
            await course.run()
        return await outcome_of(course)

    outcome = run_cancellable(run())
    found = checks(outcome.result, Requirements(drop=require_drop, margin=require_margin))
    for line in [*summary(outcome.result), "", *(check.line for check in found), "", "a sample from the model:"]:
        click.echo(line)
    click.echo(f"  {outcome.sample!r}")
    click.echo(f"the model is in {outcome.model}: it loads with transformers' AutoModelForCausalLM")
    succeeded = all(check.held for check in found)
    if succeeded and not keep:
        for path in settings.folder.iterdir():
            if path.name not in ("model", "logs", MARK):
                shutil.rmtree(path)
    return 0 if succeeded else 1
