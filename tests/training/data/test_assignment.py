import random
from collections import Counter

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm_diloco.diloco.ledger import MAX_RANGES, DataRange
from swarm_diloco.errors import DataError
from swarm_diloco.training.data.assignment import (
    OWN_PASSES,
    BlockPosition,
    DataCursor,
    owners,
    permutation,
    shard_order,
)

WORKERS = [f"12D3KooW{n:04d}" for n in range(8)]
PINNED = [0, 10, 11, 8, 1, 9, 5, 2, 4, 6, 3, 7]


@given(st.integers(0, 300), st.integers(0, 2**63 - 1), st.integers(0, 5))
def test_a_permutation_has_every_number_once(length, seed, key):
    assert sorted(permutation(length, seed=seed, purpose="test", key=(key,)).tolist()) == list(range(length))


def test_a_permutation_is_the_same_on_every_machine():
    """Against the published algorithm in Python's own integers, and one result written down."""
    mask = 2**64 - 1
    state = int.from_bytes(blake3(b"blocks:1,0,3,0").digest(length=8), "little")
    keys = []
    for _ in range(12):
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        keys.append(mixed ^ (mixed >> 31))
    expected = sorted(range(12), key=keys.__getitem__)
    assert permutation(12, seed=1, purpose="blocks", key=(0, 3, 0)).tolist() == expected
    assert expected == PINNED


def test_permutations_of_other_passes_shards_and_seeds_are_unlike():
    first = permutation(1000, seed=1, purpose="blocks", key=(0, 0, 0)).tolist()
    for other in (
        permutation(1000, seed=2, purpose="blocks", key=(0, 0, 0)),
        permutation(1000, seed=1, purpose="shards", key=(0, 0, 0)),
        permutation(1000, seed=1, purpose="blocks", key=(1, 0, 0)),
        permutation(1000, seed=1, purpose="blocks", key=(0, 0, 1)),
    ):
        same = sum(a == b for a, b in zip(first, other.tolist(), strict=True))
        assert same < 10, "a random permutation has about one fixed point"


@given(st.integers(0, 60), st.integers(1, 8), st.randoms(use_true_random=False))
def test_every_worker_owns_an_equal_share(num_shards, num_workers, order):
    workers = WORKERS[:num_workers]
    owned = owners(num_shards, workers, seed=5)
    counts = Counter(owned)
    shares = [counts[worker] for worker in workers]
    assert len(owned) == num_shards
    assert max(shares) - min(shares) <= 1
    shuffled = order.sample(workers, len(workers))
    assert owners(num_shards, shuffled, seed=5) == owned


def test_few_shards_move_when_a_worker_leaves():
    before = owners(256, WORKERS, seed=5)
    after = owners(256, WORKERS[1:], seed=5)
    moved = sum(a != b for a, b in zip(before, after, strict=True))
    assert 32 <= moved <= 96, "32 must; dividing anew would move 224"


def test_there_must_be_workers():
    with pytest.raises(ValueError, match="workers"):
        owners(4, [], seed=0)


def cursor(num_shards=3, workers=WORKERS[:1], credited=None, lengths=None):
    made = DataCursor(num_shards, seed=7)
    made.assign(workers, credited or {}, WORKERS[0])
    for shard, length in (lengths or {}).items():
        made.learn_length(shard, length)
    return made


def train(data, num_blocks):
    """Train block by block; returns the positions."""
    positions = []
    for _ in range(num_blocks):
        positions.append(data.position())
        data.advance()
    return positions


def test_a_pass_has_every_block_once_and_then_the_next_begins():
    lengths = {0: 4, 1: 0, 2: 5}
    positions = train(cursor(lengths=lengths), 18)
    every = {(shard, block) for shard, length in lengths.items() for block in range(length)}
    for data_pass, taken in ((0, positions[:9]), (1, positions[9:])):
        assert {(at.shard, at.block) for at in taken} == every
        assert {at.data_pass for at in taken} == {data_pass}


def test_shards_come_in_the_passes_order():
    positions = train(cursor(8, lengths=dict.fromkeys(range(8), 1)), 24)
    for data_pass in range(3):
        order = shard_order(8, seed=7, data_pass=data_pass).tolist()
        assert [at.shard for at in positions[data_pass * 8 : data_pass * 8 + 8]] == order


def test_a_length_is_learned_on_the_way():
    data = cursor(1)
    train(data, 5)
    assert data.position() == BlockPosition(0, 0, 5)
    data.learn_length(0, 5)
    assert data.position() == BlockPosition(1, 0, 0)
    assert data.following() == BlockPosition(2, 0, 0)


def test_training_starts_where_credit_ends_whoever_earned_it():
    data = cursor(1, credited={(0, 0): 9, (1, 0): 4}, lengths={0: 10})
    assert data.position() == BlockPosition(1, 0, 4)
    data = cursor(1, credited={(0, 0): 10}, lengths={0: 10})
    assert data.position() == BlockPosition(1, 0, 0)
    data = cursor(1, credited={(0, 0): 999, (0, 77): 3}, lengths={0: 10})
    assert data.position() == BlockPosition(1, 0, 0), "credit past the end and for no shard does no harm"


def test_ranges_are_what_was_trained_until_a_commit_lists_them():
    data = cursor(1, lengths={0: 4})
    train(data, 6)
    offered = data.ranges()
    assert offered == (DataRange(0, 0, 0, 4), DataRange(1, 0, 0, 2))
    train(data, 1)
    data.credit(offered)
    assert data.ranges() == (DataRange(1, 0, 2, 3),)
    assert data.position() == BlockPosition(1, 0, 3)


