"""A run as a bystander sees it: its log, its files and its outer parameters, with no part in its rounds.

    async with observed(source, home) as run:
        run.log.head, run.manifest
        state = await run.state()

The source is an invite (the log is followed over the network), a run's folder (read as it lies there, also while a
client is working in it), or nothing: the only run on this machine.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from swarm_diloco.diloco.ledger import MAX_HEADER_BYTES
from swarm_diloco.disk import read_file
from swarm_diloco.errors import DataError, DiskError, RecordError
from swarm_diloco.genesis import verify_genesis
from swarm_diloco.invite import PREFIX, Invite
from swarm_diloco.manifest import Manifest
from swarm_diloco.network.peer_record import PeerRecord
from swarm_diloco.rounds.log import Log
from swarm_diloco.rounds.replica import Replica
from swarm_diloco.rounds.settings import RunRules
from swarm_diloco.rounds.snapshot import load_snapshot, stored_rounds
from swarm_diloco.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class GlobalState:
    """θ after a round: to the bit what every replica with this digest holds."""

    round: int
    digest: bytes  # D_round
    state_hash: bytes  # blake3 of θ, then of m
    theta: Tensor  # float32 [num_values]


class ObservedRun:
    """A run whose contract and log are here. This class reads a folder and asks nobody."""

    def __init__(self, folder: RunFolder, manifest: Manifest, log: Log) -> None:
        self.folder = folder
        self.manifest = manifest
        self.log = log
        self.rules = log.rules

    async def file(self, path: str) -> Path:
        """Where one of the run's files lies. Raises ManifestError if the run has none, DataError if it is not here."""
        local = self.folder.file(self.manifest.file(path))
        if not local.is_file():
            raise DataError(f"{self.folder.path} does not hold the run's file {path}; give the run's invite instead")
        return local

    async def state(self) -> GlobalState:
        """θ after the newest round that can be had. Raises DataError if there is none, StateError."""
        return stored_state(self.folder, self.rules, self.log)

    async def peers(self) -> list[PeerRecord]:
        """What the run's peers publish of themselves now. A folder knows nothing of that."""
        return []


def stored_state(folder: RunFolder, rules: RunRules, log: Log, *, last_round: int | None = None) -> GlobalState:
    """θ from the newest snapshot in the folder, and the rounds after it as far as their parts are here.

    With `last_round` nothing after that round. Each round replayed proves the state before it by its base.
    Raises DataError if no snapshot can be read, StateError if the state is not the swarm's.
    """
    replica = empty_replica(rules)
    end = log.head.round if last_round is None else min(last_round, log.head.round)
    for round_ in reversed(stored_rounds(folder.snapshots)):
        if round_ > end:
            continue
        try:
            index = load_snapshot(folder.snapshot(round_), replica)
        except (DiskError, RecordError):
            continue  # damaged, or removed by the client that works here: an older one will do
        if index.digest == log.digest(round_):
            break
    else:
        raise DataError(f"{folder.path} holds no state of the run yet; give the run's invite instead")
    if replica.round == 0:
        replica.check_genesis(log.commit(0))
    for round_ in range(replica.round + 1, end + 1):
        commit = log.commit(round_)
        parts = [log.parts.get(part.result_hash) for part in commit.parts]
        held = [part for part in parts if part is not None]
        if len(held) < len(parts):
            break
        replica.apply(commit, held)
    return state_of(replica, log)


def empty_replica(rules: RunRules) -> Replica:
    """In memory of its own, nothing loaded."""
    num_values = rules.layout.num_values
    return Replica(rules, torch.zeros(num_values), torch.zeros(num_values))


def state_of(replica: Replica, log: Log) -> GlobalState:
    """What the replica holds now; θ is not copied."""
    return GlobalState(replica.round, log.digest(replica.round), replica.state_hash(), replica.theta)


@asynccontextmanager
async def observed(source: str | None, home: Path) -> AsyncIterator[ObservedRun]:
    """The run that `source` names: an invite, a folder, or None for the only one in the client's `home`.

    Raises DiskError, InviteError, ManifestError, RecordError, NetworkError.
    """
    if source is not None and is_invite(source):
        # Imported here: hivemind takes seconds, and a folder needs no network.
        from swarm_diloco_client.online_observer import observed_online

        async with observed_online(Invite.decode(source), home) as run:
            yield run
    else:
        yield open_run(RunFolder(Path(source)) if source is not None else only_run(home))


def is_invite(source: str) -> bool:
    """Whether it is an invite rather than a folder's path, which may begin like one."""
    return source.strip().startswith(PREFIX) and not os.path.exists(source)  # noqa: PTH110 - Path's fails on long names


def open_run(folder: RunFolder) -> ObservedRun:
    """A run's folder as it lies there, operator's or volunteer's. Raises DiskError, ManifestError, RecordError."""
    manifest = folder.read_manifest()
    genesis = read_file(folder.genesis, limit_bytes=MAX_HEADER_BYTES)
    verify_genesis(genesis, manifest)
    return ObservedRun(folder, manifest, Log(folder.path, folder.read_rules(manifest), genesis))


def only_run(home: Path) -> RunFolder:
    """The one run in a client's home. Raises DiskError saying which there are, or how to name one."""
    folders = RunFolder.all_in(home)
    if not folders:
        raise DiskError(f"there is no run in {home}; give an invite or a run's folder")
    if len(folders) > 1:
        lines = [f"  {folder.path}  {folder.read_manifest().run.name}" for folder in folders]
        raise DiskError("\n".join([f"there are {len(folders)} runs in {home}; give one of their folders:", *lines]))
    return folders[0]
