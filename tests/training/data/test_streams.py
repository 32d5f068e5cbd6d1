import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm_diloco.errors import DataError
from swarm_diloco.training.data.documents import JsonlFile
from swarm_diloco.training.data.packing import pack
from swarm_diloco.training.data.streams import MakingStoppedError, ShardReader
from swarm_diloco.training.data.tokenizer import Encoder, byte_tokenizer

ENCODER = Encoder(byte_tokenizer())
LENGTH = 8


class CountedFile(JsonlFile):
    """Notes where reading began."""

    def __init__(self, path):
        super().__init__(path)
        self.opened = []

    def open(self, state=None):
        self.opened.append(state)
        return super().open(state)


def write_documents(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def texts(count, size=30):
    return [f"document {n} ".ljust(size + n % 7, "abcdefgh"[n % 8]) for n in range(count)]


@pytest.fixture
def file(tmp_path):
    return write_documents(tmp_path / "shard.jsonl", texts(100))


def reader(source, folder, **changes):
    options = {"shard": 3, "sequence_length": LENGTH, "seed": 5, "window_blocks": 50, **changes}
    return ShardReader(source, ENCODER, folder, **options)


def all_blocks(shard_reader):
    windows, index = [], 0
    while True:
        window = shard_reader.window(index)
        windows.append(np.asarray(window.blocks))
        if window.is_last:
            return np.concatenate(windows).tolist()
        index += 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("abc é", max_size=90), max_size=50), st.integers(1, 30), st.data())
def test_the_windows_are_the_packed_text_in_whatever_order_they_are_made(tmp_path_factory, documents, size, data):
    folder = tmp_path_factory.mktemp("shard")
    source = JsonlFile(write_documents(folder / "shard.jsonl", documents))
    expected = pack(documents, ENCODER, LENGTH).tolist()
    for _ in range(4):
        made = reader(source, folder, window_blocks=size)
        for index in data.draw(st.lists(st.integers(0, 6), max_size=5)):
            window = made.window(index)
            assert window.blocks.tolist() == expected[index * size : (index + 1) * size]
    assert all_blocks(reader(source, folder, window_blocks=size)) == expected


def test_a_pass_takes_each_block_once_in_an_order_of_its_own(file, tmp_path):
    made = reader(JsonlFile(file), tmp_path)
    expected = all_blocks(made)
    orders = []
    for data_pass in range(3):
        taken, index = [], 0
        while (block := made.block(data_pass, index)) is not None:
            taken.append(block.tolist())
            index += 1
        assert sorted(taken) == sorted(expected)
        orders.append(taken)
    assert orders[0] != orders[1] != orders[2] != expected != orders[0]
    again = reader(JsonlFile(file), tmp_path / "elsewhere")
    assert [again.block(1, index).tolist() for index in range(60)] == orders[1][:60]


def test_ready_windows_are_read_from_disk(file, tmp_path):
    all_blocks(reader(JsonlFile(file), tmp_path))
    source = CountedFile(file)
    all_blocks(reader(source, tmp_path))
    assert source.opened == []


def test_a_new_reader_goes_on_where_the_last_window_ended(file, tmp_path):
    reader(JsonlFile(file), tmp_path).window(2)
    source = CountedFile(file)
    reader(source, tmp_path).window(3)
    assert len(source.opened) == 1
    assert int(source.opened[0]) > file.stat().st_size / 4


def test_another_text_tokenizer_or_length_does_not_find_the_old_windows(file, tmp_path):
    reader(JsonlFile(file), tmp_path).window(0)
    other_encoder = Encoder(byte_tokenizer(eos_token="</s>"))
    source = CountedFile(file)
    options = {"shard": 3, "sequence_length": LENGTH, "seed": 5, "window_blocks": 50}
    ShardReader(source, other_encoder, tmp_path, **options).window(0)
    reader(source, tmp_path, sequence_length=16).window(0)
    write_documents(file, ["another text " * 200])
    changed = reader(source, tmp_path).window(0)
    assert source.opened == [None, None, None]
    assert bytes(changed.blocks[0].astype(np.uint8)) == b"another "


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY\x01\x00", b"no array"])
@pytest.mark.parametrize("pattern", ["*/window-*.npy", "*/boundary-*.npz", "*/length"])
def test_damaged_files_are_made_anew(file, tmp_path, pattern, damage):
    expected = all_blocks(reader(JsonlFile(file), tmp_path))
    damaged = list(tmp_path.glob(pattern))
    assert damaged
    for path in damaged:
        path.write_bytes(damage)
    for path in tmp_path.glob("*/window-000002.npy"):
        path.unlink()
    assert all_blocks(reader(JsonlFile(file), tmp_path)) == expected


def test_a_half_written_window_is_not_taken_for_whole(file, tmp_path):
    expected = all_blocks(reader(JsonlFile(file), tmp_path))
    (path,) = tmp_path.glob("*/window-000001.npy")
    path.write_bytes(path.read_bytes()[:-100])
    assert all_blocks(reader(JsonlFile(file), tmp_path)) == expected


def test_a_window_of_another_shape_is_not_taken(file, tmp_path):
    expected = all_blocks(reader(JsonlFile(file), tmp_path))
    for path in tmp_path.glob("*/window-*.npy"):
        np.save(path, np.zeros((2, 3), dtype=np.int32))
    assert all_blocks(reader(JsonlFile(file), tmp_path)) == expected


def test_stopping_is_prompt_and_loses_no_finished_window(file, tmp_path):
    source = CountedFile(file)
    made = reader(source, tmp_path)
    made.window(0)
    with pytest.raises(MakingStoppedError):
        made.window(5, lambda: True)
    assert made.window(5).blocks.tolist() == all_blocks(reader(JsonlFile(file), tmp_path / "other"))[250:300]


def test_only_the_newest_windows_are_kept_if_so_asked_and_the_others_come_back(file, tmp_path):
    expected = all_blocks(reader(JsonlFile(file), tmp_path / "all"))
    made = reader(JsonlFile(file), tmp_path / "few", keep_windows=2)
    first = made.window(0)
    assert all_blocks(made) == expected
    assert len(list(tmp_path.glob("few/*/window-*.npy"))) == 2
    assert first.blocks.tolist() == expected[:50], "one in use stays readable"
    assert made.window(1).blocks.tolist() == expected[50:100]


def test_a_shard_without_a_whole_sequence_has_an_empty_last_window(tmp_path):
    source = JsonlFile(write_documents(tmp_path / "shard.jsonl", ["abc"]))
    for _ in range(2):
        window = reader(source, tmp_path).window(0)
        assert window.blocks.shape == (0, LENGTH)
        assert window.is_last
    assert reader(source, tmp_path).block(0, 0) is None


def test_bad_text_is_an_error_each_time(file, tmp_path):
    with file.open("a") as end:
        end.write("no json\n")
    made = reader(JsonlFile(file), tmp_path, window_blocks=10_000)
    for _ in range(2):
        with pytest.raises(DataError, match="not a line of JSON"):
            made.window(0)
