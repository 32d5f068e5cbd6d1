"""What a running peer says of itself on disk: one JSON object in the run's folder, replaced whole after each round."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from swarm_diloco.disk import read_file, write_durably
from swarm_diloco.errors import DiskError

STATUS_FILE = "status"
MAX_STATUS_BYTES = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerStatus:
    """A peer after a round. Digest, hashes and run id are hexadecimal."""

    pid: int  # of the process that wrote it, which may be gone
    peer: str
    role: str  # "worker" or "archive"
    run_id: str
    name: str
    round: int
    digest: str
    state_hash: str  # blake3 of θ, then of the outer momentum, both float32
    members: list[str]  # of the newest commit
    workers: list[str]  # those of them that trained
    tokens: int  # of the whole swarm, by the log
    own_tokens: int  # of this peer, by the log
    round_tokens: int  # of the newest commit
    round_seconds: float | None  # since the round before; None for the first that this process saw
    losses: dict[str, list[float]]  # by held-out set: [round, nats a token], the newest of each
    own_loss: float | None  # mean training loss since the round before, nats a token
    sent_bytes: int  # of parts, since the process began
    received_bytes: int
    updated_at_ms: int  # wall clock

    def write(self, folder: Path) -> None:
        """Raises DiskError."""
        write_durably(folder / STATUS_FILE, (json.dumps(asdict(self), indent=1) + "\n").encode())


def read_status(folder: Path) -> PeerStatus:
    """What the peer of this run's folder wrote last. Raises DiskError: none there, or damaged."""
    path = folder / STATUS_FILE
    data = read_file(path, limit_bytes=MAX_STATUS_BYTES)
    try:
        return TypeAdapter(PeerStatus).validate_json(data, strict=True)
    except ValidationError as error:
        raise DiskError(f"{path} is damaged or of another version; the running client writes it anew") from error


def round_line(status: PeerStatus) -> str:
    """One line a round, for people and for `grep`."""
    rate = f"{status.round_tokens / status.round_seconds:,.0f} tokens/s" if status.round_seconds else ""
    held_out = [f"{name} loss {loss:.4f} at round {round_:.0f}" for name, (round_, loss) in status.losses.items()]
    members = f"{len(status.members)} member{'s' * (len(status.members) != 1)}, {len(status.workers)} trained"
    texts = [
        f"round {status.round}",
        members,
        f"{status.round_seconds:.1f} s" if status.round_seconds is not None else "",
        f"own loss {status.own_loss:.4f}" if status.own_loss is not None else "",
        *held_out,
        rate,
        f"sent {status.sent_bytes / 1e6:.2f} MB, received {status.received_bytes / 1e6:.2f} MB",
        status.digest[:16],
    ]
    return "  ".join(text for text in texts if text)
