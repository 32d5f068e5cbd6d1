"""What the client process and the trainer process say to each other, over one socket pair.

A frame is four bytes of length (big-endian) and a MessagePack list: the message's name, then its fields in order. Both
ends are one installation on one machine, so these are no records of the protocol: floats are allowed, no version.

    client → trainer                              trainer → client
    LogPosition   where the log stands            Ready      model is built, first step may come
    Due           form Δ now (pace "time")        Stepped    one inner step
    Outcome       what became of an Offer         Offer      Δ lies in shared memory
    Evaluate      measure the outer parameters    Evaluated  one held-out set
    File          a file that NeedFile asked for  NeedFile   a file of the run, by its path
    Pause Resume Stop                             Notice     something to tell the volunteer
                                                  Stopped    checkpoint is on disk, the trainer ends
                                                  Failed     it cannot go on, and why

The client answers every Offer with at least one Outcome that carries the Offer's number. `listed` = 0 means: keep your
local model and train on. A late Outcome of the same number with `listed` > 0 may follow it. An Offer whose `round` is
not the replica's (it crossed a result on its way) is answered with `listed` = 0.
"""

import math
import select
import socket
import struct
import time
from collections import deque
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from types import NoneType, TracebackType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

import msgpack

from swarm_diloco.errors import DataError

HEADER_BYTES = 4
MAX_MESSAGE_BYTES = 2**24  # a log position with 10^6 credited shards is 10 MB
MAX_WAITING_MESSAGES = 1024  # the client sends a few a round; more than this in one step is a fault of it
FILE_TIMEOUT_SECONDS = 6 * 3600.0  # the client fetches for as long as the swarm lives; a weights file may take hours
RECEIVE_BYTES = 2**16  # in one call

ShardEnd = tuple[int, int, int]  # (pass, shard, end): sequences [0, end) of this shard are credited in this pass
TrainedRange = tuple[int, int, int, int]  # (pass, shard, first, end): sequences [first, end) in the pass's order


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """Where the log stands: sent first of all, and again after each applied round."""

    round: int
    global_tokens: int  # credited by the log so far
    tokens_per_own_token: float  # the swarm's tokens for one of this worker's, by the last rounds; 1.0 when alone
    workers: tuple[str, ...]  # peer ids among which the shards are split
    credited: tuple[ShardEnd, ...]
    worker: str  # this worker's own peer id


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Form Δ now, after at least one inner step. With pace "steps" the trainer counts for itself."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an Offer."""

    offer: int  # the Offer's number
    round: int  # that decided it, or is still open
    listed: float  # fraction of Δ's values that the commit lists this worker for; 0 = keep θ_local and train on
    credited_tokens: int  # by that commit, to the token
    newest: int  # round of the result that θ in shared memory took last; a void leaves it
    taken: tuple[tuple[int, int], ...] = ()  # the listed values [first, end), in order; with none, all if any


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Measure θ of shared memory on held-out sets; one Evaluated a set comes back."""

    round: int
    set_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """Answer to NeedFile: `location` on this machine, or the `error` why there is none."""

    path: str
    location: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """No inner step until Resume. A Δ that is due is still offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Train again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Save a checkpoint and end. Stopped is the last message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The model is built and holds its parameters."""

    device: str
    precision: str  # "float32" or "bfloat16" (autocast; weights are float32)
    micro_batch: int  # sequences in one forward pass
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """One inner step. With a loss that is not finite the step was refused and `tokens` is 0."""

    step: int  # inner steps of this worker so far, refused ones too
    tokens: int
    loss: float  # nats a token
    learning_rate: float
    seconds: float
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A pseudo-gradient: Δ = θ(after `round`) − θ_local lies in shared memory until the next Offer."""

    number: int  # counts this worker's Offers from 1, restarts of the trainer included
    round: int  # whose θ is the base of Δ
    weight: int  # tokens, for the average: at most one round's
    tokens: int  # trained since the last commit that lists this worker, for credit
    ranges: tuple[TrainedRange, ...]  # not credited yet
    norm: float  # |Δ|₂, by float64
    step_seconds: float  # mean of the inner steps since the last Offer
    num_steps: int  # inner steps since the last Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Held-out loss of θ after `round`."""

    set_name: str
    round: int
    loss: float  # nats a token
    tokens: int  # predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedFile:
    """The trainer needs a file that the manifest names; File answers."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A sentence for the volunteer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The checkpoint is on disk."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The trainer ends because of `reason`; what it trained since the last checkpoint is lost."""

    reason: str


FromClient = LogPosition | Due | Outcome | Evaluate | File | Pause | Resume | Stop
FromTrainer = Ready | Stepped | Offer | Evaluated | NeedFile | Notice | Stopped | Failed
Message = FromClient | FromTrainer

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(FromClient) + get_args(FromTrainer)}
_HINTS: dict[str, list[Any]] = {
    name: [get_type_hints(kind)[field.name] for field in fields(kind)] for name, kind in _KINDS.items()
}


