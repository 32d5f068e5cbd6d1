"""Commit 0: the operator signs which run it is, who its first members are, and what θ_0 hashes to."""

from collections.abc import Sequence

from swarm_diloco.diloco.ledger import Commit, Header, Kind, Member, Vote, genesis_message
from swarm_diloco.diloco.records import HASH_BYTES
from swarm_diloco.errors import RecordError
from swarm_diloco.manifest import Manifest
from swarm_diloco.network.identity import Identity
from swarm_diloco.rounds import log

NO_HASH = bytes(HASH_BYTES)  # the genesis follows nothing, and its members have knocked at nobody


def make_genesis(
    manifest: Manifest, operator: Identity, *, bases: Sequence[bytes], first_due_ms: int, wall_ms: int
) -> Header:
    """The signed header of commit 0.

    `bases` holds H(θ_f ‖ m_f) of θ_0 for each fragment in order, `first_due_ms` is the time from the genesis to round 1
    (0: each worker's first round is due after H steps of its own), `wall_ms` is for information only.
    Raises ValueError if the key is not the manifest's or the number of bases is not its number of fragments.
    """
    if operator.public_key != manifest.operator_key:
        raise ValueError("the key is not the operator's that the manifest names")
    if len(bases) != manifest.schedule.fragments or any(len(base) != HASH_BYTES for base in bases):
        raise ValueError(f"{manifest.schedule.fragments} bases of {HASH_BYTES} bytes are needed, one a fragment")
    commit = Commit(
        run=manifest.run_id,
        round=0,
        fragment=0,
        prev=NO_HASH,
        kind=Kind.GENESIS,
        base=b"".join(bases),
        members=_members(manifest),
        parts=(),
        next_due_ms=first_due_ms,
        wall_ms=wall_ms,
    ).encode()
    return Header(commit, 0, (Vote(operator.peer, operator.sign(genesis_message(commit))),))


def verify_genesis(data: bytes, manifest: Manifest) -> Header:
    """The genesis that somebody sent or a disk held, if it is this manifest's. Raises RecordError: what differs."""
    header = log.verify_genesis(data, run_id=manifest.run_id, operator_key=manifest.operator_key)
    commit = header.commit()
    for fault, what in (
        (commit.fragment != 0 or commit.prev != NO_HASH, "it claims to follow something"),
        (commit.members != _members(manifest), "its members are not the manifest's bootstrap peers"),
        (len(commit.base) != HASH_BYTES * manifest.schedule.fragments, "it does not hash one state a fragment"),
        (bool(commit.evaluation or commit.absorbs or commit.lever), "it carries what no genesis has"),
        (header.ballot != 0 or header.degraded != () or len(header.votes) != 1, "its certificate is of another kind"),
    ):
        if fault:
            raise RecordError(f"genesis: {what}")
    return header


def _members(manifest: Manifest) -> tuple[Member, ...]:
    return tuple(Member(peer, 0, 0, 0, True, (), NO_HASH) for peer in manifest.run.bootstrap_peers)
