"""The demonstration while it runs: a table that a terminal redraws, a line a round for everything else."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from swarm_diloco_bootstrap.status_file import PeerStatus
from swarm_diloco_client.demo_report import megabytes

STARTING, SERVING, TRAINING, KILLED = "starting", "bootstrap", "training", "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow:
    name: str
    state: str  # one of the above
    status: PeerStatus | None  # None: it has not told anything yet


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoView:
    """Everything that is shown at one moment."""

    elapsed_seconds: float
    remaining_seconds: float
    rows: Sequence[PeerRow]
    num_differing: int  # times that two peers named different states for one round

    @property
    def newest(self) -> PeerStatus | None:
        """Of the peer that is furthest."""
        known = [row.status for row in self.rows if row.status is not None]
        return max(known, key=lambda status: status.round, default=None)


def table(view: DemoView) -> Table:
    """All peers, one a row."""
    shown = Table(title=_title(view), title_justify="left", caption=_caption(view), caption_justify="left")
    for column, justify in (
        ("peer", "left"),
        ("", "left"),
        ("round", "right"),
        ("digest", "left"),
        ("state", "left"),
        ("loss", "right"),
        ("tokens", "right"),
        ("sent", "right"),
        ("received", "right"),
    ):
        shown.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]  # rich's own literals
    for row in view.rows:
        shown.add_row(row.name, row.state, *_cells(row.status))
    return shown


def _cells(status: PeerStatus | None) -> list[str]:
    if status is None:
        return []
    return [
        str(status.round),
        status.digest[:8],
        status.state_hash[:8],
        "" if status.own_loss is None else f"{status.own_loss:.3f}",
        f"{status.own_tokens:,}" if status.own_tokens else "",
        megabytes(status.sent_bytes),
        megabytes(status.received_bytes),
    ]


def _title(view: DemoView) -> str:
    return f"swarm-diloco demo   {view.elapsed_seconds:.0f} s, {max(0.0, view.remaining_seconds):.0f} s to go"


def _caption(view: DemoView) -> str:
    return "   ".join([*_progress(view.newest), *_differing(view)])


def _differing(view: DemoView) -> list[str]:
    return [f"{view.num_differing} DIFFERING STATES"] if view.num_differing else []


def _progress(newest: PeerStatus | None) -> list[str]:
    if newest is None:
        return []
    losses = [f"{name} loss {loss:.3f} (round {round_:.0f})" for name, (round_, loss) in newest.losses.items()]
    speed = [f"{newest.round_tokens / newest.round_seconds:,.0f} tokens/s"] if newest.round_seconds else []
    return [f"{newest.tokens:,} tokens", *losses, *speed]


def round_line(view: DemoView) -> str:
    """The newest round, for a pipe or a file."""
    newest = view.newest
    assert newest is not None
    texts = [
        f"{view.elapsed_seconds:4.0f} s",
        f"round {newest.round:>3}",
        f"{len(newest.workers)} trained",
        *_progress(newest),
        f"digest {newest.digest[:8]}",
        f"state {newest.state_hash[:8]}",
        *_differing(view),
    ]
    return "  ".join(texts)