def encode(message: Message) -> bytes:
    """The message's frame, length first. Raises ValueError if it is longer than a frame may be."""
    payload: bytes = msgpack.packb([type(message).__name__, *astuple(message)])
    if len(payload) > MAX_MESSAGE_BYTES:
        raise ValueError(f"{type(message).__name__} has {len(payload)} bytes, at most {MAX_MESSAGE_BYTES} are allowed")
    return struct.pack(">I", len(payload)) + payload


def payload_bytes(header: bytes) -> int:
    """How many bytes follow a frame's first HEADER_BYTES. Raises ValueError past the limit."""
    (length,) = struct.unpack(">I", header)
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a frame of {length} bytes, at most {MAX_MESSAGE_BYTES} are allowed")
    return int(length)


def decode(payload: bytes) -> Message:
    """The message of a frame without its header. Raises ValueError if it is none of the above, field by field."""
    try:
        name, *values = msgpack.unpackb(payload, use_list=False, raw=False, max_map_len=0)
        kind, hints = _KINDS[name], _HINTS[name]
    except (KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"not a message between client and trainer ({type(error).__name__})") from error
    if len(values) != len(hints) or not all(map(_fits, values, hints)):
        raise ValueError(f"{name} with fields of another form: {values!r:.200}")
    message: Message = kind(**{field.name: value for field, value in zip(fields(kind), values, strict=True)})
    return message


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        if not isinstance(value, tuple):
            return False
        if inner[-1] is Ellipsis:
            return all(_fits(item, inner[0]) for item in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if isinstance(hint, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if hint is float:
        return isinstance(value, float)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, NoneType if hint is NoneType else hint)


class StopRequested(Exception):
    """A Stop has come while the trainer waited for something else. It is still to be received."""


class Channel:
    """The trainer's end, for one thread. Every method raises EOFError once the client is gone.

    While the trainer waits for a file, other messages are kept in their order for `receive`; only Stop ends such a
    wait. As a context manager it closes the socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()  # of a frame that is not whole yet
        self._waiting: deque[FromClient] = deque()
        self._files: dict[str, File] = {}  # answers to NeedFile
        self._asked: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def send(self, message: FromTrainer) -> None:
        """Send it whole; blocks while the client does not read."""
        try:
            self._connection.sendall(encode(message))
        except OSError as error:
            raise EOFError("the client process is gone") from error

    def receive(self, timeout_seconds: float | None = None) -> FromClient | None:
        """The next message, or None after `timeout_seconds`; without one it waits for the client's word or its end."""
        give_up_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._waiting:
            left = None if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            if not self._read(left):
                return None
        return self._waiting.popleft()

    def poll(self) -> FromClient | None:
        """The next message that has already come, or None."""
        return self.receive(0.0)

    def announce(self, path: str) -> None:
        """Tell the client that this file of the run will be needed, and do not wait for it."""
        if path not in self._asked:
            self.send(NeedFile(path=path))
            self._asked.add(path)

    def fetch(self, path: str, timeout_seconds: float = FILE_TIMEOUT_SECONDS) -> Path:
        """Where a file of the run lies on this machine, once the client has it.

        Raises DataError if it cannot be had or does not come, StopRequested.
        """
        self.announce(path)
        give_up_at = time.monotonic() + timeout_seconds
        while True:
            self.raise_if_stopping()
            if path in self._files:
                break
            if not self._read(max(0.0, give_up_at - time.monotonic())):
                raise DataError(f"{path}: not there after {timeout_seconds:.0f} s")
        answer = self._files[path]
        if answer.location is None:  # another fetch asks again
            del self._files[path]
            self._asked.discard(path)
            raise DataError(f"{path}: {answer.error or 'no reason given'}")
        return Path(answer.location)

    def raise_if_stopping(self) -> None:
        """For whoever makes the trainer wait: raises StopRequested if a Stop has come."""
        while self._read(0.0):
            pass
        if any(isinstance(message, Stop) for message in self._waiting):
            raise StopRequested

    def _read(self, timeout_seconds: float | None) -> bool:
        """Wait for bytes and take them in; False if none came."""
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        if not poller.poll(None if timeout_seconds is None else math.ceil(timeout_seconds * 1000)):
            return False
        try:
            chunk = self._connection.recv(RECEIVE_BYTES)
        except OSError:
            chunk = b""
        if not chunk:
            raise EOFError("the client process is gone")
        self._received += chunk
        try:
            while (message := self._whole_message()) is not None:
                if isinstance(message, File):
                    self._files[message.path] = message
                elif isinstance(message, FromClient) and len(self._waiting) < MAX_WAITING_MESSAGES:
                    self._waiting.append(message)
                else:
                    raise ValueError(f"{type(message).__name__} is not the client's to send, or one too many")
        except ValueError as error:
            raise EOFError(f"what speaks at the other end is not the client: {error}") from error
        return True

    def _whole_message(self) -> Message | None:
        if len(self._received) < HEADER_BYTES:
            return None
        end = HEADER_BYTES + payload_bytes(bytes(self._received[:HEADER_BYTES]))
        if len(self._received) < end:
            return None
        payload = bytes(self._received[HEADER_BYTES:end])
        del self._received[:end]
        return decode(payload)
