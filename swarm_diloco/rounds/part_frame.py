"""One part on its way: the record [part, attempt, hash, bytes], whose bytes are megabytes.

The general reader and writer of records would copy them several times over; this one does so once.
"""

from dataclasses import dataclass, field

from swarm_diloco.diloco.ledger import MAX_PARTS
from swarm_diloco.diloco.records import HASH_BYTES, hash_of
from swarm_diloco.errors import RecordError
from swarm_diloco.network.interface import MAX_FRAME_BYTES

_MAX_ATTEMPT = 255


@dataclass(frozen=True, slots=True)
class PartFrame:
    part: int
    attempt: int
    data: bytes | memoryview
    part_hash: bytes | None = field(default=None, compare=False, repr=False)  # of `data`, where it is known

    def encode(self) -> bytes:
        part_hash = hash_of(self.data) if self.part_hash is None else self.part_hash
        return b"".join((_head(self.part, self.attempt, part_hash, len(self.data)), self.data))

    @classmethod
    def decode(cls, frame: bytes) -> "PartFrame":
        """Raises RecordError, also when the bytes do not have their hash."""
        if len(frame) > MAX_FRAME_BYTES:
            raise RecordError(f"part: {len(frame)} bytes where at most {MAX_FRAME_BYTES} are allowed")
        part, start = _integer_at(frame, 1, maximum=MAX_PARTS)
        attempt, start = _integer_at(frame, start, maximum=_MAX_ATTEMPT)
        start += len(_length(HASH_BYTES))
        part_hash = frame[start : start + HASH_BYTES]
        for length_bytes in (2, 3, 5):
            num_bytes = max(0, len(frame) - start - HASH_BYTES - length_bytes)
            head = _head(part, attempt, part_hash, num_bytes)
            if len(head) + num_bytes == len(frame) and frame.startswith(head):
                break
        else:
            raise RecordError("part: not in canonical form")
        data = memoryview(frame)[len(head) :]
        if hash_of(data) != part_hash:
            raise RecordError(f"part {part}: its bytes do not have their hash")
        return cls(part, attempt, data, part_hash)


# MessagePack's forms: a list of four, integers, bytes with their length before them.


def _head(part: int, attempt: int, part_hash: bytes, num_bytes: int) -> bytes:
    """All of the record but its last `num_bytes`."""
    return b"\x94" + _integer(part) + _integer(attempt) + _length(HASH_BYTES) + part_hash + _length(num_bytes)


def _integer(value: int) -> bytes:
    if value < 2**7:
        return value.to_bytes(1, "big")
    if value < 2**8:
        return b"\xcc" + value.to_bytes(1, "big")
    return b"\xcd" + value.to_bytes(2, "big")


def _integer_at(frame: bytes, start: int, *, maximum: int) -> tuple[int, int]:
    """The integer that begins there, and where it ends."""
    first = frame[start : start + 1]
    begin, end = {b"\xcc": (1, 2), b"\xcd": (1, 3)}.get(first, (0, 1))
    value = int.from_bytes(frame[start + begin : start + end], "big")
    if value > maximum:
        raise RecordError(f"part: a number is {value}, at most {maximum} is allowed")
    return value, start + end


def _length(num_bytes: int) -> bytes:
    if num_bytes < 2**8:
        return b"\xc4" + num_bytes.to_bytes(1, "big")
    if num_bytes < 2**16:
        return b"\xc5" + num_bytes.to_bytes(2, "big")
    return b"\xc6" + num_bytes.to_bytes(4, "big")
