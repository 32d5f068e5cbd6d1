"""Text to token ids and back. Every tokenizer of a run is one file, tokenizer.json, that all members hold by hash.

The end-of-document token (EOS) is set between documents by our own hand, as an id: a document that happens to hold its
text, or a tokenizer with a post-processor of its own, changes nothing (`Encoder`).
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from swarm_diloco.errors import DataError
from swarm_diloco.training.data.settings import BYTE_VOCABULARY, END_OF_DOCUMENT, TokenizerSettings

# One thread: the others belong to training, and to the other peers of a machine. The library knows no other switch.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
MAX_LENGTH = 2**30  # of a text in tokens; a bound only so that no library warns: sequences are cut when packing


def train_bpe(
    documents: Iterable[str], vocabulary_size: int, *, eos_token: str = END_OF_DOCUMENT
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of at most `vocabulary_size` tokens, EOS counted (it has id 0); deterministic.

    Any text can be encoded, since all 256 bytes are tokens. A text too small for the vocabulary gives a smaller one.
    Raises ValueError for a vocabulary that cannot hold the bytes and EOS, DataError if there is no text.
    """
    if vocabulary_size < BYTE_VOCABULARY:
        raise ValueError(f"a BPE vocabulary has at least {BYTE_VOCABULARY} tokens, not {vocabulary_size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[eos_token],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    if tokenizer.get_vocab_size() <= BYTE_VOCABULARY < vocabulary_size:
        raise DataError("there is no text to train a tokenizer on")
    return _wrap(tokenizer, eos_token)


def byte_tokenizer(*, eos_token: str = END_OF_DOCUMENT) -> PreTrainedTokenizerFast:
    """A token a byte, its id the byte's value; EOS is 256. For the smallest models."""
    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([eos_token])
    return _wrap(tokenizer, eos_token)


def _byte_characters() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE: itself where Latin-1 shows it, else from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte) if byte in shown else chr(next(stand_ins)) for byte in range(256)]


def copy_from(folder: Path, *, eos_token: str | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer of a pretrained model that lies in `folder`; EOS is the model's own, or `eos_token` of its tokens.

    Raises DataError if there is none, or no such EOS.
    """
    return load_tokenizer(folder, eos_token=eos_token)


def make_tokenizer(settings: TokenizerSettings, documents: Iterable[str]) -> PreTrainedTokenizerFast:
    """What `settings` asks for, of a run that is being made. Kind "model" is `copy_from`'s: ValueError."""
    if settings.kind == "byte":
        return byte_tokenizer(eos_token=settings.eos_token)
    if settings.kind == "bpe":
        return train_bpe(documents, settings.vocabulary_size, eos_token=settings.eos_token)
    raise ValueError("the tokenizer of a model is copied from the model, not made")


def save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> tuple[Path, ...]:
    """Write the tokenizer's files into `folder` and return their paths. Raises DataError if that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save_pretrained(str(folder))
    except OSError as error:
        raise DataError(f"cannot write the tokenizer to {folder}: {error.strerror or error}") from error
    return tuple(path for name in (TOKENIZER_FILE, CONFIG_FILE) if (path := folder / name).is_file())


def load_tokenizer(folder: Path, *, eos_token: str | None = None) -> PreTrainedTokenizerFast:
    """Read what `save` wrote, or any fast tokenizer. No network, no code of the folder's is run.

    Raises DataError if the files are missing or damaged, or if EOS is not one of the tokens.
    """
    if not (folder / TOKENIZER_FILE).is_file():
        raise DataError(f"{folder} holds no {TOKENIZER_FILE}")
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # tokenizers raises bare Exception for a damaged file
        raise DataError(f"{folder / TOKENIZER_FILE} is damaged: {error}") from error
    eos_token = eos_token or tokenizer.eos_token
    if eos_token is None or eos_token not in tokenizer.get_vocab():
        raise DataError(f"{folder / TOKENIZER_FILE} has no end-of-document token ({eos_token or 'none is named'})")
    tokenizer.eos_token = eos_token
    return tokenizer


def _wrap(tokenizer: Tokenizer, eos_token: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=eos_token,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


class Encoder:
    """Documents to token ids, one int32 array each, with one EOS at the end and nowhere else.

    It holds a tokenizer of its own, so that it may be used in another thread than the one given; encoding leaves the
    interpreter to other threads (measured: `encode` does not, `encode_batch_fast` does).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no end-of-document token")
        self.definition: str = tokenizer.backend_tokenizer.to_str()  # what the ids depend on
        self.eos_id: int = tokenizer.eos_token_id
        self.vocabulary_size: int = len(tokenizer)
        self._tokenizer = Tokenizer.from_str(self.definition)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True  # "<|endoftext|>" within a document is text like any other

    def encode(self, documents: Sequence[str]) -> list[NDArray[np.int32]]:
        """Each document's ids and an EOS."""
        encodings = self._tokenizer.encode_batch_fast(documents, add_special_tokens=False)
        return [np.array([*encoding.ids, self.eos_id], dtype=np.int32) for encoding in encodings]
