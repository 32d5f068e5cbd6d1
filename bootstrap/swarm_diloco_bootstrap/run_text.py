"""A new run's text: found, divided into training shards and held-out text, and written as the run's files."""

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from blake3 import blake3

from swarm_diloco.errors import DataError, DiskError
from swarm_diloco.training.data import builtin
from swarm_diloco.training.data.documents import JsonlFile
from swarm_diloco.training.data.importing import SUFFIXES, local_documents, write_held_out, write_shards
from swarm_diloco.training.data.remote import remote_documents, remote_shard, resolve_revision
from swarm_diloco.training.data.settings import DataSettings, Format, held_out_path, shard_path
from swarm_diloco.training.data.web import expand

BUILTIN = "builtin"
HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?|([\w.-]+)@([\w./-]+)")
COMMIT = re.compile(r"[0-9a-f]{40}")
HELD_OUT_CHARACTERS = 2_000_000  # about half a million tokens: as much as any preset measures with
LARGEST_HELD_OUT_SHARE = 0.1  # of a small text
SHARD_CHARACTERS = 2**26  # a worker fetches a shard whole: 64 MB is half a minute at 20 Mbit/s
MOST_SHARDS = 2048  # of the run's own: the manifest names each

Documents = Callable[[], Iterable[str]]  # the same ones anew at each call


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRequest:
    """What the operator wants to train on."""

    data: str | None  # "builtin", a path or glob, an address, or owner/name@revision; None: as `settings` say
    held_out: str | None  # a path or glob; None: a part of the text, or the hub's evaluation split
    settings: DataSettings
    given: Collection[str]  # settings of [data] that the operator chose; others may be adapted
    earlier: Path | None  # the files/ of the run whose run.toml was given, if it was
    sets: tuple[str, ...]  # names of the evaluation sets
    batch_characters: int  # about one inner step's text: a shard gets no less unless the operator says so


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedText:
    settings: DataSettings
    documents: Documents  # for training
    notices: tuple[str, ...] = ()


def prepare_text(request: TextRequest, files: Path, cache: Path) -> PreparedText:
    """Write the run's text under `files`; libraries keep what they need under `cache`.

    Raises DataError, DiskError, and ValueError for settings that contradict each other.
    """
    data, settings = request.data, request.settings
    if data is None:
        return _copied(request, files) if settings.source == "files" else _remote(request, settings, files, cache)
    if data == BUILTIN:
        text = builtin.builtin_text()
        settings = replace(_without_source(settings), licence=settings.licence or builtin.LICENCE)
        return _written(request, settings, files, lambda: text.train, lambda: text.held_out)
    if data.startswith(("http://", "https://")):
        return _remote(request, _of_address(request, data), files, cache)
    if Path(data).exists() or any(letter in data for letter in "*?["):
        return _local(request, data, files)
    return _remote(request, _of_hub(settings, data), files, cache)


def _without_source(settings: DataSettings) -> DataSettings:
    """What holds for the run's own files: nothing of another source, and the field that they are written with."""
    return replace(
        settings,
        source="files",
        format="jsonl",
        text_field="text",
        dataset="",
        revision="",
        configuration="",
        split="train",
        evaluation_split="",
    )


def _of_address(request: TextRequest, address: str) -> DataSettings:
    suffixes = [suffix for suffix in Path(expand(address)[0].split("?")[0]).suffixes if suffix != ".gz"]
    own = replace(
        _without_source(request.settings), source="url", dataset=address, text_field=request.settings.text_field
    )
    if "format" in request.given:
        return replace(own, format=request.settings.format)
    form = SUFFIXES.get(suffixes[-1] if suffixes else "")
    for known in get_args(Format):
        if known == form:
            return replace(own, format=known)
    raise DataError(f"{address} does not end in one of {', '.join(SUFFIXES)}: name its form with data.format")


def _of_hub(settings: DataSettings, name: str) -> DataSettings:
    found = HUB_NAME.fullmatch(name)
    if found is None:
        raise DataError(f"{name} is no file, folder, glob, address or data set of the hub (owner/name@revision)")
    dataset, revision = found[1] or found[3], found[2] or found[4]
    if revision is None or not COMMIT.fullmatch(revision):
        revision = resolve_revision(dataset, revision)
    return replace(settings, source="hub", dataset=dataset, revision=revision, format="jsonl")


def _local(request: TextRequest, data: str, files: Path) -> PreparedText:
    def documents() -> Iterator[str]:
        return filter(str.strip, local_documents(data, text_field=request.settings.text_field))

    settings = _without_source(request.settings)
    if request.held_out is not None:
        return _written(request, settings, files, documents, lambda: _held_out_documents(request))
    line = _dividing_line(data, documents())
    return _written(
        request,
        settings,
        files,
        lambda: (document for document in documents() if drawn(document) >= line),
        lambda: (document for document in documents() if drawn(document) < line),
    )


def drawn(document: str) -> float:
    """From 0 up to 1 by the document's hash, so that the same text always falls on the same side."""
    return int.from_bytes(blake3(document.encode("utf-8", "replace")).digest(length=6), "little") / 2**48


