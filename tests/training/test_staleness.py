"""Which values were taken when, against a plain list of rounds."""

from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.training.staleness import Staleness

NUM_VALUES = 12
cuts = st.lists(st.integers(0, NUM_VALUES), max_size=8, unique=True).map(sorted)


@given(st.lists(cuts, max_size=8))
def test_each_value_is_of_the_round_that_took_it_last(rounds: list[list[int]]) -> None:
    staleness, plain = Staleness(NUM_VALUES, 0), [0] * NUM_VALUES
    for round_, ends in enumerate(rounds, start=1):
        spans = [(ends[i], ends[i + 1]) for i in range(0, len(ends) - 1, 2)]
        staleness.took(spans, round_)
        for first, end in spans or [(0, NUM_VALUES)]:
            plain[first:end] = [round_] * (end - first)
    for most_missed in range(1, 9):
        stale = {value for first, end in staleness.stale(len(rounds), most_missed) for value in range(first, end)}
        assert stale == {value for value in range(NUM_VALUES) if len(rounds) - plain[value] >= most_missed}
