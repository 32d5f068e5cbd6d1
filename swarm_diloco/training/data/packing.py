"""Documents to blocks: one stream of tokens, an EOS after each document, cut into sequences. No padding.

So every token but a block's first is a target, EOS too, and no mask can hide it.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from swarm_diloco.training.data.tokenizer import Encoder

DOCUMENTS_A_CALL = 16  # encoded together: few, so that stopping takes milliseconds


class Packer:
    """Collects tokens and gives them back in blocks of `sequence_length`; what is left over waits for more."""

    def __init__(self, sequence_length: int, left_over: NDArray[np.int32] | None = None) -> None:
        """`left_over`: int32 tokens that come before everything added. Raises ValueError for a length under 2."""
        if sequence_length < 2:
            raise ValueError(f"a sequence has at least 2 tokens, not {sequence_length}")
        self._length = sequence_length
        self._pieces: list[NDArray[np.int32]] = [] if left_over is None else [left_over]
        self._num_tokens = sum(piece.size for piece in self._pieces)

    @property
    def num_blocks(self) -> int:
        """Blocks that `take` could give now."""
        return self._num_tokens // self._length

    def add(self, tokens: NDArray[np.int32]) -> None:
        """Append int32 tokens of any number."""
        self._pieces.append(tokens)
        self._num_tokens += tokens.size

    def take(self, max_blocks: int) -> NDArray[np.int32]:
        """The next blocks, int32 [n, sequence_length] with n ≤ `max_blocks`; they are then no longer here."""
        tokens = self.left_over()
        num_blocks = min(max_blocks, tokens.size // self._length)
        end = num_blocks * self._length
        self._pieces, self._num_tokens = [tokens[end:]], tokens.size - end
        return tokens[:end].reshape(num_blocks, self._length)

    def left_over(self) -> NDArray[np.int32]:
        """All tokens that are here, int32, not removed."""
        return np.concatenate(self._pieces) if self._pieces else np.empty(0, dtype=np.int32)


def token_stream(documents: Iterable[str], encoder: Encoder) -> Iterator[NDArray[np.int32]]:
    """The documents' ids in order, EOS after each."""
    batch: list[str] = []
    for document in documents:
        batch.append(document)
        if len(batch) == DOCUMENTS_A_CALL:
            yield from encoder.encode(batch)
            batch = []
    yield from encoder.encode(batch)


def pack(
    documents: Iterable[str], encoder: Encoder, sequence_length: int, *, max_blocks: int | None = None
) -> torch.Tensor:
    """All whole blocks of the documents, int64 [n, sequence_length], the first `max_blocks` if that is given."""
    packer = Packer(sequence_length)
    for tokens in token_stream(documents, encoder):
        packer.add(tokens)
        if max_blocks is not None and packer.num_blocks >= max_blocks:
            break
    return torch.from_numpy(packer.take(packer.num_blocks if max_blocks is None else max_blocks).astype(np.int64))