def _dividing_line(data: str, documents: Iterable[str]) -> float:
    """Documents drawn below it are held out: some, never all, and no more than needed. Raises DataError."""
    lowest: list[float] = []
    highest, num_characters = 0.0, 0
    for document in documents:
        value = drawn(document)
        lowest = sorted({*lowest, value})[:2]
        highest, num_characters = max(highest, value), num_characters + len(document)
    if len(lowest) < 2:
        raise DataError(
            f"{data} holds {'one document' if lowest else 'no text'}, and one to train on and one to hold out are due: "
            "in plain text a line <|endoftext|> ends a document, and so does an empty line after some thousand letters"
        )
    share = min(LARGEST_HELD_OUT_SHARE, HELD_OUT_CHARACTERS / num_characters)
    return min(max(share, lowest[1]), highest)


def _held_out_documents(request: TextRequest) -> Iterator[str]:
    assert request.held_out is not None
    documents = filter(str.strip, local_documents(request.held_out, text_field=request.settings.text_field))
    if (first := next(documents, None)) is None:
        raise DataError(f"{request.held_out} holds no text to measure with")
    yield first
    yield from documents


def _written(
    request: TextRequest, settings: DataSettings, files: Path, train: Documents, held_out: Documents
) -> PreparedText:
    """Make the run's own files."""
    notices: tuple[str, ...] = ()
    if "shards" not in request.given:
        num_documents, num_characters = _count(train())
        wanted = max(settings.shards, -(-num_characters // SHARD_CHARACTERS))
        filled = max(1, min(MOST_SHARDS, num_documents, num_characters // request.batch_characters))
        if filled < settings.shards:
            notices = (f"the text fills {filled} shards, not {settings.shards}: more workers than that share them",)
        settings = replace(settings, shards=min(wanted, filled))
    write_shards(train(), files, settings.shards)
    for name in request.sets[:1]:
        write_held_out(held_out(), files, name)
    return PreparedText(settings=settings, documents=lambda: documents_of_shards(files, settings), notices=notices)


def _count(documents: Iterable[str]) -> tuple[int, int]:
    num_documents, num_characters = 0, 0
    for document in documents:
        num_documents, num_characters = num_documents + 1, num_characters + len(document)
    return num_documents, num_characters


def documents_of_shards(files: Path, settings: DataSettings) -> Iterator[str]:
    """The run's own training text, shard after shard."""
    for shard in range(settings.shards):
        yield from JsonlFile(files / shard_path(shard)).open()


def _copied(request: TextRequest, files: Path) -> PreparedText:
    """Take the text of the run whose run.toml was given; another number of shards divides it anew."""
    settings, earlier = request.settings, request.earlier
    shards = sorted((earlier / "data").glob("train-*.jsonl")) if earlier else []
    if earlier is None or not shards:
        raise DataError("the settings name the run's own files, and none lie beside them; give --data")
    if len(shards) == settings.shards:
        for shard in range(settings.shards):
            _copy(earlier / shard_path(shard), files / shard_path(shard))
    else:
        write_shards((document for shard in shards for document in JsonlFile(shard).open()), files, settings.shards)
    for name in request.sets:
        _copy(earlier / held_out_path(name), files / held_out_path(name))
    return PreparedText(settings=settings, documents=lambda: documents_of_shards(files, settings))


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except FileNotFoundError as error:
        raise DataError(f"{source} is missing; give --data") from error
    except OSError as error:
        raise DiskError(f"cannot copy {source} to {target}: {error.strerror or error}") from error


def _remote(request: TextRequest, settings: DataSettings, files: Path, cache: Path) -> PreparedText:
    """Text that each worker reads from its host. Only the held-out set becomes a file of the run."""
    if request.held_out is not None:
        write_held_out(_held_out_documents(request), files, *request.sets[:1])
        settings = replace(settings, evaluation_split="")
    elif request.sets and not settings.evaluation_split:
        raise DataError(
            f"which text of {settings.dataset} is held out? Name a split of it (data.evaluation_split), "
            "or give a file with --held-out"
        )
    notices: tuple[str, ...] = ()
    num_files = len(expand(settings.dataset)) if settings.source == "url" else settings.shards
    if num_files < settings.shards and "shards" not in request.given:
        notices = (f"{settings.dataset} has {num_files} files, so there are as many shards, not {settings.shards}",)
        settings = replace(settings, shards=num_files)
    _check_readable(settings, cache)
    return PreparedText(settings=settings, documents=lambda: remote_documents(settings, cache), notices=notices)


def _check_readable(settings: DataSettings, cache: Path) -> None:
    """Raises DataError if the first shard cannot be read as a worker will, or holds no text."""
    try:
        first = next(iter(remote_shard(settings, 0, cache).open()), None)
    except DataError:
        raise
    except Exception as error:  # what the host, the network and the datasets library raise
        raise DataError(f"cannot read {settings.dataset}: {error or type(error).__name__}") from error
    if first is None:
        raise DataError(f"{settings.dataset} holds no text")
