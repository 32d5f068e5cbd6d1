"""All files but the trainer's: as record_formats.py, in other notations too."""

import base64
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import torch
from hypothesis import strategies as st
from safetensors.torch import save as save_safetensors

from example_run import OPERATOR, example_manifest
from record_formats import ANN, RUN, Format, peer_records, read_file_with, write_file_with
from record_values import COUNTS, HASHES, IDENTITY_LIST, PEERS, TEXTS, Strategy
from swarm_diloco.diloco import ledger
from swarm_diloco.diloco.fragments import MAX_LAYOUT_BYTES, ParameterLayout
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.errors import DiskError, IdentityError, InviteError, ManifestError, RecordError
from swarm_diloco.genesis import make_genesis, verify_genesis
from swarm_diloco.invite import CHECKSUM_BYTES, MAX_ADDRESSES, PREFIX, Invite
from swarm_diloco.manifest import MAX_MANIFEST_BYTES, Manifest
from swarm_diloco.network.addresses import parse
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.messages import VoteCast
from swarm_diloco.rounds import snapshot
from swarm_diloco.rounds.decision.voter import MAX_VOTE_FILE_BYTES, Voter
from swarm_diloco.rounds.log import PartStore
from swarm_diloco.rounds.replica import Replica
from swarm_diloco.rounds.settings import RunRules
from swarm_diloco_bootstrap import address_book, status_file
from swarm_diloco_bootstrap.operator_folder import BootstrapSettings, OperatorFolder, write_bootstrap_settings

MANIFEST = example_manifest()
NUM_VALUES = 6
PART = b"a part of a result"


# --- what a peer must remember


class ComparableVoter(Voter):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voter) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def read_votes(data: bytes) -> ComparableVoter:
    voter = ComparableVoter()
    vars(voter).update(vars(Voter.decode(data)))
    return voter


@st.composite
def voters(draw: Callable[[Strategy], Any]) -> Voter:
    """Of any rounds, with promises and votes of all kinds that a vote file has."""
    voter = ComparableVoter()
    for name, kept in vars(voter).items():
        casts = st.builds(VoteCast, st.integers(0, 2**32), st.binary(max_size=40))
        for key in draw(st.lists(st.tuples(COUNTS, HASHES), max_size=3)):
            kept[key] = draw(st.integers(0, 2**32) if name == "_promises" else casts)
    return voter


# --- the global state


RULES = RunRules(
    run_id=RUN,
    operator_key=OPERATOR.public_key,
    layout=ParameterLayout.of([("w", (NUM_VALUES,))]),
    schedule=MANIFEST.schedule,
)


def read_part(path: Path) -> bytes:
    """One that is not what its name says counts as missing."""
    found = PartStore(path.parent).get(hash_of(PART))
    if found is None:
        raise RecordError("not the part")
    return found


def state_bytes(theta: list[float]) -> bytes:
    return bytes(save_safetensors({"theta": torch.tensor(theta), "momentum": torch.tensor(theta) * 2}))


def read_state(data: bytes) -> list[float]:
    """A donor makes the index too, so whatever is in the file has the hashes that the index names."""
    chunks = [data[start : start + snapshot.CHUNK_BYTES] for start in range(0, len(data), snapshot.CHUNK_BYTES)]
    index = snapshot.SnapshotIndex(RUN, 3, RUN, (3,), len(data), tuple(map(hash_of, chunks)))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / snapshot.STATE_FILE).write_bytes(data)
        (Path(folder) / snapshot.INDEX_FILE).write_bytes(index.encode())
        replica = Replica(RULES, torch.zeros(NUM_VALUES), torch.zeros(NUM_VALUES))
        snapshot.load_snapshot(Path(folder), replica)
        return [float(value) for value in replica.theta]


# --- the operator's


def genesis_bytes(number: int) -> bytes:
    return make_genesis(
        MANIFEST, OPERATOR, bases=[hash_of(b"%d" % number)], first_due_ms=number, wall_ms=number
    ).encode()


def signed_genesis(commit: bytes) -> bytes:
    vote = ledger.Vote(OPERATOR.peer, OPERATOR.sign(ledger.genesis_message(commit)))
    return ledger.Header(commit, 0, (vote,)).encode()


def statuses() -> Strategy:
    drawn: dict[Any, Strategy] = {
        int: st.integers(0, 2**63),
        str: TEXTS,
        list[str]: st.lists(TEXTS, max_size=3),
        float | None: st.none() | st.floats(allow_nan=False, allow_infinity=False),
        dict[str, list[float]]: st.dictionaries(
            TEXTS, st.tuples(st.integers(0, 99).map(float), st.floats(0, 9)).map(list)
        ),
    }
    hints = get_type_hints(status_file.PeerStatus)
    return st.builds(status_file.PeerStatus, **{name: drawn[hint] for name, hint in hints.items()})


def read_shown_status(path: Path) -> status_file.PeerStatus:
    """What is read can be shown."""
    status = status_file.read_status(path.parent)
    assert status_file.round_line(status)
    return status


def invite_record(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.removeprefix(PREFIX) + "==")[:-CHECKSUM_BYTES]


