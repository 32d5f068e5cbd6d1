"""The invite: one pasteable string with which a stranger finds a run and knows that it is the right one."""

import base64
import binascii
import re
from dataclasses import dataclass
from itertools import groupby

from swarm_diloco.diloco.records import HASH_BYTES, Field, Fields, hash_of, pack, unpack
from swarm_diloco.errors import InviteError, RecordError
from swarm_diloco.manifest import Manifest
from swarm_diloco.network.identity import peer_id_of, public_key_of

PREFIX = "sd1"  # the format's version
CHECKSUM_BYTES = 4
MAX_ADDRESSES = 16
MAX_ADDRESS_BYTES = 160  # a name of 100 letters with protocol and port fits
MAX_INVITE_CHARACTERS = 6000
ADDRESS = re.compile(r"(/[!-.0-~]+)+")


@dataclass(frozen=True, slots=True)
class Invite:
    """What the operator hands out. `encode` gives the string, `decode` takes it from a paste."""

    run_id: bytes
    operator_key: bytes  # raw Ed25519 public key, which signed the genesis
    addresses: tuple[str, ...]  # multiaddrs ending in /p2p/<peer id>, best first

    def __post_init__(self) -> None:
        if len(self.run_id) != HASH_BYTES or len(self.operator_key) != 32:
            raise ValueError("an invite's run id and operator's key have 32 bytes each")
        if not 1 <= len(self.addresses) <= MAX_ADDRESSES:
            raise ValueError(f"an invite has 1 to {MAX_ADDRESSES} addresses, not {len(self.addresses)}")
        for address in self.addresses:
            _split(address)

    def encode(self) -> str:
        """`sd1` and base64url of the record [run id, operator's key, [[peer's key, [[address], …]], …]] and 4 bytes of
        its blake3. Neighbouring addresses of one peer share its key, which is the /p2p/ part.
        """
        split = [_split(address) for address in self.addresses]
        grouped = groupby(split, key=lambda pair: pair[1])
        peers: list[Field] = [
            [public_key_of(peer), [[where.encode()] for where, _ in pairs]] for peer, pairs in grouped
        ]
        record = pack([self.run_id, self.operator_key, peers])
        data = record + hash_of(record)[:CHECKSUM_BYTES]
        return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> "Invite":
        """Read a pasted invite; line breaks, blanks and quotes around it do no harm. Raises InviteError."""
        data = _payload(text)
        record, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
        if hash_of(record)[:CHECKSUM_BYTES] != checksum:
            raise InviteError("the invite is cut short or has a wrong character; copy it again, whole")
        try:
            fields = unpack(record, "invite", limit_bytes=MAX_INVITE_CHARACTERS)
            run_id, operator_key = fields.hash_(), fields.bytes_(length=32)
            peers = fields.list_of(_read_peer, limit=MAX_ADDRESSES)
            fields.end()
            invite = cls(run_id, operator_key, tuple(address for addresses in peers for address in addresses))
            if invite.encode() != PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("="):
                raise RecordError("a peer's addresses are not in one list")
            return invite
        except (RecordError, ValueError) as error:
            raise InviteError(f"the invite is not one that this program reads ({error})") from error

    def check(self, manifest_bytes: bytes) -> Manifest:
        """The manifest that some peer sent, if it is this invite's. Raises InviteError, ManifestError."""
        if hash_of(manifest_bytes) != self.run_id:
            raise InviteError("the peer's manifest is not the one that the invite names; its operator runs another run")
        manifest = Manifest.parse(manifest_bytes, name="the run's manifest")
        if manifest.operator_key != self.operator_key:
            raise InviteError("the invite names another operator than the manifest; ask for a new invite")
        return manifest


def _payload(text: str) -> bytes:
    pasted = re.sub(r"\s+", "", text[: 4 * MAX_INVITE_CHARACTERS]).strip("\"'`<>")
    if not pasted.startswith(PREFIX):
        if re.match(r"sd\d", pasted):
            raise InviteError(f"the invite is of another version ({pasted[:3]}, this program reads {PREFIX}); update")
        shown = "".join(letter if letter.isprintable() else "?" for letter in pasted[:20])
        raise InviteError(f"an invite begins with {PREFIX}, this begins with {shown!r}")
    if len(pasted) > MAX_INVITE_CHARACTERS:
        raise InviteError(f"the invite has over {MAX_INVITE_CHARACTERS} characters; copy it again, alone")
    body = pasted.removeprefix(PREFIX)
    try:
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InviteError("the invite is cut short or has a wrong character; copy it again, whole") from error
    if len(data) <= CHECKSUM_BYTES or base64.urlsafe_b64encode(data).decode().rstrip("=") != body:
        raise InviteError("the invite is cut short or has a wrong character; copy it again, whole")
    return data


def _read_peer(fields: Fields) -> tuple[str, ...]:
    key = fields.bytes_(length=32)
    addresses = fields.list_of(lambda one: one.bytes_(limit=MAX_ADDRESS_BYTES), limit=MAX_ADDRESSES)
    return tuple(f"{address.decode('ascii')}/p2p/{peer_id_of(key)}" for address in addresses)


def _split(address: str) -> tuple[str, str]:
    """(where, peer id) of a multiaddr that ends in /p2p/<peer id>. Raises ValueError."""
    where, _, peer = address.rpartition("/p2p/")
    if not ADDRESS.fullmatch(where) or len(where) > MAX_ADDRESS_BYTES:
        raise ValueError(f"not an address that ends in /p2p/ and a peer id: {address[:MAX_ADDRESS_BYTES]!r}")
    if peer_id_of(public_key_of(peer)) != peer:
        raise ValueError(f"not a peer id: {peer[:64]!r}")
    return where, peer
