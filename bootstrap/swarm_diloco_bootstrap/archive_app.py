"""The bootstrap peer: public entry, member with weight 0, archive of the whole log."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from swarm_diloco.errors import DataError, DiskError
from swarm_diloco.invite import MAX_ADDRESSES, Invite
from swarm_diloco.manifest import Manifest
from swarm_diloco.network.addresses import invite_addresses, scope
from swarm_diloco.network.hivemind_network import HivemindNetwork
from swarm_diloco.network.identity import Identity
from swarm_diloco.rounds.engine import Engine
from swarm_diloco.rounds.follower import Follower
from swarm_diloco.rounds.library import RunFiles
from swarm_diloco.rounds.replica import Replica
from swarm_diloco_bootstrap.address_book import AddressBook
from swarm_diloco_bootstrap.announcing import Announcer
from swarm_diloco_bootstrap.operator_folder import OperatorFolder
from swarm_diloco_bootstrap.reporting import Reporter
from swarm_diloco_bootstrap.runtime_folder import runtime_folder
from swarm_diloco_bootstrap.signals import StopRequest
from swarm_diloco_bootstrap.taking_part import TakingPart

Say = Callable[[str], None]

LABELS = {"public": "public", "lan": "LAN", "loopback": "this machine"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveOptions:
    """What the operator says at the start. Empty: as bootstrap.toml has it."""

    listen: Sequence[str] = ()  # multiaddrs
    announce: Sequence[str] = ()
    max_rounds: int | None = None


async def run_archive(folder: OperatorFolder, options: ArchiveOptions, stop: StopRequest, *, say: Say) -> None:
    """Serve the run in `folder` until told to stop. Raises SwarmDilocoError, one line each."""
    manifest, genesis = folder.open()
    settings = folder.read_settings()
    identity = Identity.load(folder.identity)
    identity.lock(folder.identity)
    book = AddressBook(folder.peers, manifest.run_id)
    async with HivemindNetwork.start(
        identity,
        folder.identity,
        run_id=manifest.run_id,
        runtime_folder=runtime_folder(),
        listen=options.listen or [f"/ip4/0.0.0.0/tcp/{settings.port}"],
        announce=options.announce or settings.announce,
        client_mode=False,
    ) as network:
        book.make_known(network)
        replica = _replica(folder, manifest)
        published = RunFiles(manifest.bytes_, genesis.encode(), _held_files(folder, manifest))
        follower = Follower(network, replica.rules, published, folder.path, replica, keeps_all=True)
        engine = Engine(
            network,
            identity,
            replica.rules,
            follower,
            folder.votes,
            trains=False,
            is_reachable=True,
            remembered=lambda: list(book.records),
        )
        if not await follower.load():
            raise DiskError(f"{folder.snapshots} holds no state that is whole; restore it from a backup")
        with suppress(DataError):  # of parts that are not here: other peers have them
            await follower.apply_recorded([])
        part = TakingPart(
            engine=engine,
            announcer=Announcer(network, identity, follower, book, role="archive", is_reachable=True),
            reporter=Reporter(folder, manifest, follower, engine, role="archive", say=say),
            died=network.died,
            max_rounds=options.max_rounds,
        )
        for line in _welcome(manifest, identity.peer, network.addresses()):
            say(line)
        await part.run(stop)


def _replica(folder: OperatorFolder, manifest: Manifest) -> Replica:
    rules = folder.read_rules(manifest)
    return Replica(rules, torch.zeros(rules.layout.num_values), torch.zeros(rules.layout.num_values))


def _held_files(folder: OperatorFolder, manifest: Manifest) -> dict[bytes, Path]:
    """Raises DiskError naming the first that is missing or of another size; who fetches one checks its hash."""
    held = {}
    for entry in manifest.files:
        path = folder.file(entry)
        if not path.is_file() or path.stat().st_size != entry.bytes:
            raise DiskError(f"{path} is missing or changed; restore it from a backup")
        held[bytes.fromhex(entry.blake3)] = path
    return held


def _welcome(manifest: Manifest, peer: str, addresses: Sequence[str]) -> list[str]:
    """What the operator reads at the start: where this peer is, and the line that others paste."""
    by_scope = {name: [address for address in addresses if scope(address) == name] for name in LABELS}
    lines = [f"run {manifest.run.name!r} {manifest.run_id.hex()[:16]}, bootstrap peer {peer}"]
    lines += [f"  {LABELS[name]:12} {address}" for name, found in by_scope.items() for address in found]
    if not by_scope["public"]:
        whom = "from this local network" if by_scope["lan"] else "from this machine"
        lines.append(
            f"no public address: others can join only {whom}. On a public host, or with the port forwarded, give "
            "--announce /ip4/ADDRESS/tcp/PORT"
        )
    handed_out = invite_addresses(addresses)[:MAX_ADDRESSES]
    invite = Invite(manifest.run_id, manifest.operator_key, tuple(f"{address}/p2p/{peer}" for address in handed_out))
    return [*lines, "others join with:", f"  swarm-diloco join {invite.encode()}"]
