"""Peers met before, with their addresses: how a peer finds the others again when the bootstrap peer is away."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from swarm_diloco.diloco.records import pack, unpack
from swarm_diloco.disk import read_file, write_durably
from swarm_diloco.errors import DiskError, RecordError
from swarm_diloco.network.discovery import MAX_RECORD_BYTES
from swarm_diloco.network.interface import Network
from swarm_diloco.network.peer_record import PeerRecord

FORMAT_VERSION = 1
MAX_PEERS = 64
MAX_DIALLED_PEERS = 16  # at a start; all are tried at once
MAX_BOOK_BYTES = MAX_PEERS * (MAX_RECORD_BYTES + 16) + 64
MAX_AHEAD_MS = 600_000  # of our clock; the DHT takes 3 s, but a book may outlive a wrong clock
MAX_AGE_MS = 30 * 86_400_000  # whoever was silent for so long is forgotten
SILENT_MS = 3_600_000  # whoever was silent for so long makes room for others

Entry = tuple[bytes, PeerRecord]  # as it was signed, and what it says


class AddressBook:
    """The newest records of peers that can be dialled, as they signed them, in one file.

    When it is full, who is known and speaks stays, so that nobody can push all others out by making up peers.
    """

    def __init__(
        self, path: Path, run_id: bytes, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        """A missing or damaged file is an empty book: it only saves time."""
        self._path, self._run_id, self._now_ms = path, run_id, now_ms
        self._entries: dict[str, Entry] = {}  # longest known first
        try:
            signed = read_book(read_file(path, limit_bytes=MAX_BOOK_BYTES))
        except (DiskError, RecordError):
            return
        self._take(signed)

    @property
    def records(self) -> dict[str, PeerRecord]:
        return {peer: record for peer, (_, record) in self._entries.items()}

    def add(self, found: Iterable[bytes]) -> None:
        """Take records that a look-up brought; wrong ones are left out. Raises DiskError when it cannot be kept."""
        before = list(self._entries.values())
        self._take(found)
        if list(self._entries.values()) != before:
            write_durably(self._path, book_bytes(signed for signed, _ in self._entries.values()))

    def _take(self, found: Iterable[bytes]) -> None:
        now_ms = self._now_ms()
        for signed in found:
            try:
                record = PeerRecord.read(signed, run_id=self._run_id)
            except RecordError:
                continue
            known = self._entries.get(record.peer)
            is_newer = known is None or record.issued_at_ms > known[1].issued_at_ms
            if record.addresses and is_newer and now_ms - MAX_AGE_MS <= record.issued_at_ms <= now_ms + MAX_AHEAD_MS:
                self._entries[record.peer] = signed, record
                self._make_room(record.peer, now_ms)

    def _make_room(self, newcomer: str, now_ms: int) -> None:
        """Drop who is too old, and of too many the one silent longest, or the newcomer if all others speak."""
        ages_ms = {peer: now_ms - record.issued_at_ms for peer, (_, record) in self._entries.items()}
        for peer in [peer for peer, age_ms in ages_ms.items() if age_ms > MAX_AGE_MS]:
            del self._entries[peer]
        if len(self._entries) > MAX_PEERS:
            oldest = max(self._entries, key=lambda peer: ages_ms[peer])
            del self._entries[oldest if ages_ms[oldest] > SILENT_MS else newcomer]

    def make_known(self, network: Network) -> None:
        """Let the network dial everybody in here, also while no DHT answers."""
        for peer, record in self.records.items():
            network.remember(peer, record.addresses)

    def dial_addresses(self) -> list[str]:
        """Multiaddrs with /p2p/, as a network is started with: of those who spoke last."""
        newest = sorted(self.records.values(), key=lambda record: -record.issued_at_ms)[:MAX_DIALLED_PEERS]
        return [f"{address}/p2p/{record.peer}" for record in newest for address in record.addresses]


def book_bytes(signed: Iterable[bytes]) -> bytes:
    """The file: [version, [signed record], …]."""
    return pack([FORMAT_VERSION, *([one] for one in signed)])


def read_book(data: bytes) -> list[bytes]:
    """The signed records in a file, unchecked. Raises RecordError."""
    fields = unpack(data, "address book", limit_bytes=MAX_BOOK_BYTES)
    fields.version(FORMAT_VERSION)
    return fields.rest(lambda entry: entry.bytes_(limit=MAX_RECORD_BYTES))
