"""A line's rate is what comes out at the other end, and no more is on its way than it takes in two seconds."""

from swarm_diloco.rounds.line import ON_THE_WAY_SECONDS, STALL_SECONDS, Line, OnTheWay

PART = 1000  # bytes


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.turns: list[str] = []

    def stream(self, line: Line, name: str = "") -> OnTheWay:
        return line.stream(lambda: self.now, on_room=lambda: self.turns.append(name))


def carry(
    clock: Clock, stream: OnTheWay, num_parts: int, *, bytes_a_second: float, is_contribution: bool = True
) -> None:
    """One part after the other, each acknowledged as it is through."""
    for number in range(1, num_parts + 1):
        stream.sending(PART, is_contribution=is_contribution)
        clock.now += PART / bytes_a_second
        stream.received(number)


def test_the_rate_is_what_was_acknowledged_while_anything_was_on_its_way() -> None:
    clock, line = Clock(), Line()
    stream = clock.stream(line)
    assert line.kilobits() is None
    carry(clock, stream, 5, bytes_a_second=10_000)
    clock.now += 100  # nothing was on its way
    assert line.kilobits() == 80


def test_a_slow_readers_silence_takes_nothing_from_the_rate() -> None:
    clock, line = Clock(), Line()
    quick, slow = clock.stream(line), clock.stream(line)
    slow.sending(PART, is_contribution=True)
    carry(clock, quick, 20, bytes_a_second=10_000)
    clock.now += 50
    slow.received(1)
    assert line.kilobits() == 80


def test_streams_of_one_line_add_up() -> None:
    clock, line = Clock(), Line()
    streams = [clock.stream(line) for _ in range(4)]
    for stream in streams:
        stream.sending(PART, is_contribution=True)
    clock.now = 1.0
    for stream in streams:
        stream.received(1)
    assert line.kilobits() == 32


def test_averaged_parts_make_no_rate_for_others() -> None:
    clock, line = Clock(), Line()
    carry(clock, clock.stream(line), 5, bytes_a_second=10_000, is_contribution=False)
    assert line.kilobits() is None


def test_acknowledging_more_than_was_sent_is_as_good_as_all() -> None:
    clock, line = Clock(), Line()
    stream = clock.stream(line)
    stream.sending(PART, is_contribution=True)
    clock.now = 1.0
    stream.received(2**60)
    assert line.kilobits() == 8
    assert stream.num_bytes == 0


def test_a_stream_has_one_part_on_its_way_until_its_rate_is_known_and_then_two_seconds_worth() -> None:
    clock, line = Clock(), Line(10**6)
    stream = clock.stream(line)
    assert stream.has_room(PART)
    stream.sending(PART, is_contribution=True)
    assert not stream.has_room(PART)
    clock.now = 0.1
    stream.received(1)  # 10 kB a second
    num_sent = 0
    while stream.has_room(PART):
        stream.sending(PART, is_contribution=True)
        num_sent += 1
    assert num_sent * PART == 10_000 * ON_THE_WAY_SECONDS


def test_a_line_has_two_parts_on_its_way_on_all_streams_and_the_others_have_their_turn() -> None:
    clock, line = Clock(), Line()
    streams = [clock.stream(line, name) for name in "abcd"]
    for stream in streams[:2]:
        assert stream.has_room(PART)
        stream.sending(PART, is_contribution=True)
    assert not any(stream.has_room(PART) for stream in streams[2:])
    clock.now = 0.1
    streams[0].received(1)
    assert clock.turns == ["a", "c"]  # its own room first, then who waits longest
    assert streams[2].has_room(PART)
    streams[2].sending(PART, is_contribution=True)
    assert clock.turns == ["a", "c", "d"]


def test_a_stream_that_stalls_or_ends_holds_up_no_other() -> None:
    clock, line = Clock(), Line()
    dead, gone, alive = (clock.stream(line, name) for name in ("dead", "gone", "alive"))
    for stream in (dead, gone):
        stream.sending(PART, is_contribution=True)
    assert not alive.has_room(PART)
    gone.end()
    assert clock.turns == ["alive"]
    assert alive.has_room(PART)
    alive.sending(PART, is_contribution=True)
    assert not clock.stream(line).has_room(PART)
    clock.now = STALL_SECONDS + 0.1
    assert clock.stream(line).has_room(PART)
