import math

import pytest
import torch

from swarm_diloco.training.data.unigram import unigram_entropy


def test_it_is_the_formula():
    train, held_out = torch.tensor([[0, 0, 0, 1]]), torch.tensor([0, 1, 1, 2])
    found = unigram_entropy(train, held_out, vocabulary_size=4)
    # smoothed counts 4, 2, 1, 1 of 8
    expected = -(1 / 4 * math.log(4 / 8) + 2 / 4 * math.log(2 / 8) + 1 / 4 * math.log(1 / 8))
    assert found.from_training == pytest.approx(expected, abs=1e-12)
    assert found.own == pytest.approx(math.log(4) - 0.5 * math.log(2), abs=1e-12)


def test_uniform_text_has_the_logarithm_of_its_vocabulary():
    tokens = torch.arange(100).repeat(1000)
    found = unigram_entropy(tokens, tokens)
    assert found.own == pytest.approx(math.log(100))
    assert found.from_training == pytest.approx(math.log(100))


def test_no_tokens_and_unknown_tokens_are_refused():
    some, none = torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64)
    with pytest.raises(ValueError, match="no tokens"):
        unigram_entropy(none, some)
    with pytest.raises(ValueError, match="vocabulary of 2"):
        unigram_entropy(some, some, vocabulary_size=2)
