"""A run's published bytes: from the disk if they are there, else from peers, and checked in either case."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from swarm_diloco.diloco.ledger import MAX_HEADER_BYTES
from swarm_diloco.disk import read_file, write_durably
from swarm_diloco.errors import DataError, DiskError, InviteError, ManifestError, NetworkError, RecordError
from swarm_diloco.genesis import verify_genesis
from swarm_diloco.invite import Invite
from swarm_diloco.manifest import MAX_MANIFEST_BYTES, FileEntry, Manifest
from swarm_diloco.network.interface import Network
from swarm_diloco.rounds.library import Donor
from swarm_diloco.run_folder import VOLUNTEER_MANIFEST, RunFolder

T = TypeVar("T")


def bootstrap_peers(invite: Invite) -> list[str]:
    """The peers whose addresses the invite gives, in its order."""
    return list(bootstrap_places(invite))


def bootstrap_places(invite: Invite) -> dict[str, list[str]]:
    """And where each can be dialled: multiaddrs without the /p2p/ part."""
    places: dict[str, list[str]] = {}
    for address in invite.addresses:
        place, _, peer = address.rpartition("/p2p/")
        places.setdefault(peer, []).append(place)
    return places


async def fetch_contract(
    network: Network, invite: Invite, folder: RunFolder, donors: Sequence[str]
) -> tuple[Manifest, bytes]:
    """The run's manifest and genesis, which are then in `folder` and are what the invite names.

    Raises InviteError, ManifestError, RecordError, DataError naming why no donor could give them, DiskError.
    """
    stored = _stored_contract(invite, folder)
    if stored is not None:
        return stored

    async def fetch(donor: Donor) -> tuple[Manifest, bytes]:
        manifest = invite.check(await donor.manifest())
        genesis = await donor.genesis()
        verify_genesis(genesis, manifest)
        return manifest, genesis

    manifest, genesis = await from_any(network, invite.run_id, donors, fetch, "the run's contract")
    write_durably(folder.path / VOLUNTEER_MANIFEST, manifest.bytes_)
    write_durably(folder.genesis, genesis)
    return manifest, genesis


def _stored_contract(invite: Invite, folder: RunFolder) -> tuple[Manifest, bytes] | None:
    try:
        manifest = invite.check(read_file(folder.manifest, limit_bytes=MAX_MANIFEST_BYTES))
        genesis = read_file(folder.genesis, limit_bytes=MAX_HEADER_BYTES)
        verify_genesis(genesis, manifest)
    except (DiskError, InviteError, ManifestError, RecordError):
        return None  # not there yet, or damaged: it is fetched
    return manifest, genesis


async def from_any(
    network: Network, run_id: bytes, donors: Sequence[str], fetch: Callable[[Donor], Awaitable[T]], what: str
) -> T:
    """What the first donor that can gives. Raises DataError with each one's reason when none can."""
    reasons = []
    for peer in donors:
        try:
            async with Donor(network, peer, run_id) as donor:
                return await fetch(donor)
        except (NetworkError, RecordError, DataError) as error:
            reasons.append(f"  {peer}: {error}")
    raise DataError("\n".join([f"nobody could give {what}:", *(reasons or ["  nobody to ask is known"])]))


class FileFetcher:
    """The files that the manifest names, on this machine.

    `held` maps the hash of each one that is here to its place: what this peer can hand on.
    """

    def __init__(
        self, network: Network, folder: RunFolder, manifest: Manifest, donors: Callable[[], Sequence[str]]
    ) -> None:
        self.held: dict[bytes, Path] = {}
        self._network, self._folder, self._manifest, self._donors = network, folder, manifest, donors
        self._checked: set[str] = set()
        self._fetching: dict[str, asyncio.Lock] = {}
        for entry in manifest.files:
            path = folder.file(entry)
            if path.is_file() and path.stat().st_size == entry.bytes:
                self.held[bytes.fromhex(entry.blake3)] = path

    def missing_bytes(self, entries: Sequence[FileEntry]) -> int:
        """What fetching them will transfer."""
        return sum(entry.bytes for entry in entries if bytes.fromhex(entry.blake3) not in self.held)

    async def get(self, path: str) -> Path:
        """Where the file lies, whole and right; fetched if need be.

        Raises ManifestError if the run has no such file, DataError if nobody can give it, DiskError.
        """
        entry = self._manifest.file(path)
        async with self._fetching.setdefault(path, asyncio.Lock()):
            place = self._folder.file(entry)
            if path not in self._checked and not await self._network.run_blocking(_is_right, place, entry):
                await self._fetch(entry, place)
            self._checked.add(path)
            self.held[bytes.fromhex(entry.blake3)] = place
            return place

    async def _fetch(self, entry: FileEntry, place: Path) -> None:
        async def fetch(donor: Donor) -> None:
            await donor.file(bytes.fromhex(entry.blake3), entry.bytes, place)

        await from_any(self._network, self._manifest.run_id, self._donors(), fetch, f"the run's file {entry.path}")


def _is_right(path: Path, entry: FileEntry) -> bool:
    """Whether it is there and has its hash; one that has not will be replaced."""
    if not path.is_file() or path.stat().st_size != entry.bytes:
        return False
    return entry.bytes == 0 or blake3(max_threads=1).update_mmap(path).hexdigest() == entry.blake3
