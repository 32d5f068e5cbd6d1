"""Which values of θ_local were last taken from θ when: a commit may list a slow worker for some parts only."""

from collections.abc import Iterable, Sequence

Span = tuple[int, int]  # values [first, end)


class Staleness:
    """Of one fragment's values; at first all are of `round_`."""

    def __init__(self, num_values: int, round_: int) -> None:
        self._whole: Span = (0, num_values)
        self._spans: list[tuple[int, int, int]] = [(0, num_values, round_)]  # first, end, round; in order, no gaps

    def took(self, spans: Sequence[Span], round_: int) -> None:
        """These values are θ's of `round_` now. In order, none twice; no spans at all mean all values."""
        kept: list[tuple[int, int, int]] = []
        for span_first, end, before in self._spans:
            first = span_first
            for taken_first, taken_end in spans or [self._whole]:
                if taken_first < end and taken_end > first:
                    kept.append((first, taken_first, before))
                    kept.append((max(first, taken_first), min(end, taken_end), round_))
                    first = min(end, taken_end)
            kept.append((first, end, before))
        self._spans = _joined(span for span in kept if span[0] < span[1])

    def stale(self, newest: int, most_missed: int) -> list[Span]:
        """The values that were last taken `most_missed` rounds or longer before `newest`."""
        return [(first, end) for first, end, round_ in self._spans if newest - round_ >= most_missed]


def _joined(spans: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    joined: list[tuple[int, int, int]] = []
    for first, end, round_ in spans:
        if joined and joined[-1][2] == round_:
            joined[-1] = (joined[-1][0], end, round_)
        else:
            joined.append((first, end, round_))
    return joined
