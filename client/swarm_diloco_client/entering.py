"""From an invite to a run that is here, whole and checked: contract, files, log and state."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version

from swarm_diloco.errors import DataError
from swarm_diloco.invite import Invite
from swarm_diloco.manifest import Manifest
from swarm_diloco.network.interface import Network
from swarm_diloco.rounds.follower import Follower
from swarm_diloco.rounds.library import RunFiles
from swarm_diloco.rounds.snapshot import stored_rounds
from swarm_diloco.run_folder import RunFolder
from swarm_diloco.training.shared_memory import SharedModel
from swarm_diloco_client.introduction import introduction
from swarm_diloco_client.run_fetching import FileFetcher, fetch_contract
from swarm_diloco_client.shared_replica import name_round, shared_replica

Say = Callable[[str], None]

TEXT_PREFIX = "data/"  # files that are fetched when the trainer asks for them


@dataclass(frozen=True, slots=True, kw_only=True)
class EnteredRun:
    """A run on this machine, its replica at the newest round that donors had."""

    folder: RunFolder
    manifest: Manifest
    files: FileFetcher
    follower: Follower
    shared: SharedModel


async def enter_run(
    network: Network, invite: Invite, folder: RunFolder, donors: Callable[[], Sequence[str]], *, say: Say
) -> EnteredRun:
    """Say what the run is for, then fetch what is missing. What is on the disk from an earlier time is used.

    Raises SwarmDilocoError: nobody can give something, it is not what the invite names, or the client is too old.
    """
    manifest, genesis = await fetch_contract(network, invite, folder, donors())
    manifest.check_client(version("swarm-diloco"))
    files = FileFetcher(network, folder, manifest, donors)
    at_once = [entry for entry in manifest.files if not entry.path.startswith(TEXT_PREFIX)]
    has_state = bool(stored_rounds(folder.snapshots))
    for line in introduction(manifest, missing_bytes=files.missing_bytes(at_once), has_state=has_state):
        say(line)
    for entry in at_once:
        await files.get(entry.path)
    shared, replica = shared_replica(folder.read_rules(manifest))
    published = RunFiles(manifest.bytes_, genesis, files.held)
    follower = Follower(network, replica.rules, published, folder.path, replica)
    await follower.load()
    with suppress(DataError):  # of parts that are not here
        await follower.apply_recorded([])
    await follower.catch_up(donors())
    name_round(shared, replica)
    return EnteredRun(folder=folder, manifest=manifest, files=files, follower=follower, shared=shared)
