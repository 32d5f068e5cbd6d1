import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.training.data.packing import Packer, pack, token_stream
from swarm_diloco.training.data.tokenizer import Encoder, byte_tokenizer

ENCODER = Encoder(byte_tokenizer())
documents = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=40)


@given(documents, st.integers(2, 33))
def test_the_blocks_are_the_documents_with_an_end_after_each(texts, length):
    stream = [token for text in texts for token in [*text.encode(), 256]]
    blocks = pack(texts, ENCODER, length)
    assert blocks.dtype == torch.int64
    assert blocks.shape == (len(stream) // length, length)
    assert blocks.flatten().tolist() == stream[: blocks.numel()]


@given(documents)
def test_there_are_as_many_ends_as_documents(texts):
    tokens = [token for ids in token_stream(texts, ENCODER) for token in ids.tolist()]
    assert tokens.count(256) == len(texts)


@given(documents, st.integers(2, 9), st.lists(st.integers(0, 5), max_size=10), st.data())
def test_taking_piece_by_piece_gives_the_same_blocks(texts, length, sizes, data):
    pieces = list(token_stream(texts, ENCODER))
    packer, taken = Packer(length), []
    for piece in pieces:
        packer.add(piece)
        if data.draw(st.booleans()):
            packer = Packer(length, packer.left_over())  # a restart
        taken += packer.take(data.draw(st.sampled_from([0, *sizes]))).tolist()
    taken += packer.take(10**6).tolist()
    assert taken == pack(texts, ENCODER, length).tolist()
    assert packer.left_over().size < length


def test_a_bound_is_kept_without_reading_on():
    def endless():
        while True:
            yield "text"

    assert pack(endless(), ENCODER, 8, max_blocks=3).shape == (3, 8)


def test_a_sequence_needs_a_target():
    with pytest.raises(ValueError, match="2 tokens"):
        Packer(1)
    assert Packer(2).take(5).shape == (0, 2)
    assert Packer(2).left_over().dtype == np.int32
