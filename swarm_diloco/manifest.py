"""The run's contract: what all members must agree on, as the bytes of one TOML file whose hash is the run id.

Every component owns its settings; this file puts them together, adds the run's own, and checks what spans several.
A manifest says everything: a setting that is missing is an error, never a default, so that two versions of this program
cannot read one file in two ways.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Self

from swarm_diloco.diloco.codec import CodecSettings
from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.diloco.outer_optimizer import OuterSettings
from swarm_diloco.diloco.records import MAX_STRING_BYTES, hash_of
from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.errors import ManifestError, RunRefused
from swarm_diloco.network.identity import peer_id_of, public_key_of
from swarm_diloco.rounds.settings import RoundSettings, RunRules
from swarm_diloco.settings_file import SettingsFile, write_table
from swarm_diloco.training.data.settings import DataSettings, TokenizerSettings, held_out_path, shard_path
from swarm_diloco.training.settings import InnerSettings, ModelSettings

FORMAT = 1
MAX_MANIFEST_BYTES = 2**20
MAX_FILES = 4096  # about 150 bytes each in the manifest
MAX_FILE_BYTES = 2**34  # a file is fetched from one peer after another, with no resume inside it
MODEL_CONFIG = "model/config.json"
MODEL_LAYOUT = "model/layout.json"
PATH_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")  # no part begins with a dot


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """[run]: what the run is, whose it is, and who may take part."""

    format: int = FORMAT
    name: str
    purpose: str
    contact: str
    code_licence: str
    operator_key: str  # hex of the raw Ed25519 public key that signs the genesis
    bootstrap_peers: tuple[str, ...]  # peer ids: the members of commit 0
    minimum_client_version: str

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"run.format is {self.format}, this program reads {FORMAT}; update it")
        check_text("run.name", self.name, least=1, most=64)
        check_text("run.purpose", self.purpose, least=0, most=1000)
        check_text("run.contact", self.contact, least=0, most=200)
        check_text("run.code_licence", self.code_licence, least=0, most=100)
        if not re.fullmatch(r"[0-9a-f]{64}", self.operator_key):
            raise ValueError("run.operator_key must be 64 hexadecimal digits")
        if not 1 <= len(self.bootstrap_peers) <= 16 or len(set(self.bootstrap_peers)) != len(self.bootstrap_peers):
            raise ValueError("run.bootstrap_peers must name 1 to 16 peers, none twice")
        for peer in self.bootstrap_peers:
            try:
                canonical = peer_id_of(public_key_of(peer)) == peer
            except ValueError:
                canonical = False
            if not canonical:
                raise ValueError(f"run.bootstrap_peers must be ids of Ed25519 peers, not {peer[:64]!r}")
        version_numbers(self.minimum_client_version)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSettings:
    """[evaluation]: how the outer parameters are measured, by one member in turn."""

    sets: tuple[str, ...] = ("held-out",)
    tokens: int = 16_384  # of each set, at most
    every_rounds: int = 4

    def __post_init__(self) -> None:
        if len(self.sets) > 16 or len(set(self.sets)) != len(self.sets):
            raise ValueError("evaluation.sets must name at most 16 sets, none twice")
        for name in self.sets:
            if not PATH_PART.fullmatch(name) or len(name) > MAX_STRING_BYTES:
                raise ValueError(f"evaluation.sets must be names that a file can have, not {name!r}")
        if not 256 <= self.tokens <= 2**31:
            raise ValueError(f"evaluation.tokens must be from 256 to {2**31}, not {self.tokens}")
        if not 1 <= self.every_rounds <= 10_000:
            raise ValueError(f"evaluation.every_rounds must be from 1 to 10000, not {self.every_rounds}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """[[file]]: a file that members fetch from each other and check by hash."""

    path: str  # under files/, with "/" between the parts
    blake3: str  # hex
    bytes: int

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if not 1 <= len(parts) <= 4 or not all(PATH_PART.fullmatch(part) for part in parts):
            raise ValueError(f"path must be a relative path of letters, digits, '.', '_' and '-', not {self.path!r}")
        if not re.fullmatch(r"[0-9a-f]{64}", self.blake3):
            raise ValueError(f"blake3 must be 64 hexadecimal digits, not {self.blake3[:80]!r}")
        if not 0 <= self.bytes <= MAX_FILE_BYTES:
            raise ValueError(f"bytes must be from 0 to {MAX_FILE_BYTES}, not {self.bytes}")


@dataclass(frozen=True, kw_only=True)
class RunTables:
    """The manifest's tables, in the order in which they are written."""

    run: RunSettings
    model: ModelSettings
    tokenizer: TokenizerSettings
    data: DataSettings
    inner: InnerSettings
    outer: OuterSettings
    schedule: ScheduleSettings
    codec: CodecSettings
    rounds: RoundSettings
    evaluation: EvaluationSettings
    files: tuple[FileEntry, ...]

    def __post_init__(self) -> None:
        paths = [entry.path for entry in self.files]
        folders = {str(parent).casefold() for path in paths for parent in PurePosixPath(path).parents}
        for path, count in Counter(path.casefold() for path in paths).items():
            if count > 1 or path in folders:
                raise ValueError(f"[[file]] {path} is named twice, or is a folder of another file")
        needed = {MODEL_CONFIG, MODEL_LAYOUT}
        if self.data.source == "files":
            needed |= {shard_path(shard) for shard in range(self.data.shards)}
        needed |= {held_out_path(name) for name in self.evaluation.sets}
        if self.data.source == "hub" and self.data.evaluation_split:
            needed.discard(held_out_path())  # it is a split of the data set
        if missing := needed - set(paths):
            raise ValueError(f"the manifest names no [[file]] {', '.join(sorted(missing)[:3])}")
        if not any(path.startswith("tokenizer/") for path in paths):
            raise ValueError("the manifest names no [[file]] under tokenizer/")
        if self.evaluation.tokens < self.inner.sequence_length:
            raise ValueError(
                f"evaluation.tokens is {self.evaluation.tokens}, less than one sequence "
                f"(inner.sequence_length = {self.inner.sequence_length})"
            )