def test_what_no_commit_listed_is_offered_again_with_more():
    data = cursor(1, lengths={0: 100})
    train(data, 3)
    assert data.ranges() == (DataRange(0, 0, 0, 3),)
    train(data, 2)
    assert data.ranges() == (DataRange(0, 0, 0, 5),)


def test_what_was_thrown_away_comes_again():
    data = cursor(1, credited={(0, 0): 3}, lengths={0: 100})
    train(data, 4)
    data.forget()
    assert data.ranges() == ()
    assert data.position() == BlockPosition(0, 0, 3)


def test_anothers_credit_moves_the_position_on():
    data = cursor(1, lengths={0: 100})
    train(data, 4)
    data.assign(WORKERS[:1], {(0, 0): 20}, WORKERS[0])
    train(data, 2)
    assert data.ranges() == (DataRange(0, 0, 0, 4), DataRange(0, 0, 20, 22))


def test_a_fork_that_lost_gives_its_blocks_back():
    data = cursor(1, credited={(0, 0): 50}, lengths={0: 100})
    data.assign(WORKERS[:1], {(0, 0): 30}, WORKERS[0])
    assert data.position() == BlockPosition(0, 0, 30)


def test_a_worker_without_a_shard_trains_all_in_its_own_order():
    workers = WORKERS[:3]
    idle = (set(workers) - set(owners(2, workers, seed=7))).pop()
    data = DataCursor(2, seed=7)
    data.assign(workers, {(0, 0): 3, (0, 1): 3}, idle)
    assert data.owned == ()
    for shard in range(2):
        data.learn_length(shard, 2)
    positions = train(data, 5)
    assert {(at.shard, at.block) for at in positions[:4]} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert [at.pass_number for at in positions] == [0, 0, 0, 0, 1]
    assert all(OWN_PASSES <= at.data_pass < 2**63 for at in positions)
    data.credit(data.ranges())
    assert data.position().pass_number == 1, "its own passes have credit of their own"
    data.assign([idle], {}, idle)
    assert data.position().data_pass == 0, "it takes part in the common pass when there are shards for it"


def test_shards_too_short_for_a_sequence_are_left_out():
    data = cursor(2, lengths={0: 0, 1: 3})
    assert {at.shard for at in train(data, 7)} == {1}
    data.learn_length(1, 0)
    with pytest.raises(DataError, match="no shard"):
        data.position()


def test_a_contribution_names_no_more_ranges_than_a_record_holds():
    data = cursor(1, lengths={0: 1})
    train(data, MAX_RANGES + 50)
    offered = data.ranges()
    assert len(offered) == MAX_RANGES
    assert offered[-1].data_pass == MAX_RANGES + 49
    data.credit(offered)
    assert len(data.ranges()) == 50


def test_the_position_is_exact_after_a_restart():
    data = cursor(3, credited={(0, 1): 2}, lengths={0: 4, 1: 5, 2: 6})
    train(data, 10)
    again = DataCursor(3, seed=7)
    again.restore(data.state())
    again.assign(WORKERS[:1], {(0, 1): 2}, WORKERS[0])
    for shard, length in {0: 4, 1: 5, 2: 6}.items():
        again.learn_length(shard, length)
    assert again.ranges() == data.ranges()
    assert train(again, 20) == train(data, 20)


@given(st.binary(max_size=60), st.integers(0, 40))
def test_a_damaged_state_is_refused_and_changes_nothing(noise, cut):
    data = cursor(lengths={0: 4, 1: 5, 2: 6})
    train(data, 5)
    before = data.state()
    for damaged in (noise, before[:cut] if cut < len(before) else noise, before + noise if noise else b""):
        with pytest.raises(DataError):
            data.restore(damaged)
    with pytest.raises(DataError, match="another seed"):
        data.restore(DataCursor(3, seed=8).state())
    assert data.state() == before


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 6), st.integers(1, 5))
def test_a_swarm_that_comes_and_goes_trains_each_block_of_a_pass(rng: random.Random, num_shards, num_workers):
    """Rounds with joins, crashes and missed commits: no block of a pass is left out; while nothing fails, none is
    trained twice."""
    lengths = {shard: rng.randint(1, 9) for shard in range(num_shards)}
    names = WORKERS[:num_workers]
    cursors: dict[str, DataCursor] = {}
    credited: dict[tuple[int, int], int] = {}
    listed: Counter[tuple[int, int, int]] = Counter()
    calm = rng.random() < 0.5 and num_workers <= num_shards
    present = list(names)
    for _ in range(40):
        if not calm:
            present = [name for name in names if rng.random() < 0.8] or names[:1]
        for name in set(cursors) - set(present):
            del cursors[name]  # it crashed: what it trained is lost
        offers = []
        for name in present:
            data = cursors.setdefault(name, DataCursor(num_shards, seed=7))
            data.assign(present, credited, name)
            for _ in range(rng.randint(1, 6)):
                while (at := data.position()).block >= lengths[at.shard]:
                    data.learn_length(at.shard, lengths[at.shard])
                data.advance()
            offers.append((data, data.ranges()))
        for data, ranges in offers:
            if calm or rng.random() < 0.8:
                data.credit(ranges)
                for entry in ranges:
                    key = entry.data_pass, entry.shard
                    credited[key] = max(entry.end, credited.get(key, 0))
                    listed.update((*key, block) for block in range(entry.first, entry.end))
    for shard in range(num_shards):
        newest = max((key[0] for key in credited if key[1] == shard and key[0] < OWN_PASSES), default=0)
        for data_pass in range(newest):
            counts = [listed[data_pass, shard, block] for block in range(lengths[shard])]
            assert min(counts) >= 1
            assert not calm or max(counts) == 1
