"""What the operator asks of `init`, and the settings that follow, the later over the earlier:
the components' defaults, a preset, a given run.toml, single options.
"""

import difflib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from swarm_diloco.diloco.codec import CodecSettings
from swarm_diloco.diloco.outer_optimizer import OuterSettings
from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.disk import read_file
from swarm_diloco.errors import ManifestError
from swarm_diloco.manifest import FORMAT, MAX_MANIFEST_BYTES, TABLES, EvaluationSettings, RunSettings, open_settings
from swarm_diloco.network.identity import Identity
from swarm_diloco.rounds.settings import RoundSettings
from swarm_diloco.settings_file import SettingsFile, field_types, value_of_text
from swarm_diloco.training.data.settings import BYTE_VOCABULARY, DataSettings, TokenizerSettings
from swarm_diloco.training.settings import InnerSettings, ModelSettings
from swarm_diloco_bootstrap.presets import PRESETS, Preset

DEFAULT_PRESET = "tiny"
MADE = (
    "run.format",
    "run.operator_key",
    "run.bootstrap_peers",
    "model.architecture",
    "model.parameters",
    "model.source",
)

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True, slots=True)
class InitOptions:
    """What the operator says. None: nothing about it."""

    preset: str | None = None  # a name in presets.PRESETS
    config: Path | None = None  # a run.toml, whole or in part; the files/ beside it are taken where they fit
    model: str | None = None  # a folder or config.json, or a model of the hub: owner/name@revision
    from_scratch: bool = False  # take the model's config alone, not its weights
    data: str | None = None  # "builtin", path, folder, glob, address, or owner/name@revision of the hub
    held_out: str | None = None  # path, folder or glob of the held-out text
    tokenizer: str | None = None  # "bpe", "byte", or a model to copy it from
    settings: Mapping[str, str | int | float] = field(default_factory=dict)  # by "table.setting"
    port: int | None = None
    seed: int = 0  # of a new model's parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenSettings:
    """All settings before anything is made. `given` names those that the operator chose, as "table.setting"."""

    preset: Preset
    given: frozenset[str]
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


def choose_settings(
    options: InitOptions, *, folder_name: str, operator: Identity, bootstrap: Identity
) -> ChosenSettings:
    """Raises ManifestError: an unknown preset or setting, a wrong value, an unreadable run.toml; DiskError."""
    preset = PRESETS.get(options.preset or DEFAULT_PRESET)
    if preset is None:
        raise ManifestError(f"there is no preset {options.preset!r}, but {', '.join(PRESETS)}")
    config = _read_config(options.config)
    single = _single_settings(options)
    tables = {
        "run": RunSettings(
            name=_name_from(folder_name),
            purpose="",
            contact="",
            code_licence="Apache-2.0",
            operator_key=operator.public_key.hex(),
            bootstrap_peers=(bootstrap.peer,),
            minimum_client_version=version("swarm-diloco"),
        ),
        "model": ModelSettings(architecture="llama", parameters=1),
        **{
            table: kind(**_of_preset(preset, table))
            for table, kind in TABLES.items()
            if table not in ("run", "model", "file")
        },
    }
    for table, base in tables.items():
        chosen = config.read(table, type(base), base=base)
        tables[table] = _replace(chosen, table, single.get(table, {}))
    tables["run"] = replace(
        tables["run"], format=FORMAT, operator_key=operator.public_key.hex(), bootstrap_peers=(bootstrap.peer,)
    )
    given = {f"{table}.{key}" for table, settings in single.items() for key in settings}
    given |= {
        f"{table}.{key}" for table, base in tables.items() for key in field_types(type(base)) if config.has(table, key)
    }
    return ChosenSettings(preset=preset, given=frozenset(given), **tables)


def _read_config(path: Path | None) -> SettingsFile:
    if path is None:
        return open_settings(b"", "")
    return open_settings(read_file(path, limit_bytes=MAX_MANIFEST_BYTES), str(path))


def _of_preset(preset: Preset, table: str) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in preset.settings.items() if key.startswith(f"{table}.")}


def _single_settings(options: InitOptions) -> dict[str, dict[str, str | int | float]]:
    """By table. Raises ManifestError for names that are none, and for those that init itself finds out."""
    single: dict[str, dict[str, str | int | float]] = {}
    for name, value in options.settings.items():
        table, _, key = name.partition(".")
        known = {f"{table}.{key}" for table, kind in TABLES.items() if table != "file" for key in field_types(kind)}
        if name in MADE:
            raise ManifestError(f"{name} is not for you to choose: init finds it out")
        if name not in known:
            meant = difflib.get_close_matches(name, known, n=1)
            raise ManifestError(f"there is no setting {name}" + (f"; did you mean {meant[0]}?" if meant else ""))
        single.setdefault(table, {})[key] = value
    if options.tokenizer is not None:
        kind = options.tokenizer if options.tokenizer in ("bpe", "byte") else "model"
        single.setdefault("tokenizer", {})["kind"] = kind
    return single


def _replace(settings: S, table: str, single: Mapping[str, str | int | float]) -> S:
    values: dict[str, Any] = {}
    hints = field_types(type(settings))
    for key, value in single.items():
        try:
            values[key] = value_of_text(str(value), hints[key])
        except ValueError as error:
            raise ManifestError(f"{table}.{key}: {error}") from error
    if values.get("kind") == "byte":  # a token a byte leaves no choice
        values.setdefault("vocabulary_size", BYTE_VOCABULARY)
    try:
        return replace(settings, **values)  # type: ignore[type-var]  # a dataclass, as all settings are
    except ValueError as error:
        message = str(error) if str(error).startswith(table) else f"{table}: {error}"
        raise ManifestError(message) from error


def _name_from(folder_name: str) -> str:
    """A run's name from its folder's."""
    name = unicodedata.normalize("NFC", folder_name)
    return "".join(letter for letter in name if letter.isprintable()).strip()[:64].strip() or "run"
