"""What a model must beat to have learned more than how often each token comes."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class UnigramEntropy:
    """Nats a token of held-out text."""

    from_training: float  # cross-entropy under the training text's counts, one added to each: fair, so higher
    own: float  # entropy of its own counts: no context-free model can be below it


def unigram_entropy(
    tokens_train: torch.Tensor, tokens_held_out: torch.Tensor, *, vocabulary_size: int | None = None
) -> UnigramEntropy:
    """How well token frequencies alone predict `tokens_held_out`. Integer tensors of any shape.

    `vocabulary_size`: how many tokens get the added one; without it, up to the largest id in either text.
    Raises ValueError for a text without tokens or an id outside of the vocabulary.
    """
    train, held_out = (tokens.reshape(-1).numpy() for tokens in (tokens_train, tokens_held_out))
    if not train.size or not held_out.size:
        raise ValueError("the entropy of no tokens is not defined")
    num_ids = 1 + max(int(train.max()), int(held_out.max()))
    size = num_ids if vocabulary_size is None else vocabulary_size
    if num_ids > size:
        raise ValueError(f"token {num_ids - 1} is outside of a vocabulary of {size}")
    counts = np.bincount(held_out, minlength=size)
    smoothed = np.bincount(train, minlength=size) + 1.0
    return UnigramEntropy(_cross_entropy(counts, smoothed), _cross_entropy(counts, counts.astype(np.float64)))


def _cross_entropy(counts: NDArray[np.int64], model: NDArray[np.floating]) -> float:
    """−Σ p log q over the tokens that occur, p and q the shares of `counts` and `model`."""
    occurs = counts > 0
    shares = counts[occurs] / counts.sum()
    return float(-(shares * np.log(model[occurs] / model.sum())).sum())
