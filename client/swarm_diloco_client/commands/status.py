"""`status`: where a run stands."""

import json

import click

from swarm_diloco_client.context import AppContext


@click.command()
@click.argument("source", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the values as one JSON object, all evaluations included.")
@click.pass_obj
def status(context: AppContext, source: str | None, *, as_json: bool) -> None:
    """Show where a run stands: round, members, tokens, held-out loss.

    SOURCE is an invite or a run's folder; without it, the only run on this machine.
    """
    from swarm_diloco_client.cancellable import run_cancellable
    from swarm_diloco_client.observer import observed
    from swarm_diloco_client.run_report import RunReport, report_lines, report_of, report_values

    async def read() -> RunReport:
        async with observed(source, context.home) as run:
            return report_of(run, await run.peers())

    report = run_cancellable(read())
    click.echo(json.dumps(report_values(report), indent=2) if as_json else "\n".join(report_lines(report)))
