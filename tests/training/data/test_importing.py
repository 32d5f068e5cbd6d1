import gzip
import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from swarm_diloco.errors import DataError, DiskError
from swarm_diloco.training.data.documents import JsonlFile
from swarm_diloco.training.data.importing import local_documents, write_held_out, write_shards

TEXTS = ["one", "zwei\nlines", "trois é\u2028"]


def write_jsonl(path):
    path.write_text("".join(json.dumps({"text": text, "body": text.upper()}) + "\n" for text in TEXTS) + "\n")


def write_gzip(path):
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"text": text, "body": text.upper()}) + "\n" for text in TEXTS)


def table():
    return pa.table({"text": TEXTS, "body": [text.upper() for text in TEXTS], "number": [1, 2, 3]})


def write_parquet(path):
    pyarrow.parquet.write_table(table(), path)


def write_arrow(path):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table().schema) as writer:
        writer.write_table(table())


WRITERS = {"a.jsonl": write_jsonl, "a.jsonl.gz": write_gzip, "a.parquet": write_parquet, "a.arrow": write_arrow}


@pytest.mark.parametrize("name", WRITERS)
def test_each_format_gives_the_same_documents(name, tmp_path):
    WRITERS[name](tmp_path / name)
    assert list(local_documents(tmp_path / name)) == TEXTS
    assert list(local_documents(tmp_path / name, text_field="body")) == [text.upper() for text in TEXTS]
    with pytest.raises(DataError, match=r"'title'.*body"):
        list(local_documents(tmp_path / name, text_field="title"))


def test_text_files_are_cut_by_the_rule_for_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\n<|endoftext|>\r\nthree\n")
    assert list(local_documents(tmp_path / "a.txt")) == ["one\ntwo", "three"]


def test_folders_and_globs_are_read_in_order_of_names(tmp_path):
    (tmp_path / "sub").mkdir()
    for name, text in {"b.txt": "B", "a.md": "A", "sub/c.text": "C", "image.png": "no", "README": "no"}.items():
        (tmp_path / name).write_text(text)
    assert list(local_documents(tmp_path)) == ["A", "B", "C"]
    assert list(local_documents(f"{tmp_path}/*.txt")) == ["B"]
    assert list(local_documents(f"{tmp_path}/**/*.text")) == ["C"]


@pytest.mark.parametrize("source", ["nothing.txt", "*.jsonl", "empty", "image.png"])
def test_a_source_without_text_is_named(source, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "image.png").write_bytes(b"png")
    with pytest.raises(DataError, match=source.replace("*", r"\*")):
        list(local_documents(f"{tmp_path}/{source}"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b"{}\n"),
        ("a.jsonl", b"\xff\xfe\n"),
        ("a.txt", b"\xff\xfe\n"),
        ("a.txt.gz", b"not gzip"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 9)[:-9]),
        ("a.parquet", b"PAR1 no"),
        ("a.arrow", b"no arrow"),
    ],
)
def test_a_damaged_file_is_named(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        list(local_documents(tmp_path / name))


def test_shards_hold_every_document_once_and_are_of_equal_size(tmp_path):
    documents = [f"document {n} " * (1 + n % 9) for n in range(200)]
    paths = write_shards(iter(documents), tmp_path, 7)
    assert [str(path.relative_to(tmp_path)) for path in paths] == [f"data/train-{n:05d}.jsonl" for n in range(7)]
    found = [document for path in paths for document in JsonlFile(path).open()]
    assert sorted(found) == sorted(documents)
    sizes = [path.stat().st_size for path in paths]
    assert max(sizes) - min(sizes) < 200
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_shards(documents, tmp_path, 7)] == before


def test_any_text_survives_being_written(tmp_path):
    texts = [*TEXTS, '"\\\x00', "<|endoftext|>", "日本語"]
    assert list(JsonlFile(write_held_out(texts, tmp_path)).open()) == texts
    assert list(JsonlFile(write_held_out(["half a \ud800 pair"], tmp_path)).open()) == ["half a ? pair"]


def test_too_few_documents_leave_the_old_files_as_they_were(tmp_path):
    (old,) = write_shards(["old"], tmp_path, 1)
    with pytest.raises(DataError, match="2 documents do not fill 3 files"):
        write_shards(["a", "b"], tmp_path, 3)
    with pytest.raises(DataError, match="0 documents"):
        write_held_out([], tmp_path)
    assert list(JsonlFile(old).open()) == ["old"]
    assert list(old.parent.iterdir()) == [old]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(DiskError, match="cannot write text"):
        write_shards(["a"], tmp_path, 1)
