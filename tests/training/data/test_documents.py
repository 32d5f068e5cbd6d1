import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.errors import DataError
from swarm_diloco.training.data.documents import (
    LONG_DOCUMENT,
    LONGEST_DOCUMENT,
    JsonlFile,
    documents_of_lines,
    text_of_line,
)

lines = st.lists(
    st.sampled_from(["", "words\n", "a longer line of words " * 40, "<|endoftext|>\n", "x" * 3000 + "\r\n"])
)


@given(lines)
def test_no_line_of_a_text_is_lost(given_lines):
    kept = [line.strip() for document in documents_of_lines(given_lines) for line in document.split("\n")]
    expected = [line.strip() for line in given_lines if line.strip() not in ("", "<|endoftext|>")]
    assert [line for line in kept if line] == expected


def test_a_text_is_cut_where_the_rule_says():
    paragraph = ["words " * 20] * 40 + [""]
    documents = list(documents_of_lines(paragraph * 10))
    assert len(documents) > 2
    assert all(LONG_DOCUMENT <= len(document) < LONGEST_DOCUMENT for document in documents[:-1])
    unbroken = list(documents_of_lines(["x" * 1000] * 100))
    assert sum(document.count("x") for document in unbroken) == 100_000
    assert [len(document) // 1000 for document in unbroken] == [17, 17, 17, 17, 17, 15]
    assert list(documents_of_lines(["a", "<|endoftext|>", "b", "c", " <|endoftext|> ", ""])) == ["a", "b\nc"]


def test_no_line_is_read_before_it_is_needed():
    read = []

    def noted():
        for line in ["a", "<|endoftext|>", "b"]:
            read.append(line)
            yield line

    documents = documents_of_lines(noted())
    assert next(documents) == "a"
    assert read == ["a", "<|endoftext|>"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"täxt {n}"}, ensure_ascii=False) + "\n" for n in range(9)) + "\n")
    return path


def test_a_file_is_read_on_from_any_place(file):
    everything = list(JsonlFile(file).open())
    assert everything == [f"täxt {n}" for n in range(9)]
    reader = JsonlFile(file).open()
    iterator = iter(reader)
    for count in range(1, 10):
        next(iterator)
        assert list(JsonlFile(file).open(reader.state())) == everything[count:]


def test_a_files_identity_is_its_content(file):
    before = JsonlFile(file).identity
    file.write_text('{"text": "other"}\n')
    assert JsonlFile(file).identity != before


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"text": "a"', "not a line of JSON"),
        ('{"body": "a"}', "'text'.*body"),
        ('["a"]', "list"),
        ('{"text": 3}', "text"),
    ],
)
def test_a_bad_line_is_named(file, line, named):
    with file.open("a") as end:
        end.write(line + "\n")
    with pytest.raises(DataError, match=rf"texts\.jsonl, before byte \d+: .*{named}"):
        list(JsonlFile(file).open())


def test_a_missing_file_is_named(tmp_path):
    for use in (
        lambda: JsonlFile(tmp_path / "no.jsonl").identity,
        lambda: list(JsonlFile(tmp_path / "no.jsonl").open()),
    ):
        with pytest.raises(DataError, match=r"no\.jsonl"):
            use()


def test_a_line_nested_without_end_is_refused_by_its_place():
    with pytest.raises(DataError, match="line 3"):
        text_of_line(b"[" * 100_000, "text", "a.jsonl, line 3")
