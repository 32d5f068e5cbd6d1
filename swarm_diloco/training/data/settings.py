"""What all members of a run must agree on about its text and its tokenizer."""

import re
from dataclasses import dataclass
from typing import Literal

Source = Literal["files", "hub", "url"]
Format = Literal["text", "jsonl", "parquet", "arrow"]
TokenizerKind = Literal["bpe", "byte", "model"]

END_OF_DOCUMENT = "<|endoftext|>"
BYTE_VOCABULARY = 257  # 256 bytes and the end-of-document token
MAX_SHARDS = 2**20
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings:
    """Where training text comes from, and into how many shards it is divided. Raises ValueError naming the rule.

    "files": the run's own files `data/train-00000.jsonl` … and `data/held-out.jsonl`, one {"text": …} a line.
    "hub": a data set of the Hugging Face hub, streamed; "url": files of an ordinary web server, streamed.
    """

    source: Source = "files"
    format: Format = "jsonl"
    text_field: str = "text"  # of jsonl, parquet and arrow
    dataset: str = ""  # hub: owner/name; url: an address, {00000..00127} in it standing for a row of files
    revision: str = ""  # hub: a commit, since a branch would give peers unlike text
    configuration: str = ""  # hub: the data set's configuration, if it has several
    split: str = "train"
    evaluation_split: str = ""  # hub: the split that the set "held-out" is read from; else data/held-out.jsonl is
    shards: int = 1
    licence: str = ""  # of the text; shown to who joins

    def __post_init__(self) -> None:
        if self.source not in ("files", "hub", "url"):
            raise ValueError(f'data.source is "files", "hub" or "url", not {self.source!r}')
        if self.format not in ("text", "jsonl", "parquet", "arrow"):
            raise ValueError(f'data.format is "text", "jsonl", "parquet" or "arrow", not {self.format!r}')
        if self.source == "files" and self.format != "jsonl":
            raise ValueError(f'data.format is "jsonl" with source "files", not {self.format!r}')
        if not 1 <= self.shards <= MAX_SHARDS:
            raise ValueError(f"data.shards is from 1 to {MAX_SHARDS}, not {self.shards}")
        if not self.text_field:
            raise ValueError("data.text_field is the name of a field, not empty")
        if not self.split:
            raise ValueError("data.split is the name of a split, not empty")
        if self.source == "hub" and not self.dataset:
            raise ValueError("data.dataset is owner/name of a data set on the hub, not empty")
        if self.source == "hub" and not _COMMIT.fullmatch(self.revision):
            raise ValueError(f"data.revision is a commit of 40 hex digits with source hub, not {self.revision!r}")
        if self.source == "url" and not self.dataset.startswith(("http://", "https://")):
            raise ValueError(f"data.dataset is an http or https address with source url, not {self.dataset!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerSettings:
    """How text becomes token ids. Raises ValueError naming the rule.

    "bpe": trained on the run's text when the run is made; "byte": a token a byte; "model": the pretrained model's own.
    """

    kind: TokenizerKind = "bpe"
    vocabulary_size: int = 4096  # the end-of-document token counted
    eos_token: str = END_OF_DOCUMENT

    def __post_init__(self) -> None:
        if self.kind not in ("bpe", "byte", "model"):
            raise ValueError(f'tokenizer.kind is "bpe", "byte" or "model", not {self.kind!r}')
        if not self.eos_token:
            raise ValueError("tokenizer.eos_token is the text of a token, not empty")
        if self.kind == "byte" and self.vocabulary_size != BYTE_VOCABULARY:
            raise ValueError(f'tokenizer.vocabulary_size is {BYTE_VOCABULARY} with "byte", not {self.vocabulary_size}')
        if not BYTE_VOCABULARY <= self.vocabulary_size < 2**31:
            raise ValueError(f"tokenizer.vocabulary_size is at least {BYTE_VOCABULARY}, not {self.vocabulary_size}")


def shard_path(shard: int) -> str:
    """The run's file that holds this shard, with source "files"."""
    return f"data/train-{shard:05d}.jsonl"


def held_out_path(set_name: str = "held-out") -> str:
    """The run's file that holds this evaluation set."""
    return f"data/{set_name}.jsonl"
