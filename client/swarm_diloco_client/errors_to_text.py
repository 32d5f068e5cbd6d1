"""The one place where an error becomes a line for people and an exit status."""

import asyncio
import traceback

import click

from swarm_diloco.errors import SwarmDilocoError

ARGUMENT_STATUS = 2  # as click has it
FAULT_STATUS = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED_STATUS = 130  # 128 + SIGINT


def report(error: BaseException, *, debug: bool) -> int:
    """Print what went wrong to stderr and return the program's exit status."""
    if debug and not isinstance(error, click.ClickException | KeyboardInterrupt | click.Abort):
        traceback.print_exception(error)
    text, status = describe(error)
    if text is not None:
        click.echo(text, err=True)
    return status


def describe(error: BaseException) -> tuple[str | None, int]:
    """One line (more where the error has more to say) or None, and the exit status."""
    match error:
        case BaseExceptionGroup():
            return describe(_first(error))
        case click.UsageError():
            where = f"{error.ctx.command_path} --help" if error.ctx else "--help"
            return f"error: {error.format_message()} (see: {where})", error.exit_code
        case click.ClickException():
            return f"error: {error.format_message()}", error.exit_code
        case SwarmDilocoError():
            return f"error: {error}", error.exit_status
        case ValueError():
            return f"error: {error}", ARGUMENT_STATUS
        case KeyboardInterrupt() | click.Abort() | asyncio.CancelledError():
            return None, INTERRUPTED_STATUS
        case BrokenPipeError():  # who read our output has gone
            return None, 0
        case _:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return f"error: a fault of swarm-diloco: {what}; please report it with the output of --debug", FAULT_STATUS


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of several at once the one that a user can act on, if there is one."""
    leaves = list(_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, SwarmDilocoError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
