"""Peers met before, with their addresses: how a peer finds the others again when the bootstrap peer is away."""

from collections.abc import Iterable
from pathlib import Path

from swarm_diloco.diloco.records import pack, unpack
from swarm_diloco.disk import read_file, write_durably
from swarm_diloco.errors import DiskError, RecordError
from swarm_diloco.network.discovery import MAX_RECORD_BYTES
from swarm_diloco.network.peer_record import PeerRecord

FORMAT_VERSION = 1
MAX_PEERS = 64
MAX_BOOK_BYTES = MAX_PEERS * (MAX_RECORD_BYTES + 16) + 64


class AddressBook:
    """The newest records of peers that can be dialled, as they signed them, in one file."""

    def __init__(self, path: Path, run_id: bytes) -> None:
        """A missing or damaged file is an empty book: it only saves time."""
        self._path = path
        self._run_id = run_id
        self._signed: dict[str, bytes] = {}
        self.records: dict[str, PeerRecord] = {}
        try:
            fields = unpack(read_file(path, limit_bytes=MAX_BOOK_BYTES), "address book", limit_bytes=MAX_BOOK_BYTES)
            fields.version(FORMAT_VERSION)
            entries = fields.rest(lambda entry: entry.bytes_(limit=MAX_RECORD_BYTES))
        except (DiskError, RecordError):
            return
        self._take(entries)

    def add(self, found: Iterable[bytes]) -> None:
        """Take records that a look-up brought; wrong ones are left out. Raises DiskError when it cannot be kept."""
        before = dict(self._signed)
        self._take(found)
        if self._signed != before:
            entries = [[signed] for signed in self._signed.values()]
            write_durably(self._path, pack([FORMAT_VERSION, *entries]))

    def _take(self, entries: Iterable[bytes]) -> None:
        for signed in entries:
            try:
                record = PeerRecord.read(signed, run_id=self._run_id)
            except RecordError:
                continue
            known = self.records.get(record.peer)
            if record.addresses and (known is None or record.issued_at_ms > known.issued_at_ms):
                self.records[record.peer], self._signed[record.peer] = record, signed
        newest = sorted(self.records.values(), key=lambda record: record.issued_at_ms)[-MAX_PEERS:]
        self.records = {record.peer: record for record in newest}
        self._signed = {peer: self._signed[peer] for peer in self.records}

    def dial_addresses(self) -> list[str]:
        """Multiaddrs with /p2p/, as a network is started with."""
        return [f"{address}/p2p/{peer}" for peer, record in self.records.items() for address in record.addresses]
