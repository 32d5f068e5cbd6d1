"""How a member and a reducer talk on a stream, besides the parts themselves (protocol rule 5).

The dialler's first is [1, round, ballot, D_{r−1}]; then [part, attempt, hash, bytes] both ways, and now and then
[number of parts received so far]; it ends with an empty frame, after which the reducer may close. An end of stream
before that is a failure, and dialled again.
"""

from dataclasses import dataclass

from swarm_diloco.diloco.records import pack, unpack
from swarm_diloco.network.messages import MAX_BALLOT

HELLO_VERSION = 1
MAX_ACK_BYTES = 16  # a part's frame has more


@dataclass(frozen=True, slots=True)
class Hello:
    round: int
    ballot: int
    prev: bytes

    def encode(self) -> bytes:
        return pack([HELLO_VERSION, self.round, self.ballot, self.prev])

    @classmethod
    def decode(cls, data: bytes) -> "Hello":
        fields = unpack(data, "parts hello", limit_bytes=256)
        fields.version(HELLO_VERSION)
        hello = cls(fields.integer(), fields.integer(maximum=MAX_BALLOT), fields.hash_())
        fields.end()
        return hello


def encode_ack(num_parts: int) -> bytes:
    return pack([num_parts])


def decode_ack(frame: bytes) -> int:
    """Raises RecordError."""
    fields = unpack(frame, "acknowledgement", limit_bytes=MAX_ACK_BYTES)
    num_parts = fields.integer()
    fields.end()
    return num_parts
