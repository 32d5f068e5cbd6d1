"""Documents of local files, and the run's own files written from them when a run is made."""

import contextlib
import glob
import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path

from datasets import load_dataset

from swarm_diloco.disk import sync_folder
from swarm_diloco.errors import DataError, DiskError
from swarm_diloco.training.data.documents import documents_of_lines, text_of, text_of_line
from swarm_diloco.training.data.settings import held_out_path, shard_path

SUFFIXES = {  # after .gz is taken off; other files of a folder are no text
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
}


def local_documents(source: str | Path, *, text_field: str = "text") -> Iterator[str]:
    """Documents of a file, of all text under a folder, or of a glob, in order of names; `.gz` is read too.

    Text: `documents_of_lines`; jsonl, parquet and arrow: `text_field` of each example. Raises DataError.
    """
    for path in _files_of(str(source)):
        try:
            yield from _READERS[_format_of(path)](path, text_field)
        except (OSError, UnicodeDecodeError, EOFError) as error:
            raise DataError(f"cannot read {path}: {error}") from error


def _files_of(source: str) -> Sequence[Path]:
    path = Path(source)
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and _format_of(file) in _READERS)
    elif path.is_file():
        found = [path]
        if _format_of(path) not in _READERS:
            raise DataError(f"{path} is none of {', '.join(SUFFIXES)} (.gz or not)")
    else:
        names = glob.glob(source, recursive=True)  # noqa: PTH207 - a pattern may be absolute
        found = sorted(file for name in names if (file := Path(name)).is_file() and _format_of(file) in _READERS)
    if not found:
        raise DataError(f"{source} is no file, folder or glob of {', '.join(SUFFIXES)} files")
    return found


def _format_of(path: Path) -> str:
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    return SUFFIXES.get(suffixes[-1].lower(), "") if suffixes else ""


def _open(path: Path) -> BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _read_text(path: Path, text_field: str) -> Iterator[str]:
    with _open(path) as file:
        yield from documents_of_lines(line.decode() for line in file)


def _read_jsonl(path: Path, text_field: str) -> Iterator[str]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield text_of_line(line, text_field, f"{path}, line {number}")


def _read_table(path: Path, text_field: str) -> Iterator[str]:
    try:
        dataset = load_dataset(_format_of(path), data_files=str(path), split="train", streaming=True)
        yield from (text_of(example, text_field, str(path)) for example in dataset)
    except DataError:
        raise
    except Exception as error:  # datasets passes on what pyarrow raises
        raise DataError(f"cannot read {path}: {error}") from error


_READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    "text": _read_text,
    "jsonl": _read_jsonl,
    "parquet": _read_table,
    "arrow": _read_table,
}


def write_shards(documents: Iterable[str], folder: Path, num_shards: int) -> tuple[Path, ...]:
    """Write the training files of a run under `folder`, shards of nearly equal size; returns their paths.

    Each document goes to the shard that has the fewest bytes so far. Raises DataError for fewer documents than shards.
    """
    return _write_jsonl(documents, [folder / shard_path(shard) for shard in range(num_shards)])


def write_held_out(documents: Iterable[str], folder: Path, set_name: str = "held-out") -> Path:
    """Write an evaluation set of a run under `folder`. Raises DataError if there is no document."""
    return _write_jsonl(documents, [folder / held_out_path(set_name)])[0]


def _write_jsonl(documents: Iterable[str], paths: Sequence[Path]) -> tuple[Path, ...]:
    unfinished = [path.with_suffix(".writing") for path in paths]
    sizes = [0] * len(paths)
    try:
        for path in unfinished:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        for document in documents:
            line = json.dumps({"text": document}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            smallest = sizes.index(min(sizes))
            sizes[smallest] += len(line)
            with unfinished[smallest].open("ab") as file:
                file.write(line)
        if 0 in sizes:
            raise DataError(f"{len(sizes) - sizes.count(0)} documents do not fill {len(sizes)} files")
        for path, final in zip(unfinished, paths, strict=True):
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.replace(final)
        sync_folder(paths[0].parent)
    except OSError as error:
        raise DiskError(f"cannot write text under {paths[0].parent}: {error.strerror or error}") from error
    finally:
        for path in unfinished:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return tuple(paths)
