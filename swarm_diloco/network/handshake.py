"""What a peer is before anything else is said: its protocol version and its run.

All other protocols carry both in their names, so that peers which differ never meet. This one's name never changes and
its record says what differs, so that whoever dials a stranger is told which of the two it is.
"""

from dataclasses import dataclass

from swarm_diloco.diloco.records import pack, unpack
from swarm_diloco.errors import RunRefused
from swarm_diloco.network.interface import Network, Stream

PROTOCOL_VERSION = 2  # of everything that a run's peers say to each other
HANDSHAKE_PROTOCOL = "/swarm-diloco/handshake"
FORMAT_VERSION = 1
MAX_HANDSHAKE_BYTES = 256
READ_SECONDS = 10.0  # for the caller to take it


@dataclass(frozen=True, kw_only=True, slots=True)
class Handshake:
    """What both sides have to agree on, and for people the version of the program."""

    protocol_version: int = PROTOCOL_VERSION
    run_id: bytes
    client_version: str

    def encode(self) -> bytes:
        return pack([FORMAT_VERSION, self.protocol_version, self.run_id, self.client_version])

    @classmethod
    def decode(cls, data: bytes) -> "Handshake":
        """Raises RecordError."""
        fields = unpack(data, "handshake", limit_bytes=MAX_HANDSHAKE_BYTES)
        fields.version(FORMAT_VERSION)
        handshake = cls(protocol_version=fields.integer(), run_id=fields.hash_(), client_version=fields.string())
        fields.end()
        return handshake

    def check(self, other: "Handshake") -> None:
        """Raises RunRefused naming the field in which the other side differs, and both values."""
        if other.protocol_version != self.protocol_version:
            raise RunRefused(
                f"another protocol version: it speaks {other.protocol_version} "
                f"(swarm-diloco {_shown(other.client_version)}), this program {self.protocol_version} "
                f"({_shown(self.client_version)}); update the older one"
            )
        if other.run_id != self.run_id:
            raise RunRefused(
                f"another manifest: its run is {other.run_id.hex()[:16]}, the one asked for {self.run_id.hex()[:16]}; "
                "ask for a new invite"
            )


async def show(stream: Stream, own: Handshake) -> None:
    """Answer one caller: opening the stream is the question."""
    await stream.send(own.encode(), timeout_seconds=READ_SECONDS)
    await stream.receive(timeout_seconds=READ_SECONDS, limit_bytes=0)  # its end: it has read the answer


async def shake_hands(network: Network, peer: str, own: Handshake, *, timeout_seconds: float) -> Handshake:
    """What `peer` is. Raises RunRefused naming what differs from `own`, NetworkError, RecordError."""
    stream = await network.dial(peer, HANDSHAKE_PROTOCOL, timeout_seconds=timeout_seconds)
    try:
        data = await stream.receive(timeout_seconds=timeout_seconds, limit_bytes=MAX_HANDSHAKE_BYTES)
    finally:
        await stream.close()
    other = Handshake.decode(data)
    own.check(other)
    return other


def _shown(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
