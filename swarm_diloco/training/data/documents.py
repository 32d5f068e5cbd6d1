"""Documents one after the other, from a place that can be noted down: plain text, and the run's own files."""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from blake3 import blake3

from swarm_diloco.errors import DataError
from swarm_diloco.training.data.settings import END_OF_DOCUMENT

SEPARATOR = END_OF_DOCUMENT  # a line of this ends a document in many public text files
LONG_DOCUMENT = 4096  # characters: plain text is cut at the next empty line, so that shards fill evenly
LONGEST_DOCUMENT = 16_384  # characters: and there at any line's end


class DocumentReader(Protocol):
    """Documents one after the other. Any exception but DataError may pass if it is read anew."""

    def __iter__(self) -> Iterator[str]: ...

    def state(self) -> str:
        """Where reading goes on after the last document that was given out: for `DocumentSource.open`."""
        ...


class DocumentSource(Protocol):
    """One shard's documents, always the same in the same order."""

    @property
    def identity(self) -> str:
        """Changes when the documents do."""
        ...

    def open(self, state: str | None = None) -> DocumentReader:
        """Read from the start, or from a reader's `state`."""
        ...


def text_of_line(line: bytes, text_field: str, where: str) -> str:
    try:
        return text_of(json.loads(line), text_field, where)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not a line of JSON ({error})") from error


def text_of(example: Any, text_field: str, where: str) -> str:
    text = example.get(text_field) if isinstance(example, dict) else None
    if not isinstance(text, str):
        fields = ", ".join(map(str, example)) if isinstance(example, dict) else type(example).__name__
        raise DataError(f"{where}: no text in the field {text_field!r} (there is: {fields[:200]})")
    return text


def documents_of_lines(lines: Iterable[str]) -> Iterator[str]:
    """Group lines (with or without their ends) into documents; reads no line past the document it gives out.

    A document ends at a line SEPARATOR, else at the first empty line after LONG_DOCUMENT characters, else at the first
    line's end after LONGEST_DOCUMENT. Empty documents are left out.
    """
    kept: list[str] = []
    size = 0
    for line in itertools.chain(lines, [SEPARATOR]):
        content = line.rstrip("\r\n")
        ends = content.strip() == SEPARATOR
        if not ends:
            kept.append(content)
            size += len(content) + 1
            ends = size >= LONGEST_DOCUMENT or (size >= LONG_DOCUMENT and not content.strip())
        if ends:
            document = "\n".join(kept).strip()
            kept, size = [], 0
            if document:
                yield document


class JsonlFile:
    """A file of {"text": …} lines as a DocumentSource."""

    def __init__(self, path: Path, *, text_field: str = "text") -> None:
        self._path = path
        self._text_field = text_field

    @property
    def identity(self) -> str:
        """The file's hash. Raises DataError if it cannot be read."""
        try:
            return blake3(self._path.read_bytes()).hexdigest()
        except OSError as error:
            raise DataError(f"cannot read {self._path}: {error.strerror or error}") from error

    def open(self, state: str | None = None) -> "JsonlReader":
        """`state` is the byte at which the next line begins."""
        return JsonlReader(self._path, self._text_field, int(state or 0))


class JsonlReader:
    """A DocumentReader. Raises DataError for an unreadable file or line, naming both."""

    def __init__(self, path: Path, text_field: str, offset: int) -> None:
        self._path = path
        self._text_field = text_field
        self._offset = offset

    def __iter__(self) -> Iterator[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    self._offset += len(line)
                    if line.strip():
                        yield text_of_line(line, self._text_field, f"{self._path}, before byte {self._offset}")
        except OSError as error:
            raise DataError(f"cannot read {self._path}: {error.strerror or error}") from error

    def state(self) -> str:
        return str(self._offset)
