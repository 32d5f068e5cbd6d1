"""The round protocol's envelope: messages signed by the peer, bound to a run, a round and a ballot.

A frame is [payload, signature]; the payload is [version, kind, run, sender, round, ballot, sender's head, body].
Whoever holds the frame can prove who said what: a knock's hash stands in the commit, and knocks are the promises that
a proposal of a later ballot shows.
"""

from collections.abc import Callable
from dataclasses import dataclass

from swarm_diloco.diloco.ledger import Head
from swarm_diloco.diloco.records import Fields, hash_of, pack, unpack
from swarm_diloco.errors import RecordError
from swarm_diloco.network.identity import Identity, is_signed_by
from swarm_diloco.network.interface import MAX_FRAME_BYTES
from swarm_diloco.network.messages import (
    MAX_BALLOT,
    Ahead,
    Beat,
    Behind,
    Bye,
    CastVote,
    Coming,
    Decided,
    Here,
    Knock,
    Message,
    NotMe,
    OtherState,
    Plan,
    Promised,
    Propose,
    Refused,
    Sealed,
    Waiting,
)

MESSAGE_VERSION = 1
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES  # the longest are proposals with their promises

KINDS: dict[str, Callable[[Fields], Message]] = {
    "knock": Knock.read,
    "coming": Coming.read,
    "not me": NotMe.read,
    "behind": Behind.read,
    "ahead": Ahead.read,
    "promised": Promised.read,
    "refused": Refused.read,
    "other state": OtherState.read,
    "waiting": Waiting.read,
    "plan": Plan.read,
    "sealed": Sealed.read,
    "propose": Propose.read,
    "vote": CastVote.read,
    "decided": Decided.read,
    "beat": Beat.read,
    "here": Here.read,
    "bye": Bye.read,
}
NAMES: dict[type[Message], str] = {
    Knock: "knock",
    Coming: "coming",
    NotMe: "not me",
    Behind: "behind",
    Ahead: "ahead",
    Promised: "promised",
    Refused: "refused",
    OtherState: "other state",
    Waiting: "waiting",
    Plan: "plan",
    Sealed: "sealed",
    Propose: "propose",
    CastVote: "vote",
    Decided: "decided",
    Beat: "beat",
    Here: "here",
    Bye: "bye",
}


@dataclass(frozen=True, slots=True)
class Signed:
    """A message whose signature is right, and its frame, the proof."""

    sender: str
    round: int
    ballot: int
    head: Head
    message: Message
    frame: bytes

    @property
    def hash_(self) -> bytes:
        return hash_of(self.frame)


def sign(identity: Identity, *, run: bytes, round_: int, ballot: int, head: Head, message: Message) -> Signed:
    """Encode and sign a message of ours."""
    name = NAMES[type(message)]
    payload = pack([MESSAGE_VERSION, name, run, identity.peer, round_, ballot, head.fields(), list(message.fields())])
    frame = pack([payload, identity.sign(payload)])
    return Signed(identity.peer, round_, ballot, head, message, frame)


def read_signed(frame: bytes, *, run: bytes, sender: str | None = None) -> Signed:
    """Check and decode a frame from anybody. Raises RecordError: form, run, signature, or not from `sender`."""
    envelope = unpack(frame, "message", limit_bytes=MAX_MESSAGE_BYTES)
    payload, signature = envelope.bytes_(limit=MAX_MESSAGE_BYTES), envelope.bytes_(length=64)
    envelope.end()
    fields = unpack(payload, "message", limit_bytes=MAX_MESSAGE_BYTES)
    fields.version(MESSAGE_VERSION)
    kind, message_run, author = fields.string(), fields.hash_(), fields.string()
    read = KINDS.get(kind)
    if read is None:
        raise RecordError(f"message: unknown kind {kind!r}")
    if message_run != run:
        raise RecordError("message: it belongs to another run")
    if sender is not None and author != sender:
        raise RecordError(f"message: it is signed by {author} and came from {sender}")
    round_, ballot = fields.integer(), fields.integer(maximum=MAX_BALLOT)
    head = fields.required(Head.read)
    message = fields.required(read)
    fields.end()
    if not is_signed_by(author, payload, signature):
        raise RecordError(f"message: the signature is not {author}'s")
    return Signed(author, round_, ballot, head, message, frame)
