"""Documents of the hub and of web servers, streamed shard by shard: nothing is downloaded whole."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import IterableDataset, load_dataset
from huggingface_hub import HfApi

from swarm_diloco.errors import DataError
from swarm_diloco.training.data.documents import documents_of_lines, text_of
from swarm_diloco.training.data.settings import DataSettings

BUILDERS = {"text": "text", "jsonl": "json", "parquet": "parquet", "arrow": "arrow"}  # format → datasets' name
_ROW_OF_FILES = re.compile(r"\{(\d+)\.\.(\d+)\}")


class StreamedShard:
    """One shard of a hub data set or a row of web files, as a DocumentSource."""

    def __init__(self, settings: DataSettings, shard: int, folder: Path, *, split: str | None = None) -> None:
        """`folder`: where the datasets library may keep its cache. Nothing is opened yet."""
        self._settings = settings
        self._shard = shard
        self._folder = folder
        self._split = split or settings.split

    @property
    def identity(self) -> str:
        settings = self._settings
        parts = settings.source, settings.dataset, settings.revision, settings.configuration, self._split
        return json.dumps([*parts, settings.format, settings.text_field, settings.shards, self._shard])

    def open(self, state: str | None = None) -> "StreamReader":
        """Raises DataError for what no retry mends: fewer files than shards; other exceptions are the host's."""
        dataset = open_stream(self._settings, self._split, self._folder, shard=self._shard)
        if state is not None:
            dataset.load_state_dict(json.loads(state))  # sticks to the object: `dataset` is used for one reader only
        return StreamReader(dataset, self._settings)


class StreamReader:
    """A DocumentReader over `datasets` streaming."""

    def __init__(self, dataset: IterableDataset, settings: DataSettings) -> None:
        self._dataset = dataset
        self._settings = settings

    def __iter__(self) -> Iterator[str]:
        name, field = self._settings.dataset, self._settings.text_field
        is_text = self._settings.source == "url" and self._settings.format == "text"
        texts = (text_of(example, "text" if is_text else field, name) for example in self._dataset)
        return documents_of_lines(texts) if is_text else texts

    def state(self) -> str:
        return json.dumps(self._dataset.state_dict())


def open_stream(settings: DataSettings, split: str, folder: Path, *, shard: int | None = None) -> IterableDataset:
    """The examples of one shard, or of all. One file goes to one shard: files are split evenly, in order.

    Raises DataError if there are fewer files than shards; other exceptions are the host's or the network's.
    """
    options: dict[str, Any] = {"split": split, "streaming": True, "cache_dir": str(folder)}
    if settings.source == "url":
        files = expand(settings.dataset)
        if shard is not None:
            _check_shards(settings, len(files))
            files = files[len(files) * shard // settings.shards : len(files) * (shard + 1) // settings.shards]
        builder = BUILDERS[settings.format]
        return load_dataset(builder, data_files={split: list(files)}, **options)  # asks the host for these files only
    configuration = settings.configuration or None
    dataset = load_dataset(settings.dataset, configuration, revision=settings.revision, **options)
    if shard is None:
        return dataset
    _check_shards(settings, dataset.num_shards)
    return dataset.shard(num_shards=settings.shards, index=shard)


def _check_shards(settings: DataSettings, num_files: int) -> None:
    if num_files < settings.shards:
        raise DataError(
            f"{settings.dataset} has {num_files} files, so data.shards is at most that, not {settings.shards}"
        )


def expand(address: str) -> tuple[str, ...]:
    """`…{00000..00127}…` as 128 addresses, padded like the first number; other addresses as they are."""
    found = _ROW_OF_FILES.search(address)
    if found is None:
        return (address,)
    first, last = found.groups()
    numbers = range(int(first), int(last) + 1)
    return tuple(f"{address[: found.start()]}{n:0{len(first)}d}{address[found.end() :]}" for n in numbers)


def streamed_documents(settings: DataSettings, folder: Path, *, split: str | None = None) -> Iterator[str]:
    """All documents of a "hub" or "url" source, for making a run and for its held-out text. Raises DataError."""
    try:
        dataset = open_stream(settings, split or settings.split, folder)
        yield from StreamReader(dataset, settings)
    except DataError:
        raise
    except Exception as error:  # datasets passes on what fsspec, aiohttp and pyarrow raise
        raise DataError(f"cannot read {settings.dataset}: {error or type(error).__name__}") from error


def resolve_revision(dataset: str, revision: str | None = None) -> str:
    """The commit that a branch or tag of a hub data set names now, 40 hex digits. Raises DataError."""
    try:
        return str(HfApi().dataset_info(dataset, revision=revision, timeout=30).sha)
    except Exception as error:  # one of many, and all mean the same
        raise DataError(f"the hub does not tell what {dataset}@{revision or 'main'} is: {error}") from error
