"""`evaluate`: how well a run's model predicts held-out text."""

import math

import click

from swarm_diloco_client.context import AppContext


@click.command(short_help="Measure the newest model on a held-out set.")
@click.argument("source", required=False)
@click.option(
    "--set",
    "set_name",
    metavar="NAME",
    envvar="SWARM_DILOCO_EVALUATE_SET",
    show_envvar=True,
    default="held-out",
    show_default=True,
    help="One of the run's evaluation sets.",
)
@click.pass_obj
def evaluate(context: AppContext, source: str | None, *, set_name: str) -> None:
    """Measure the newest outer model on one of the run's held-out sets, as the run's own workers do.

    SOURCE is an invite or a run's folder; without it, the only run on this machine.
    """
    from swarm_diloco_client.cancellable import run_cancellable
    from swarm_diloco_client.held_out import Measured, measure
    from swarm_diloco_client.observer import observed

    async def run_it() -> tuple[int, Measured]:
        async with observed(source, context.home) as run:
            state = await run.state()
            return state.round, await measure(run, state, set_name)

    round_, measured = run_cancellable(run_it())
    click.echo(
        f"round {round_}, {set_name}: {measured.loss:.4f} nats a token (perplexity {math.exp(measured.loss):,.1f}) "
        f"over {measured.tokens:,} tokens; token frequencies alone: {measured.unigram_entropy:.4f}"
    )
