"""Documents of the hub and of web servers, streamed shard by shard: nothing is downloaded whole."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import IterableDataset, load_dataset
from huggingface_hub import HfApi

from swarm_diloco.errors import DataError
from swarm_diloco.training.data.documents import DocumentSource, text_of
from swarm_diloco.training.data.settings import DataSettings
from swarm_diloco.training.data.web import WebShard, expand

COLUMN_FORMATS = ("parquet", "arrow")  # as the datasets library calls them too


def remote_shard(settings: DataSettings, shard: int, folder: Path) -> DocumentSource:
    """One shard of a "hub" or "url" source: whole files, split evenly, in order. Nothing is opened yet.

    `folder`: where the datasets library may keep its cache. Raises DataError for fewer addresses than shards.
    """
    if settings.source == "hub":
        return StreamedShard(settings, folder, shard=shard)
    files = expand(settings.dataset)
    _check_shards(settings, len(files))
    files = files[len(files) * shard // settings.shards : len(files) * (shard + 1) // settings.shards]
    return _web_source(settings, files, folder)


def remote_documents(settings: DataSettings, folder: Path, *, split: str | None = None) -> Iterator[str]:
    """All documents of a "hub" or "url" source, for making a run and for its held-out text. Raises DataError."""
    if settings.source == "hub":
        source: DocumentSource = StreamedShard(settings, folder, split=split)
    else:
        source = _web_source(settings, expand(settings.dataset), folder)
    try:
        yield from source.open()
    except DataError:
        raise
    except Exception as error:  # datasets passes on what fsspec and pyarrow raise
        raise DataError(f"cannot read {settings.dataset}: {error or type(error).__name__}") from error


def _web_source(settings: DataSettings, files: tuple[str, ...], folder: Path) -> DocumentSource:
    if settings.format in COLUMN_FORMATS:
        return StreamedShard(settings, folder, files=files)
    return WebShard(settings, files)  # datasets 5.2 cannot read text over HTTP, and does not say what a host answered


class StreamedShard:
    """Examples that the datasets library streams, as a DocumentSource."""

    def __init__(
        self,
        settings: DataSettings,
        folder: Path,
        *,
        shard: int | None = None,  # hub: of settings.shards; None: all
        split: str | None = None,  # hub: another than settings.split
        files: tuple[str, ...] = (),  # url
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._shard = shard
        self._split = split or settings.split
        self._files = files

    @property
    def identity(self) -> str:
        settings = self._settings
        hub = [settings.dataset, settings.revision, settings.configuration, self._split, settings.shards, self._shard]
        return json.dumps([settings.format, settings.text_field, *hub, *self._files])

    def open(self, state: str | None = None) -> "StreamReader":
        """Raises DataError for fewer files than shards; other exceptions are the host's or the network's."""
        dataset = self._dataset()
        if state is not None:
            dataset.load_state_dict(json.loads(state))  # sticks to the object: it is used for one reader only
        return StreamReader(dataset, self._settings, state)

    def _dataset(self) -> IterableDataset:
        settings = self._settings
        options: dict[str, Any] = {"split": self._split, "streaming": True, "cache_dir": str(self._folder)}
        if settings.source == "url":
            try:
                return load_dataset(settings.format, data_files={self._split: list(self._files)}, **options)
            except ImportError as error:
                raise DataError(f"{settings.format} of a web server needs another package: {error}") from error
        configuration = settings.configuration or None
        dataset = load_dataset(settings.dataset, configuration, revision=settings.revision, **options)
        if self._shard is None:
            return dataset
        _check_shards(settings, dataset.num_shards)
        return dataset.shard(num_shards=settings.shards, index=self._shard)


class StreamReader:
    """A DocumentReader over `datasets` streaming."""

    def __init__(self, dataset: IterableDataset, settings: DataSettings, state: str | None) -> None:
        self._dataset = dataset
        self._settings = settings
        self._state = state  # until the first example: the library forgets what it was given

    def __iter__(self) -> Iterator[str]:
        for example in self._dataset:
            self._state = None
            yield text_of(example, self._settings.text_field, self._settings.dataset or self._settings.source)

    def state(self) -> str:
        return json.dumps(self._dataset.state_dict()) if self._state is None else self._state


def _check_shards(settings: DataSettings, num_files: int) -> None:
    if num_files < settings.shards:
        raise DataError(
            f"{settings.dataset} has {num_files} files, so data.shards is at most that, not {settings.shards}"
        )


def resolve_revision(dataset: str, revision: str | None = None) -> str:
    """The commit that a branch or tag of a hub data set names now, 40 hex digits. Raises DataError."""
    try:
        return str(HfApi().dataset_info(dataset, revision=revision, timeout=30).sha)
    except Exception as error:  # one of many, and all mean the same
        raise DataError(f"the hub does not tell what {dataset}@{revision or 'main'} is: {error}") from error