def invite_text(record: bytes) -> str:
    """With the right checksum, whatever is in it."""
    return PREFIX + base64.urlsafe_b64encode(record + hash_of(record)[:CHECKSUM_BYTES]).decode().rstrip("=")


def save_identity(peer: str, path: Path) -> None:
    next(one for one in IDENTITY_LIST if one.peer == peer).save(path)


places = st.sampled_from(["/ip4/203.0.113.5/tcp/4000", "/ip6/2001:db8::1/tcp/1", "/dns4/a.example/tcp/65535"])
invites = st.builds(
    Invite,
    HASHES,
    HASHES,
    st.lists(st.tuples(places, PEERS).map("/p2p/".join), min_size=1, max_size=MAX_ADDRESSES).map(tuple),
)
layouts = st.dictionaries(TEXTS.filter(bool), st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=4).map(
    lambda shapes: ParameterLayout.of(shapes.items())
)

FILES: dict[str, Format] = {
    "vote file": Format(
        values=voters(),
        encode=Voter.encode,
        decode=read_votes,
        limit_bytes=MAX_VOTE_FILE_BYTES,
        covers=("Voter",),
    ),
    "snapshot state": Format(
        values=st.lists(st.floats(-9, 9, width=32), min_size=NUM_VALUES, max_size=NUM_VALUES),
        encode=state_bytes,
        decode=read_state,
        form="safetensors",
        is_canonical=False,  # of one state there are many files; its hash is taken of the values
    ),
    "stored part": Format(
        values=st.just(PART),
        encode=lambda data: data,
        decode=read_file_with(read_part, hash_of(PART).hex()),
        form="none",
    ),
    "layout": Format(
        values=layouts,
        encode=ParameterLayout.encode,
        decode=ParameterLayout.decode,
        form="json",
        limit_bytes=MAX_LAYOUT_BYTES,
        covers=("ParameterLayout",),
    ),
    "invite": Format(
        values=invites,
        encode=lambda invite: invite.encode().encode(),
        decode=lambda data: Invite.decode(data.decode("latin-1")),
        refusals=(InviteError,),
        form="none",
        is_canonical=False,  # a paste may have blanks in it
    ),
    "invite's record": Format(
        values=invites,
        encode=lambda invite: invite_record(invite.encode()),
        decode=lambda record: Invite.decode(invite_text(record)),
        refusals=(InviteError,),
        covers=("Invite",),
    ),
    "manifest": Format(
        values=st.just(MANIFEST),
        encode=lambda manifest: manifest.bytes_,
        decode=Manifest.parse,
        refusals=(ManifestError,),
        form="toml",
        is_canonical=False,  # its bytes are the run's name: two texts are two runs
        limit_bytes=MAX_MANIFEST_BYTES,
        covers=("SettingsFile",),
    ),
    "bootstrap.toml": Format(
        values=st.builds(BootstrapSettings, port=st.integers(1, 65535)),
        encode=write_bootstrap_settings,
        decode=read_file_with(lambda path: OperatorFolder(path.parent).read_settings(), "bootstrap.toml"),
        refusals=(ManifestError, DiskError),
        form="toml",
        is_canonical=False,  # the operator's to edit
        limit_bytes=MAX_MANIFEST_BYTES,
        share=4,
    ),
    "genesis": Format(
        values=st.integers(0, 1000).map(genesis_bytes),
        encode=lambda data: data,
        decode=lambda data: verify_genesis(data, MANIFEST).encode(),
        limit_bytes=ledger.MAX_HEADER_BYTES,
    ),
    "genesis' commit": Format(
        values=st.integers(0, 1000).map(lambda number: ledger.Header.decode(genesis_bytes(number)).commit_bytes),
        encode=lambda commit: commit,
        decode=lambda commit: verify_genesis(signed_genesis(commit), MANIFEST).commit_bytes,
    ),
    "status": Format(
        values=statuses(),
        encode=write_file_with(lambda status, path: status.write(path.parent), status_file.STATUS_FILE),
        decode=read_file_with(read_shown_status, status_file.STATUS_FILE),
        refusals=(DiskError,),
        form="json",
        is_canonical=False,  # for any program to read
        limit_bytes=status_file.MAX_STATUS_BYTES,
        share=4,
    ),
    "address book": Format(
        values=st.lists(peer_records.map(lambda record: record.signed(ANN)), max_size=4),
        encode=address_book.book_bytes,
        decode=address_book.read_book,
        limit_bytes=address_book.MAX_BOOK_BYTES,
    ),
    "identity key": Format(
        values=PEERS,
        encode=write_file_with(save_identity),
        decode=read_file_with(lambda path: Identity.load(path).peer),
        refusals=(IdentityError,),
        form="none",
        share=4,
    ),
    "address": Format(
        values=st.tuples(places, PEERS).map("/p2p/".join) | places,
        encode=str.encode,
        decode=lambda data: str(parse(data.decode("latin-1"))),
        refusals=(ValueError,),
        form="none",
        is_canonical=False,  # a port may have zeros before it
    ),
}
