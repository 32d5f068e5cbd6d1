"""What a worker's processes say to each other and keep for themselves, and text, tokenizer and model as they come."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from record_formats import Format, read_file_with, write_file_with
from record_values import COUNTS, Strategy, values_of
from swarm_diloco.diloco import ledger
from swarm_diloco.diloco.records import pack, unpack
from swarm_diloco.errors import DataError, DiskError, ModelError
from swarm_diloco.training import channel
from swarm_diloco.training.checkpoint import FILE_NAME, HASH, Checkpoint, Saved, _bytes, _hash
from swarm_diloco.training.data.assignment import MAX_STATE_BYTES, DataCursor
from swarm_diloco.training.data.documents import text_of_line
from swarm_diloco.training.data.tokenizer import byte_tokenizer, load_tokenizer
from swarm_diloco.training.device import Device
from swarm_diloco.training.inner_loop import InnerLoop
from swarm_diloco.training.model import build_model
from swarm_diloco.training.progress import Progress
from swarm_diloco.training.settings import InnerSettings
from swarm_diloco_bootstrap.run_model import read_config

CONFIG = {
    "model_type": "gpt2",
    "vocab_size": 8,
    "n_embd": 4,
    "n_layer": 1,
    "n_head": 1,
    "n_positions": 8,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@functools.lru_cache(maxsize=1)
def small_loop() -> InnerLoop:
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(CONFIG))
        model = build_model(path)
    settings = InnerSettings(warmup_tokens=10, total_tokens=1000, sequence_length=8, batch_sequences=1)
    loop = InnerLoop(model, settings, Device(torch.device("cpu"), torch.float32), 1)
    loop.step(torch.zeros(1, 8, dtype=torch.int64), 0)
    return loop


def read_saved(path: Path) -> Saved | None:
    return Checkpoint(path.parent).load(small_loop())


def read_well_hashed(data: bytes) -> Saved | None:
    """A file whose hash is right, whatever else is wrong in it."""
    try:
        tensors = load_safetensors(data)
    except SafetensorError as error:
        raise DiskError("not safetensors") from error
    tensors.pop(HASH, None)
    tensors[HASH] = _bytes(_hash(tensors))
    return read_file_with(read_saved, FILE_NAME)(bytes(save_safetensors(tensors)))


def read_cursor(data: bytes) -> list[ledger.DataRange]:
    cursor = DataCursor(2**20, seed=7)
    cursor.restore(data)
    return cursor._pending


def read_progress(data: bytes) -> Progress:
    fields = unpack(data, "", limit_bytes=MAX_STATE_BYTES)
    progress = Progress.read(fields)
    fields.end()
    return progress


def channel_values(hint: Any) -> Strategy:
    """All that a field of a message to or from the trainer may hold; MessagePack's integers have 64 bits."""
    inner = get_args(hint)
    if getattr(hint, "__origin__", None) is tuple:
        if inner[-1] is Ellipsis:
            return st.lists(channel_values(inner[0]), max_size=3).map(tuple)
        return st.tuples(*map(channel_values, inner))
    if inner:
        return st.one_of(*map(channel_values, inner))
    plain: dict[Any, Strategy] = {
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
        type(None): st.none(),
    }
    return plain[hint]


def channel_messages() -> Strategy:
    kinds = get_args(channel.FromClient) + get_args(channel.FromTrainer)
    fields = {kind: {name: channel_values(hint) for name, hint in get_type_hints(kind).items()} for kind in kinds}
    return st.one_of(*(st.builds(kind, **fields[kind]) for kind in kinds))


TRAINING: dict[str, Format] = {
    "trainer's channel": Format(
        values=channel_messages(),
        encode=lambda message: channel.encode(message)[channel.HEADER_BYTES :],
        decode=channel.decode,
        refusals=(ValueError,),
        is_canonical=False,  # nothing of it is hashed, kept or sent to another machine
    ),
    "checkpoint": Format(
        values=st.builds(
            Saved, st.builds(Progress, *[st.integers(0, 2**60)] * 5, st.booleans()), st.binary(max_size=50)
        ),
        encode=write_file_with(lambda saved, path: Checkpoint(path.parent).save(small_loop(), saved), FILE_NAME),
        decode=read_file_with(read_saved, FILE_NAME),
        refusals=(DiskError,),
        form="safetensors",
        is_canonical=False,  # its hash is of names and values
        share=4,
    ),
    "checkpoint with a right hash": Format(
        values=st.builds(Saved, st.builds(Progress, COUNTS), st.binary(max_size=50)),
        encode=write_file_with(lambda saved, path: Checkpoint(path.parent).save(small_loop(), saved), FILE_NAME),
        decode=read_well_hashed,
        refusals=(DiskError,),
        form="safetensors",
        is_canonical=False,
        share=4,
    ),
    "progress": Format(
        values=st.builds(Progress, *[COUNTS] * 5, st.booleans(), *[COUNTS] * 3),
        encode=lambda progress: pack(progress.fields()),
        decode=read_progress,
        covers=("Progress",),
    ),
    "position in the text": Format(
        values=st.lists(
            values_of(ledger.DataRange).map(lambda r: ledger.DataRange(r.data_pass, r.shard % 2**20, r.first, r.end)),
            max_size=4,
        ),
        encode=lambda pending: pack([1, 7, 2**20, [entry.fields() for entry in pending]]),
        decode=read_cursor,
        refusals=(DataError,),
        limit_bytes=MAX_STATE_BYTES,
    ),
    "line of text": Format(
        values=st.text(max_size=40),
        encode=lambda text: json.dumps({"text": text}).encode(),
        decode=lambda line: text_of_line(line, "text", "here"),
        refusals=(DataError,),
        form="json",
        is_canonical=False,  # anybody's text, read as it is
    ),
    "tokenizer": Format(
        values=st.just(None),
        encode=write_file_with(lambda _, path: byte_tokenizer().backend_tokenizer.save(str(path)), "tokenizer.json"),
        decode=read_file_with(
            lambda path: load_tokenizer(path.parent, eos_token="<|endoftext|>") and None, "tokenizer.json"
        ),
        refusals=(DataError,),
        form="json",
        is_canonical=False,  # the manifest names the file by its hash
        share=10,
    ),
    "model config": Format(
        values=st.just(CONFIG),
        encode=lambda config: json.dumps(config).encode(),
        decode=read_file_with(read_config),
        refusals=(ModelError,),
        form="json",
        is_canonical=False,  # as above
    ),
}
