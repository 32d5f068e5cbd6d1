"""Where the demonstration is shown: a terminal that redraws a table, or a pipe that gets a line a round."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from swarm_diloco_client.demo_view import DemoView, round_line, table


class DemoScreen:
    """Use it as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._shown_round = 0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False, soft_wrap=True)

    def show(self, view: DemoView) -> None:
        """What is to be seen now."""
        if self._live is not None:
            self._live.update(table(view), refresh=True)
        elif view.newest is not None and view.newest.round > self._shown_round:
            self._shown_round = view.newest.round
            self.say(round_line(view))