TABLES: Mapping[str, type] = {
    "run": RunSettings,
    "model": ModelSettings,
    "tokenizer": TokenizerSettings,
    "data": DataSettings,
    "inner": InnerSettings,
    "outer": OuterSettings,
    "schedule": ScheduleSettings,
    "codec": CodecSettings,
    "rounds": RoundSettings,
    "evaluation": EvaluationSettings,
    "file": FileEntry,
}


@dataclass(frozen=True, kw_only=True)
class Manifest(RunTables):
    """A manifest as published. Two manifests are the same run only if their bytes are equal, comments included."""

    bytes_: bytes

    @classmethod
    def parse(cls, data: bytes, *, name: str = "run.toml") -> Self:
        """Read and check everything. Raises ManifestError with `name`, the line, the rule and the value got."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"{name} has {len(data)} bytes, at most {MAX_MANIFEST_BYTES} are allowed")
        file = open_settings(data, name)
        try:
            return cls(
                **{table: file.read(table, kind) for table, kind in TABLES.items() if table != "file"},
                files=file.read_each("file", FileEntry, limit=MAX_FILES),
                bytes_=data,
            )
        except ValueError as error:
            raise ManifestError(f"{name}: {error}") from error

    @property
    def run_id(self) -> bytes:
        """blake3 of the bytes as published."""
        return hash_of(self.bytes_)

    @property
    def operator_key(self) -> bytes:
        return bytes.fromhex(self.run.operator_key)

    def rules(self, layout: ParameterLayout) -> RunRules:
        """The run as rounds/ sees it. Raises ManifestError if the settings do not fit a model of this size."""
        try:
            return RunRules(
                run_id=self.run_id,
                operator_key=self.operator_key,
                layout=layout,
                codec=self.codec,
                outer=self.outer,
                schedule=self.schedule,
                rounds=self.rounds,
            )
        except ValueError as error:
            raise ManifestError(str(error)) from error

    def file(self, path: str) -> FileEntry:
        """Raises ManifestError if the manifest names no such file."""
        found = next((entry for entry in self.files if entry.path == path), None)
        if found is None:
            raise ManifestError(f"the run has no file {path}")
        return found

    def check_client(self, version: str) -> None:
        """Raises RunRefused if a client of `version` is too old for the run."""
        if version_numbers(version) < version_numbers(self.run.minimum_client_version):
            raise RunRefused(
                f"the run {self.run.name!r} needs swarm-diloco {self.run.minimum_client_version} or newer, "
                f"this is {version}: pip install --upgrade swarm-diloco"
            )


def open_settings(data: bytes, name: str) -> SettingsFile:
    """A run.toml, whole or in part, of this format. Raises ManifestError."""
    file = SettingsFile(data, name, TABLES)
    found = file.value("run", "format")
    if isinstance(found, int) and found > FORMAT:
        raise file.error("run", "format", f"run.format is {found}, this program reads {FORMAT}; update it")
    file.check_tables()
    return file


def write_manifest(tables: RunTables, *, heading: str = "", comments: Mapping[str, Mapping[str, str]]) -> bytes:
    """The tables as run.toml. `comments[table][setting]` stands above each setting, `comments[table][""]` above the
    table, `heading` above all. What is written reads back as `tables`.
    """
    texts = [_commented(heading)] if heading else []
    for table in TABLES:
        above = _commented(comments.get(table, {}).get("", ""))
        if table != "file":
            texts.append(above + write_table(table, getattr(tables, table), comments.get(table, {})))
        elif tables.files:
            texts.append(above + "\n".join(write_table("file", entry, {}, is_list=True) for entry in tables.files))
    data = "\n".join(texts).encode()
    written = Manifest.parse(data)
    for field in fields(RunTables):
        assert getattr(written, field.name) == getattr(tables, field.name), f"{field.name} does not read back"
    return data


def _commented(text: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


def check_text(setting: str, text: str, *, least: int, most: int) -> None:
    """One line that is safe to show anywhere. Raises ValueError: length, not NFC, control or invisible characters."""
    if not least <= len(text) <= most:
        raise ValueError(f"{setting} must have {least} to {most} characters, not {len(text)}")
    if unicodedata.normalize("NFC", text) != text:
        raise ValueError(f"{setting} must be in Unicode's composed form (NFC)")
    if not text.isprintable() or text != text.strip():
        raise ValueError(f"{setting} must be one line without control characters or blanks around it, not {text!r}")


def version_numbers(version: str) -> tuple[int, ...]:
    """(major, minor, patch) of a version like 1.2.3; what follows the numbers is ignored. Raises ValueError."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", version)
    if found is None:
        raise ValueError(f"run.minimum_client_version must be like 0.1.0, not {version[:40]!r}")
    return tuple(int(number) for number in found.groups())
