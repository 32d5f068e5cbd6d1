"""What connects one host to the internet of a laboratory."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A path between two hosts is both their links: its delay is the sum of theirs, its loss nearly so."""

    up_megabits: float | None = None  # a second; None: no limit
    down_megabits: float | None = None
    delay_seconds: float = 0.0  # one way
    loss_fraction: float = 0.0  # of the packets, each way
    queue_seconds: float = 0.2  # what waits longer for the rate is dropped, as at a router with so much memory
    is_behind_router: bool = False  # has a private address; can dial out, cannot be dialled

    def __post_init__(self) -> None:
        rates = [rate for rate in (self.up_megabits, self.down_megabits) if rate is not None]
        if not (all(rate > 0 for rate in rates) and self.delay_seconds >= 0 and self.queue_seconds > 0):
            raise ValueError(f"a link's rates and queue must be positive, its delay not negative: {self}")
        if not 0 <= self.loss_fraction <= 1:
            raise ValueError(f"loss_fraction must be from 0 to 1, not {self.loss_fraction}")

    @property
    def settings(self) -> str:
        """As the emulator's command `link` takes them: bytes a second, seconds, fraction."""
        up, down = ((rate or 0) * 1e6 / 8 for rate in (self.up_megabits, self.down_megabits))
        return f"{up} {down} {self.delay_seconds} {self.loss_fraction} {self.queue_seconds}"
