"""What a peer says of itself, signed: the record by which others find and dial it, and which views show.

Nothing moves because of what a record claims; it says where to ask.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from swarm_diloco.diloco.records import Fields, pack, unpack
from swarm_diloco.errors import RecordError
from swarm_diloco.network.discovery import MAX_RECORD_BYTES
from swarm_diloco.network.identity import Identity, is_signed_by

Role = Literal["worker", "archive"]

FORMAT_VERSION = 1
MAX_ADDRESSES = 8  # of 160 bytes they fit into a record
MAX_ADDRESS_BYTES = 160
ADDRESS = re.compile(rf"[!-~]{{1,{MAX_ADDRESS_BYTES}}}")  # what every terminal shows as it is
SIGNED_BEFORE = b"swarm-diloco.peer.1"  # so that the signature is of no use elsewhere


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerRecord:
    """One peer at one moment."""

    run_id: bytes
    peer: str
    role: Role
    is_leaving: bool  # on purpose: nobody should wait for it
    round: int  # the newest that its log holds
    digest: bytes  # D of that round
    addresses: tuple[str, ...]  # multiaddrs without /p2p/, best first; none: it cannot be dialled
    client_version: str
    issued_at_ms: int  # by the author's wall clock, for views and to tell newer from older

    def signed(self, identity: Identity) -> bytes:
        """The record's bytes, at most MAX_RECORD_BYTES. Addresses past the limits are left out."""
        assert identity.peer == self.peer
        addresses = [address.encode() for address in self.addresses if ADDRESS.fullmatch(address)]
        body = pack(
            [
                FORMAT_VERSION,
                self.run_id,
                self.peer,
                self.role,
                int(self.is_leaving),
                self.round,
                self.digest,
                [[address] for address in addresses[:MAX_ADDRESSES]],
                self.client_version,
                self.issued_at_ms,
            ]
        )
        return pack([body, identity.sign(SIGNED_BEFORE + body)])

    @classmethod
    def read(cls, data: bytes, *, run_id: bytes) -> "PeerRecord":
        """A record that anybody may have sent. Raises RecordError: form, signature or another run."""
        envelope = unpack(data, "peer record", limit_bytes=MAX_RECORD_BYTES)
        body, signature = envelope.bytes_(limit=MAX_RECORD_BYTES), envelope.bytes_(length=64)
        envelope.end()
        fields = unpack(body, "peer record", limit_bytes=MAX_RECORD_BYTES)
        fields.version(FORMAT_VERSION)
        found_run, peer, role = fields.hash_(), fields.string(), fields.string()
        is_leaving, round_, digest = fields.flag(), fields.integer(), fields.hash_()
        addresses = fields.list_of(_read_address, limit=MAX_ADDRESSES)
        client_version, issued_at_ms = fields.string(), fields.integer()
        fields.end()
        if found_run != run_id:
            raise RecordError("peer record: it is of another run")
        if not is_signed_by(peer, SIGNED_BEFORE + body, signature):
            raise RecordError("peer record: it is not signed by the peer whom it names")
        for known in get_args(Role):
            if known == role:
                return cls(
                    run_id=found_run,
                    peer=peer,
                    role=known,
                    is_leaving=is_leaving,
                    round=round_,
                    digest=digest,
                    addresses=addresses,
                    client_version=client_version,
                    issued_at_ms=issued_at_ms,
                )
        raise RecordError(f"peer record: no role {role!r} is known")


def _read_address(fields: Fields) -> str:
    address = fields.bytes_(limit=MAX_ADDRESS_BYTES).decode("latin-1")
    if not ADDRESS.fullmatch(address):
        raise RecordError(f"peer record: no address is {address!r}")
    return address


def verified_records(found: Mapping[str, bytes], run_id: bytes) -> dict[str, PeerRecord]:
    """Of what a look-up brought, the records that are right and their own peer's. The others are left out."""
    records = {}
    for peer, data in found.items():
        try:
            record = PeerRecord.read(data, run_id=run_id)
        except RecordError:
            continue
        if record.peer == peer:
            records[peer] = record
    return records
