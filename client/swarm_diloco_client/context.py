"""What every command is given."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class AppContext:
    """The global options. Filled in by the program's own callback, before any command runs."""

    home: Path = Path()  # of this client: its key and its runs
    debug: bool = False
