"""A run followed over the network by somebody who takes no part: a client-mode peer with a key made for this once."""

import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from swarm_diloco.errors import DiskError
from swarm_diloco.invite import Invite
from swarm_diloco.manifest import MODEL_LAYOUT, Manifest
from swarm_diloco.network.hivemind_network import HivemindNetwork
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Network
from swarm_diloco.network.peer_record import PeerRecord, verified_records
from swarm_diloco.rounds.follower import Follower
from swarm_diloco.rounds.library import RunFiles
from swarm_diloco.run_folder import RunFolder
from swarm_diloco_bootstrap.runtime_folder import runtime_folder
from swarm_diloco_client.observer import GlobalState, ObservedRun, empty_replica, state_of
from swarm_diloco_client.run_fetching import FileFetcher, bootstrap_peers, fetch_contract, from_any


class OnlineRun(ObservedRun):
    """What is not in the folder is fetched from the run's peers, checked, and kept there."""

    def __init__(
        self, folder: RunFolder, manifest: Manifest, follower: Follower, network: Network, invited: Sequence[str]
    ) -> None:
        """`invited`: the peers whom the invite names."""
        super().__init__(folder, manifest, follower.log)
        self._follower = follower
        self._network = network
        self._invited = invited
        self._files = FileFetcher(network, folder, manifest, self._donors)

    async def file(self, path: str) -> Path:
        return await self._files.get(path)

    async def state(self) -> GlobalState:
        await self._follower.load()
        await self._follower.catch_up(self._donors())
        return state_of(self._follower.replica, self.log)

    async def peers(self) -> list[PeerRecord]:
        records = verified_records(await self._network.discover(), self.manifest.run_id)
        return [record for record in records.values() if not record.is_leaving]

    async def read_log(self) -> None:
        """Fetch and check the headers up to now, without parts or state. Raises DataError if nobody could give them."""
        headers = self._follower.catch_up_headers
        await from_any(self._network, self.manifest.run_id, self._donors(), headers, "the run's log")

    def _donors(self) -> list[str]:
        """The newest commit's reachable members, those that do not train first, then those whom the invite names."""
        newest = [member for member in self.log.commit(self.log.head.round).members if member.reachable]
        donors = [member.peer for member in sorted(newest, key=lambda member: member.weight > 0)]
        return list(dict.fromkeys([*donors, *self._invited]))


@asynccontextmanager
async def observed_online(invite: Invite, home: Path) -> AsyncIterator[OnlineRun]:
    """The run of the invite. What was fetched stays in the home's folder observed/ for the next time.

    Raises InviteError, ManifestError, RecordError, DataError, NetworkError, DiskError (this home's observer is in use).
    """
    folder = RunFolder(home / "observed" / invite.run_id.hex()[:16])
    with _only_one(folder.path), tempfile.TemporaryDirectory(prefix="swarm-diloco-") as keys:
        identity, identity_path = Identity.generate(), Path(keys) / "identity.key"
        identity.save(identity_path)
        async with HivemindNetwork.start(
            identity,
            identity_path,
            run_id=invite.run_id,
            runtime_folder=runtime_folder(),
            listen=(),
            initial_peers=invite.addresses,
            client_mode=True,
        ) as network:
            yield await open_online(invite, folder, network)


async def open_online(invite: Invite, folder: RunFolder, network: Network) -> OnlineRun:
    """Fetch contract, layout and log into `folder`, all checked against the invite."""
    invited = bootstrap_peers(invite)
    manifest, genesis = await fetch_contract(network, invite, folder, invited)
    await FileFetcher(network, folder, manifest, lambda: invited).get(MODEL_LAYOUT)
    published = RunFiles(manifest.bytes_, genesis, {})
    rules = folder.read_rules(manifest)
    follower = Follower(network, rules, published, folder.path, empty_replica(rules))
    run = OnlineRun(folder, manifest, follower, network, invited)
    await run.read_log()
    return run


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Raises DiskError if another process observes into this folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise DiskError(f"cannot use {folder}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DiskError(f"{folder} is in use by another command; wait for it, or give this one --home") from error
        yield
    finally:
        os.close(lock)
