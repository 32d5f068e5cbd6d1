"""`generate`: text from a run's model."""

import click

from swarm_diloco_client.context import AppContext


@click.command()
@click.argument("arguments", metavar="[SOURCE] TEXT", nargs=-1, required=True)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    metavar="N",
    envvar="SWARM_DILOCO_GENERATE_TOKENS",
    show_envvar=True,
    default=100,
    show_default=True,
    help="How many tokens to add, at most.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0.0),
    metavar="T",
    envvar="SWARM_DILOCO_GENERATE_TEMPERATURE",
    show_envvar=True,
    default=0.8,
    show_default=True,
    help="0 takes the most likely token each time.",
)
@click.option(
    "--seed",
    type=int,
    metavar="S",
    envvar="SWARM_DILOCO_GENERATE_SEED",
    show_envvar=True,
    default=0,
    show_default=True,
    help="The same seed gives the same text on one machine.",
)
@click.pass_obj
def generate(context: AppContext, arguments: tuple[str, ...], *, tokens: int, temperature: float, seed: int) -> None:
    """Continue TEXT with the run's newest outer model.

    SOURCE is an invite or a run's folder; without it, the only run on this machine.
    """
    if len(arguments) > 2:
        raise click.UsageError("put the text in quotes: it is one argument, after at most one SOURCE")
    source, prompt = (None, *arguments) if len(arguments) == 1 else arguments
    if not prompt.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in prompt):
        raise click.UsageError("the text is not UTF-8")

    from swarm_diloco_client.cancellable import run_cancellable
    from swarm_diloco_client.export import outer_model
    from swarm_diloco_client.generation import continue_text
    from swarm_diloco_client.observer import observed

    async def write() -> str:
        async with observed(source, context.home) as run:
            model, tokenizer = await outer_model(run, await run.state())
        return continue_text(model, tokenizer, prompt, num_tokens=tokens, temperature=temperature, seed=seed)

    click.echo(run_cancellable(write()))
