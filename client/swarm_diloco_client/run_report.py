"""What `status` shows of a run: values from its log, and their text."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psutil

from swarm_diloco.diloco.ledger import Commit, Kind
from swarm_diloco.errors import DiskError
from swarm_diloco.network.peer_record import PeerRecord
from swarm_diloco_bootstrap.status_file import PeerStatus, read_status
from swarm_diloco_client.observer import ObservedRun

NUM_ROUNDS = 10
NUM_EVALUATIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """A member of the newest commit."""

    peer: str
    weight: int  # tokens; 0: it does not train
    tokens: int  # credited by all commits
    reachable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    round: int
    kind: str
    workers: int
    members: int
    tokens: int  # credited
    decided_at: str  # by a member's clock, UTC
    next_due_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """Held-out loss of the outer parameters after a round."""

    set_name: str
    round: int
    loss: float  # nats a token


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport:
    """What a peer publishes of itself."""

    peer: str
    role: str
    round: int
    client_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run up to its log's head."""

    name: str
    purpose: str
    run_id: str
    round: int
    digest: str
    parameters: int
    tokens: int
    members: tuple[MemberReport, ...]
    rounds: tuple[RoundReport, ...]  # the last ones, oldest first
    evaluations: tuple[EvaluationReport, ...]  # all
    peers: tuple[PeerReport, ...]  # that publish a record now; none when only a folder was read
    own: PeerStatus | None  # what the client that works in the folder wrote last


def report_of(run: ObservedRun, records: Iterable[PeerRecord] = ()) -> RunReport:
    """The run as its log tells it, its peers as their `records` do, and the client of the folder if it has one."""
    log, settings = run.log, run.manifest.run
    newest = log.commit(log.head.round)
    return RunReport(
        name=settings.name,
        purpose=settings.purpose,
        run_id=run.manifest.run_id.hex(),
        round=log.head.round,
        digest=log.head.digest.hex(),
        parameters=run.manifest.model.parameters,
        tokens=log.totals.tokens,
        members=tuple(
            MemberReport(
                peer=member.peer,
                weight=member.weight,
                tokens=log.totals.tokens_by_peer[member.peer],
                reachable=member.reachable,
            )
            for member in newest.members
        ),
        rounds=tuple(_round_report(commit) for commit in log.newest(NUM_ROUNDS)),
        evaluations=tuple(
            EvaluationReport(set_name=each.set_name, round=each.round, loss=each.loss_micronats / 1e6)
            for each in log.totals.evaluations
        ),
        peers=tuple(
            PeerReport(peer=each.peer, role=each.role, round=each.round, client_version=each.client_version)
            for each in sorted(records, key=lambda record: record.peer)
        ),
        own=_own_status(run),
    )


def _own_status(run: ObservedRun) -> PeerStatus | None:
    try:
        return read_status(run.folder.path)
    except DiskError:
        return None  # nobody has worked in this folder


def _round_report(commit: Commit) -> RoundReport:
    return RoundReport(
        round=commit.round,
        kind=commit.kind.name.lower(),
        workers=len(commit.workers),
        members=len(commit.members),
        tokens=commit.tokens,
        decided_at=_utc(commit.wall_ms),
        next_due_seconds=commit.next_due_ms / 1000,
    )


def _utc(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # whoever coordinated the round may have written any number
        return "unknown"


def report_values(report: RunReport) -> dict[str, Any]:
    """For JSON."""
    return dataclasses.asdict(report)


def report_lines(report: RunReport) -> list[str]:
    """For people."""
    lines = [
        f"run       {report.name}" + (f": {report.purpose}" if report.purpose else ""),
        f"run id    {report.run_id}",
        f"round     {report.round}",
        f"digest    {report.digest}",
        f"trained   {report.tokens:,} tokens on {report.parameters:,} parameters",
    ]
    if report.evaluations:
        newest = report.evaluations[-NUM_EVALUATIONS:]
        losses = "  ".join(f"{each.set_name} {each.loss:.3f} (round {each.round})" for each in newest)
        lines.append(f"losses    {losses}, nats a token")
    if report.own is not None:
        lines.append(f"this peer {_own_line(report.own)}")
    lines += ["", f"members of round {report.round}:"]
    for member in report.members:
        what = f"weight {member.weight:,}, {member.tokens:,} tokens in all" if member.weight else "does not train"
        lines.append(f"  {member.peer}  {what}{'' if member.reachable else ', cannot be dialled'}")
    if report.peers:
        lines += ["", "peers that publish a record now:"]
        for peer in report.peers:
            lines.append(f"  {peer.peer}  {peer.role}, round {peer.round}, version {peer.client_version}")
    lines += ["", " round  kind     workers  members      tokens  decided (UTC)        next after"]
    for each in report.rounds:
        due = f"{each.next_due_seconds:.1f} s" if each.kind != Kind.GENESIS.name.lower() else "-"
        lines.append(
            f"{each.round:>6}  {each.kind:<8} {each.workers:>7} {each.members:>8} {each.tokens:>11,}"
            f"  {each.decided_at:<19}  {due:>10}"
        )
    return lines


def _own_line(own: PeerStatus) -> str:
    loss = f", own loss {own.own_loss:.3f}" if own.own_loss is not None else ""
    process = f"process {own.pid} {'runs' if psutil.pid_exists(own.pid) else 'has ended'}"
    return f"{own.peer}, {own.role}: round {own.round}, {own.own_tokens:,} tokens credited{loss}; {process}"
