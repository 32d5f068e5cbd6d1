"""One part on its way: the record [part, attempt, hash, bytes], whose bytes are megabytes.

The general reader and writer of records would copy them several times over; this one does so once.
"""

from dataclasses import dataclass, field

from swarm_diloco.diloco.ledger import MAX_PARTS
from swarm_diloco.diloco.records import HASH_BYTES, hash_of, pack, unpack
from swarm_diloco.errors import RecordError
from swarm_diloco.network.interface import MAX_FRAME_BYTES

_MAX_ATTEMPT = 255
_INTEGER_BYTES = {0xCC: 2, 0xCD: 3}  # of MessagePack's integers by their first byte; those below 128 have one
_LENGTH_BYTES = (2, 3, 5)  # that come before bytes in MessagePack


@dataclass(frozen=True, slots=True)
class PartFrame:
    part: int
    attempt: int
    data: bytes
    part_hash: bytes | None = field(default=None, compare=False, repr=False)  # of `data`, where it is known

    def encode(self) -> bytes:
        part_hash = hash_of(self.data) if self.part_hash is None else self.part_hash
        head = pack([self.part, self.attempt, part_hash, b""]).removesuffix(_length(0))
        return b"".join((head, _length(len(self.data)), self.data))

    @classmethod
    def decode(cls, frame: bytes) -> "PartFrame":
        """Raises RecordError, also when the bytes do not have their hash."""
        if len(frame) > MAX_FRAME_BYTES:
            raise RecordError(f"part: {len(frame)} bytes where at most {MAX_FRAME_BYTES} are allowed")
        head_bytes = _head_bytes(frame)
        fields = unpack(frame[:head_bytes] + _length(0), "part", limit_bytes=MAX_FRAME_BYTES)
        part, attempt, part_hash = (
            fields.integer(maximum=MAX_PARTS),
            fields.integer(maximum=_MAX_ATTEMPT),
            fields.hash_(),
        )
        fields.bytes_(length=0)
        fields.end()
        data = _bytes_after(frame, head_bytes)
        if hash_of(data) != part_hash:
            raise RecordError(f"part {part}: its bytes do not have their hash")
        return cls(part, attempt, data, part_hash)


def _head_bytes(frame: bytes) -> int:
    """The size of list head, two integers and hash, if the frame begins with these."""
    position = 1
    for _ in range(2):
        position += _INTEGER_BYTES.get(frame[position], 1) if position < len(frame) else 0
    return position + len(_length(HASH_BYTES)) + HASH_BYTES


def _length(num_bytes: int) -> bytes:
    """What comes before so many bytes in MessagePack."""
    if num_bytes < 2**8:
        return b"\xc4" + num_bytes.to_bytes(1, "big")
    if num_bytes < 2**16:
        return b"\xc5" + num_bytes.to_bytes(2, "big")
    return b"\xc6" + num_bytes.to_bytes(4, "big")


def _bytes_after(frame: bytes, start: int) -> bytes:
    """The field that begins at `start` and ends with the frame."""
    for size in _LENGTH_BYTES:
        num_bytes = len(frame) - start - size
        if num_bytes >= 0 and frame[start : start + size] == _length(num_bytes):
            return frame[start + size :]
    raise RecordError("part: its bytes do not end with their frame")
