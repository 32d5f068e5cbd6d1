"""`export`: the trained model as a folder."""

from pathlib import Path

import click

from swarm_diloco_client.context import AppContext


@click.command(short_help="Write the newest model, its tokenizer and a model card.")
@click.argument("source", required=False)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    envvar="SWARM_DILOCO_EXPORT_OUT",
    show_envvar=True,
    required=True,
    help="Where to put it: a new or empty folder.",
)
@click.pass_obj
def export(context: AppContext, source: str | None, *, out: Path) -> None:
    """Write the newest outer model, its tokenizer and a model card to a folder.

    SOURCE is an invite or a run's folder; without it, the only run on this machine. The folder loads with transformers'
    AutoModelForCausalLM and AutoTokenizer.
    """
    from swarm_diloco_client.cancellable import run_cancellable
    from swarm_diloco_client.export import check_empty
    from swarm_diloco_client.export import export as export_run
    from swarm_diloco_client.observer import GlobalState, observed

    out = out.absolute()
    check_empty(out)

    async def write() -> GlobalState:
        async with observed(source, context.home) as run:
            state = await run.state()
            await export_run(run, state, out)
            return state

    state = run_cancellable(write())
    click.echo(f"round {state.round}, digest {state.digest.hex()[:16]}, state {state.state_hash.hex()[:16]}: {out}")
