"""One peer's line: how fast it takes what is sent, and how much may be on its way at once.

What a `send` takes says little: the buffers on the way swallow megabytes at once, and a beat that comes after them is
minutes late on a slow line. So the receivers acknowledge parts; only so much is unacknowledged as the line, and each
receiver's, takes in two seconds; and the rate is bytes acknowledged over the time in which any were on their way, on
all streams together.
"""

from collections import deque
from collections.abc import Callable

ACK_SECONDS = 0.05  # a part is acknowledged within so long
ACK_BYTES = 2**18  # or when so much is
ON_THE_WAY_SECONDS = 2.0  # of the rate: several round trips, each with such a queue on both lines
STALL_SECONDS = 3.0  # a stream without an acknowledgement for so long holds up no other
LEAST_SECONDS = 0.001  # anything faster is a loopback


class Rate:
    """Bytes acknowledged a second, the best of the busy times of one round. Times are of the caller's clock."""

    def __init__(self) -> None:
        self.best_bytes = 0.0  # a second; 0: not known
        self._on_the_way_bytes = 0
        self._received_bytes = 0  # since it was busy
        self._busy_since = 0.0

    def sent(self, num_bytes: int, now: float) -> None:
        """So much is about to be sent."""
        if not self._on_the_way_bytes:
            self._busy_since, self._received_bytes = now, 0
        self._on_the_way_bytes += num_bytes

    def received(self, num_bytes: int, now: float) -> None:
        """The other side says so. From a slow reader's silence nothing follows: what counts is the best so far."""
        self._received_bytes += num_bytes
        busy_seconds = max(now - self._busy_since, LEAST_SECONDS)
        self.best_bytes = max(self.best_bytes, self._received_bytes / busy_seconds)
        self._on_the_way_bytes -= num_bytes

    def lost(self, num_bytes: int) -> None:
        """A stream has ended with so much unacknowledged."""
        self._on_the_way_bytes -= num_bytes


class Line:
    """A round's. `known_kilobits` a second, from the rounds before it; 0: not known.

    Only contributions make `kilobits`, what others plan with: averaged parts go out one by one as they are ready, and
    that takes round trips.
    """

    def __init__(self, known_kilobits: int = 0) -> None:
        self._known_kilobits = known_kilobits
        self._contributions, self._all = Rate(), Rate()
        self._streams: list[OnTheWay] = []
        self._blocked: deque[OnTheWay] = deque()  # each waits for its turn

    def stream(self, now: Callable[[], float], *, on_room: Callable[[], None]) -> "OnTheWay":
        """What is on its way on one stream; `end` it."""
        stream = OnTheWay(self, now, on_room)
        self._streams.append(stream)
        return stream

    def has_room(self, num_bytes: int, now: float) -> bool:
        """Whether so much may be sent: two parts always, and what the line takes in two seconds."""
        on_the_way = sum(stream.num_bytes for stream in self._streams if not stream.is_stalled(now))
        rate_bytes = max(self._all.best_bytes, self._known_kilobits * 125)
        return on_the_way + num_bytes <= max(2 * num_bytes, rate_bytes * ON_THE_WAY_SECONDS)

    def kilobits(self) -> int | None:
        """A second, as this round showed; None if nothing was sent."""
        best = self._contributions.best_bytes
        return max(1, int(best * 8 / 1000)) if best else None

    def _rates(self, is_contribution: bool) -> list[Rate]:
        return [self._all, self._contributions] if is_contribution else [self._all]

    def _next_turn(self) -> None:
        if self._blocked:
            self._blocked.popleft().on_room()


class OnTheWay:
    """What was sent on one stream and is not acknowledged. One that finds no room is asked again in its turn."""

    def __init__(self, line: Line, now: Callable[[], float], on_room: Callable[[], None]) -> None:
        self.on_room = on_room
        self.num_bytes = 0
        self._line, self._now = line, now
        self._rate = Rate()
        self._parts: deque[tuple[int, bool]] = deque()  # size, whether it is of a contribution
        self._num_received = 0
        self._moved_at = now()

    def has_room(self, num_bytes: int) -> bool:
        """If not, `on_room` is called when it is this stream's turn to ask again."""
        taken_bytes = max(num_bytes, self._rate.best_bytes * ON_THE_WAY_SECONDS)
        if self.num_bytes + num_bytes > taken_bytes:
            return False  # the other side's line is the narrower one: an acknowledgement comes first
        has_room = self._line.has_room(num_bytes, self._now())
        if not has_room and self not in self._line._blocked:
            self._line._blocked.append(self)
        return has_room

    def is_stalled(self, now: float) -> bool:
        return now - self._moved_at > STALL_SECONDS

    def sending(self, num_bytes: int, *, is_contribution: bool) -> None:
        if not self.num_bytes:
            self._moved_at = self._now()
        self._parts.append((num_bytes, is_contribution))
        self.num_bytes += num_bytes
        for rate in (self._rate, *self._line._rates(is_contribution)):
            rate.sent(num_bytes, self._now())
        self._line._next_turn()

    def received(self, num_parts: int) -> None:
        """The other side has so many parts of all; more than were sent are as good as all."""
        while self._parts and self._num_received < num_parts:
            num_bytes, is_contribution = self._parts.popleft()
            self._num_received += 1
            self.num_bytes -= num_bytes
            self._moved_at = self._now()
            for rate in (self._rate, *self._line._rates(is_contribution)):
                rate.received(num_bytes, self._moved_at)
        self.on_room()
        self._line._next_turn()

    def end(self) -> None:
        for num_bytes, is_contribution in self._parts:
            for rate in self._line._rates(is_contribution):
                rate.lost(num_bytes)
        self._parts.clear()
        self._line._streams.remove(self)
        if self in self._line._blocked:
            self._line._blocked.remove(self)
        self._line._next_turn()
