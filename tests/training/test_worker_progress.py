import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.diloco.records import pack, unpack
from swarm_diloco.training.progress import MAX_MISSED, Progress


def trained(progress: Progress, *tokens: int) -> Progress:
    for step_tokens in tokens:
        progress.stepped(step_tokens)
    return progress


def test_a_listed_offer_leaves_what_was_trained_since() -> None:
    progress = trained(Progress(), 10, 10)
    progress.offered()
    assert (progress.pending_weight, progress.pending_tokens, progress.offers) == (20, 20, 1)
    trained(progress, 7)
    progress.listed(weight=20, fraction=1.0, credited_tokens=20)
    assert (progress.pending_weight, progress.pending_tokens) == (7, 7)
    assert progress.steps_since_offer == 1


def test_a_late_offers_weight_is_one_rounds_and_its_tokens_all() -> None:
    progress = trained(Progress(), 10, 10)
    progress.offered()
    trained(progress, 5)
    progress.offered()
    assert (progress.pending_weight, progress.pending_tokens) == (20, 25)
    trained(progress, 30)
    progress.offered()
    assert (progress.pending_weight, progress.pending_tokens) == (30, 55)
    progress.listed(weight=30, fraction=1.0, credited_tokens=55)
    assert (progress.pending_weight, progress.pending_tokens) == (0, 0)
    trained(progress, 4)
    progress.offered()
    assert (progress.pending_weight, progress.pending_tokens) == (4, 4), "on time again: no cap, no rest"


def test_a_partly_listed_offer_falls_by_the_floor_of_its_part_and_the_next_has_one_rounds_weight() -> None:
    progress = trained(Progress(), 11)
    progress.offered()
    progress.listed(weight=11, fraction=0.3, credited_tokens=3)
    assert (progress.pending_weight, progress.pending_tokens) == (8, 8)
    trained(progress, 11)
    progress.offered()
    assert (progress.pending_weight, progress.pending_tokens) == (11, 19), "the rest is late, and no token is lost"


def test_a_refused_step_counts_as_a_step_and_has_no_weight() -> None:
    progress = trained(Progress(), 0, 10)
    assert (progress.step, progress.steps_since_offer, progress.pending_tokens) == (2, 2, 10)


def test_missed_commits_are_counted_by_rounds() -> None:
    progress = trained(Progress(synced_round=5), 10)
    assert progress.missed(5 + MAX_MISSED) == MAX_MISSED == 8
    progress.restarted(13)
    assert (progress.pending_tokens, progress.pending_weight, progress.missed(13), progress.step) == (0, 0, 0, 1)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 100), max_size=4), st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=30)
)
def test_no_token_is_claimed_twice_and_none_is_lost(rounds: list[tuple[list[int], float]]) -> None:
    progress, total, claimed = Progress(), 0, 0
    for tokens, fraction in rounds:
        trained(progress, *tokens)
        total += sum(tokens)
        progress.offered()
        assert progress.pending_weight <= progress.pending_tokens
        if fraction:
            credited = int(progress.pending_tokens * fraction)
            claimed += credited
            progress.listed(weight=progress.pending_weight, fraction=fraction, credited_tokens=credited)
        assert claimed + progress.pending_tokens == total


@given(st.lists(st.integers(0, 2**53), min_size=8, max_size=8), st.booleans())
def test_counters_survive_the_checkpoint(numbers: list[int], late: bool) -> None:
    progress = Progress(*numbers[:5], late, *numbers[5:])
    fields = unpack(pack(progress.fields()), "counters", limit_bytes=1000)
    assert Progress.read(fields) == progress
    fields.end()


def test_nothing_falls_below_zero() -> None:
    progress = trained(Progress(), 5)
    progress.listed(weight=9, fraction=1.0, credited_tokens=9)
    assert (progress.pending_weight, progress.pending_tokens) == (0, 0)
    progress = trained(Progress(), 8)
    progress.listed_unseen(0.5)
    assert progress.pending_tokens == pytest.approx(4)
