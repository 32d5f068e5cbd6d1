"""A small run's manifest for tests, with no files behind it."""

from swarm_diloco.diloco.codec import CodecSettings
from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.diloco.outer_optimizer import OuterSettings
from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.manifest import EvaluationSettings, FileEntry, Manifest, RunSettings, RunTables, write_manifest
from swarm_diloco.network.identity import Identity
from swarm_diloco.rounds.settings import RoundSettings
from swarm_diloco.training.data.settings import DataSettings, TokenizerSettings
from swarm_diloco.training.settings import InnerSettings, ModelSettings

OPERATOR = Identity.from_seed(bytes([1]) * 32)
BOOTSTRAP = Identity.from_seed(bytes([2]) * 32)
PATHS = (
    "data/held-out.jsonl",
    "data/train-00000.jsonl",
    "data/train-00001.jsonl",
    "model/config.json",
    "model/layout.json",
    "tokenizer/tokenizer.json",
)
LAYOUT = ParameterLayout.of([("a", (3, 5)), ("b", (7,))])


def example_run_settings(**changes: object) -> RunSettings:
    settings = {
        "name": "example",
        "purpose": "to be an example",
        "contact": "somebody@example.org",
        "code_licence": "Apache-2.0",
        "operator_key": OPERATOR.public_key.hex(),
        "bootstrap_peers": (BOOTSTRAP.peer,),
        "minimum_client_version": "0.1.0",
        **changes,
    }
    return RunSettings(**settings)  # type: ignore[arg-type]


def example_tables(**changes: object) -> RunTables:
    tables = {
        "run": example_run_settings(),
        "model": ModelSettings(architecture="llama", parameters=22),
        "tokenizer": TokenizerSettings(),
        "data": DataSettings(shards=2),
        "inner": InnerSettings(warmup_tokens=10_000, total_tokens=1_000_000),
        "outer": OuterSettings(),
        "schedule": ScheduleSettings(inner_steps=10),
        "codec": CodecSettings(),
        "rounds": RoundSettings(),
        "evaluation": EvaluationSettings(),
        "files": tuple(FileEntry(path=path, blake3="0" * 64, bytes=1) for path in PATHS),
        **changes,
    }
    return RunTables(**tables)  # type: ignore[arg-type]


def example_manifest(**changes: object) -> Manifest:
    return Manifest.parse(write_manifest(example_tables(**changes), comments={}))
