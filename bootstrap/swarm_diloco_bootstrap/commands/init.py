"""`init`: make a run."""

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from swarm_diloco_bootstrap.presets import PRESETS

PRESET_LINES = "\n".join(f"  {preset.name:6}  {preset.summary}" for preset in PRESETS.values())


def _settings(_context: click.Context, _parameter: click.Parameter, pairs: Iterable[str]) -> dict[str, str]:
    """TABLE.KEY=VALUE pairs by name."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or "." not in name:
            raise click.BadParameter(f"{pair!r} is not of the form TABLE.KEY=VALUE")
        settings[name.strip()] = value.strip()
    return settings


@click.command(short_help="Make a new run: contract, text, parameters, keys.", epilog=f"\b\nPresets:\n{PRESET_LINES}")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), help="Size of the model and what suits it.  [default: tiny]"
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A run.toml, whole or in part. Text and tokenizer beside it are taken over.",
)
@click.option("--name", metavar="TEXT", help="The run's name.  [default: DIR's name]")
@click.option("--purpose", metavar="TEXT", help="What the run is for, in one line. Volunteers read it.")
@click.option("--contact", metavar="TEXT", help="Where the operator answers.")
@click.option(
    "--data",
    metavar="SOURCE",
    help="builtin, a local text, jsonl, parquet or arrow file (folder, glob), an address, or OWNER/NAME@REVISION of "
    "the hub.  [default: the preset's]",
)
@click.option("--data-licence", metavar="TEXT", help="Licence of the text.")
@click.option("--held-out", metavar="SOURCE", help="Local text to measure with.  [default: a part of the data]")
@click.option("--model", metavar="NAME_OR_DIR", help="Any causal LM of transformers: folder, or OWNER/NAME@REVISION.")
@click.option("--from-scratch", is_flag=True, help="Take the model's configuration, not its weights.")
@click.option("--tokenizer", metavar="KIND", help="bpe, byte, or a model to copy it from.  [default: the preset's]")
@click.option("--inner-steps", type=int, metavar="H", help="Inner steps between two rounds.  [default: the preset's]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    callback=_settings,
    help="Any other setting of run.toml; may be given several times.",
)
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="TCP port to keep.  [default: a free one]")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Of a new model's parameters.")
def init(
    folder: Path,
    preset: str | None,
    config: Path | None,
    name: str | None,
    purpose: str | None,
    contact: str | None,
    data: str | None,
    data_licence: str | None,
    held_out: str | None,
    model: str | None,
    tokenizer: str | None,
    inner_steps: int | None,
    settings: dict[str, str],
    port: int | None,
    seed: int,
    *,
    from_scratch: bool,
) -> None:
    """Make a new run in DIR: its contract run.toml, tokenizer, parameters, keys and signed genesis."""
    from swarm_diloco_bootstrap.init import init as make_run
    from swarm_diloco_bootstrap.init_options import InitOptions

    named = {
        "run.name": name,
        "run.purpose": purpose,
        "run.contact": contact,
        "data.licence": data_licence,
        "schedule.inner_steps": inner_steps,
    }
    options = InitOptions(
        preset=preset,
        config=config,
        model=model,
        from_scratch=from_scratch,
        data=data,
        held_out=held_out,
        tokenizer=tokenizer,
        settings={**{key: value for key, value in named.items() if value is not None}, **settings},
        port=port,
        seed=seed,
    )
    with _stops_as_interrupts():
        made = make_run(folder, options, say=click.echo)
    for notice in made.notices:
        click.echo(f"note: {notice}")
    manifest = made.manifest
    click.echo(f"run {manifest.run.name!r} {manifest.run_id.hex()[:16]}: {manifest.model.parameters:,} parameters")
    click.echo(f"keep {made.folder.operator_key} safe: it alone speaks for the run")
    click.echo(f"start it:  swarm-diloco bootstrap {folder}")


@contextmanager
def _stops_as_interrupts() -> Iterator[None]:
    """SIGTERM and SIGHUP are as Ctrl-C: what is half made is removed on the way out."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    former = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
