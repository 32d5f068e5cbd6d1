"""The four properties of PROTOCOL's schedules, read from what the peers hold: each gives what is wrong, or nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from schedules.peer import ScheduledPeer
from swarm_diloco.rounds.log import Log

Interval = tuple[int, int]  # of a worker's token counter, (from, to]


def one_log(peers: Sequence[ScheduledPeer]) -> list[str]:
    """No two peers hold different D for one round unless the fork is in the ledger of those who live."""
    wrong = []
    for one in peers:
        for other in peers:
            if one.name < other.name and (round_ := first_difference(log_of(one), log_of(other))) is not None:
                silent = [peer.name for peer in (one, other) if not peer.away_at_the_end and not has_noticed(peer)]
                if silent:
                    wrong.append(f"round {round_}: {one.name} and {other.name} differ, and {silent} do not say so")
    return wrong


def log_of(peer: ScheduledPeer) -> Log:
    assert peer.follower is not None
    return peer.follower.log


def first_difference(one: Log, other: Log) -> int | None:
    common = min(one.head.round, other.head.round)
    if one.digest(common) == other.digest(common):
        return None
    return next(round_ for round_ in range(common + 1) if one.digest(round_) != other.digest(round_))


def has_noticed(peer: ScheduledPeer) -> bool:
    assert peer.follower is not None
    return len(peer.follower.forks) > 0


def equal_bases(peers: Sequence[ScheduledPeer]) -> list[str]:
    """Equal D ⇒ equal bases, and the whole state where two are at one place."""
    wrong = []
    bases: dict[bytes, tuple[str, bytes]] = {}
    states: dict[bytes, tuple[str, bytes]] = {}
    for peer in peers:
        assert peer.follower is not None
        found = [(digest, base, bases) for digest, base in peer.states.values()]
        replica = peer.follower.replica
        if replica.round >= 0:
            found.append((log_of(peer).digest(replica.round), replica.state_hash(), states))
        for digest, state, seen in found:
            name, known = seen.setdefault(digest, (peer.name, state))
            if known != state:
                wrong.append(f"D {digest.hex()[:8]}: {name} and {peer.name} have other states")
    return wrong


@dataclass(frozen=True, slots=True)
class Tokens:
    """One worker's."""

    name: str
    trained: int
    credited: int  # by the newest log
    orphaned: int  # by another branch alone
    pending: int
    dropped: int  # of a Δ that S commits did not list: the only loss there may be, and it is said

    @property
    def lost(self) -> int:
        return self.trained - self.credited - self.orphaned - self.pending - self.dropped

    def __str__(self) -> str:
        parts = f"credited {self.credited} + orphaned {self.orphaned} + pending {self.pending}"
        return f"{self.name}: {parts} + dropped {self.dropped} ≠ trained {self.trained}"


def tokens_of(worker: ScheduledPeer, newest: Log) -> Tokens:
    """Pending is what the worker's own books say, less what was credited after it last heard of it."""
    own = log_of(worker)
    is_orphan = first_difference(own, newest) is not None
    chain = own if is_orphan else newest
    unheard = [
        entry.tokens
        for round_ in range(worker.settled_round + 1, chain.head.round + 1)
        if (entry := chain.commit(round_).member(worker.peer)) is not None
    ]
    return Tokens(
        name=worker.name,
        trained=worker.trained,
        credited=newest.totals.tokens_by_peer[worker.peer],
        orphaned=_length_outside(credited_intervals(own, worker.peer), credited_intervals(newest, worker.peer)),
        pending=worker.progress.pending_tokens - sum(unheard),
        dropped=worker.dropped,
    )


def credited_intervals(log: Log, peer: str) -> list[Interval]:
    entries = [log.commit(round_).member(peer) for round_ in range(1, log.head.round + 1)]
    return [(entry.tokens_from, entry.tokens_to) for entry in entries if entry is not None and entry.tokens]


def _length_outside(intervals: Sequence[Interval], covered: Sequence[Interval]) -> int:
    """How much of `intervals` none of `covered` has; each list is sorted and without overlaps."""
    total = 0
    for start, end in intervals:
        inside = sum(max(0, min(end, until) - max(start, since)) for since, until in covered)
        total += end - start - inside
    return total


def every_token_once(peers: Sequence[ScheduledPeer]) -> tuple[list[str], list[Tokens]]:
    """Credited + orphaned + pending = trained for each worker, and its credited ranges join on."""
    wrong, rows = [], []
    newest = max((log_of(peer) for peer in peers), key=lambda log: log.head.round)
    for peer in peers:
        intervals = credited_intervals(newest, peer.peer)
        ends = [0, *(end for _, end in intervals)]
        if any(start != before for (start, _), before in zip(intervals, ends, strict=False)):
            wrong.append(f"{peer.name}: its ranges do not join on: {intervals}")
        if peer.trains:
            tokens = tokens_of(peer, newest)
            rows.append(tokens)
            if tokens.lost or tokens.pending < 0:
                wrong.append(str(tokens))
    return wrong, rows
