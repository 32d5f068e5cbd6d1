"""What the demonstration must show, and the text that says whether it did. Pure functions of what was seen."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from swarm_diloco_bootstrap.status_file import PeerStatus

FLOAT32_BYTES = 4


@dataclass(slots=True)
class Agreement:
    """Every (digest, state hash) that any peer named, by round."""

    seen: dict[int, dict[str, tuple[str, str]]] = field(default_factory=dict)  # round -> name of the peer -> both
    differing: list[str] = field(default_factory=list)

    def add(self, name: str, status: PeerStatus) -> None:
        named = self.seen.setdefault(status.round, {})
        state = (status.digest, status.state_hash)
        for other, others in named.items():
            if others != state and name not in named:
                self.differing.append(f"round {status.round}: {name} has {_short(state)}, {other} {_short(others)}")
        named.setdefault(name, state)

    def newest_common(self, names: Collection[str]) -> int | None:
        """The newest round of which all of `names` told."""
        return max((round_ for round_, named in self.seen.items() if set(names) <= named.keys()), default=None)

    @property
    def num_compared(self) -> int:
        """Rounds of which more than one peer told."""
        return sum(len(named) > 1 for named in self.seen.values())


def _short(state: tuple[str, str]) -> str:
    return f"digest {state[0][:8]} state {state[1][:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Everything that was seen, for `checks` and `summary`."""

    parameters: int
    batch_tokens: int  # of one inner step of one worker
    num_workers: int
    rounds: int
    tokens: int  # of all workers, in the log
    tokens_by_name: Mapping[str, int]  # in the log
    loss_start: float  # held-out, nats a token, of θ_0
    loss_end: float  # of the outer parameters at the end
    unigram_entropy: float  # of the same held-out text
    loss_exported: float  # of the exported model as transformers loads it
    statuses: Mapping[str, PeerStatus]  # the last of each peer
    live: Sequence[str]  # names of the peers that ran to the end
    agreement: Agreement
    stored_matches: bool  # the log replayed from the bootstrap peer's disk gives the state that the live peers named
    killed: str
    killed_at_round: int
    joined: str
    left_behind: Sequence[str]  # what was still there after all had been told to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Nats that the held-out loss must fall by, and must end below the unigram entropy."""

    drop: float
    margin: float


@dataclass(frozen=True, slots=True)
class Check:
    claim: str
    held: bool
    facts: str

    @property
    def line(self) -> str:
        return f"{'ok    ' if self.held else 'FAILED'}  {self.claim}: {self.facts}"


def checks(result: DemoResult, required: Requirements) -> tuple[Check, ...]:
    """All that must hold for the demonstration to have succeeded."""
    drop, margin = result.loss_start - result.loss_end, result.unigram_entropy - result.loss_end
    agreement = result.agreement
    common = agreement.newest_common(result.live)
    trained = [name for name, tokens in result.tokens_by_name.items() if tokens]
    return (
        Check(
            "the held-out loss fell",
            drop >= required.drop,
            f"{result.loss_start:.3f} → {result.loss_end:.3f} nats a token, by {drop:.3f} (at least {required.drop:g})",
        ),
        Check(
            "it ends below the text's unigram entropy",
            margin >= required.margin,
            f"{result.unigram_entropy:.3f} − {result.loss_end:.3f} = {margin:.3f} (at least {required.margin:g})",
        ),
        Check(
            "all live peers have one digest and one state hash",
            common is not None and not agreement.differing and result.stored_matches,
            "; ".join(agreement.differing[:3])
            or f"{_compared(result, common)}, {agreement.num_compared} rounds compared"
            + ("" if result.stored_matches else "; but the log replayed from disk gives another state"),
        ),
        Check(
            "a worker's death did not stop the swarm",
            result.rounds > result.killed_at_round,
            f"{result.killed} killed after round {result.killed_at_round}, "
            f"{result.rounds - result.killed_at_round} more followed",
        ),
        Check(
            "a new worker's training was taken up",
            result.tokens_by_name.get(result.joined, 0) > 0,
            f"{result.joined} has {result.tokens_by_name.get(result.joined, 0):,} tokens in the log",
        ),
        Check(
            "every worker trained",
            len(trained) == result.num_workers + 1,
            f"{len(trained)} of {result.num_workers + 1} have tokens in the log",
        ),
        Check(
            "the exported model is the swarm's",
            abs(result.loss_exported - result.loss_end) < 1e-4,  # the same float32 model, by another way of loading
            f"held-out loss {result.loss_exported:.4f}",
        ),
        Check(
            "everything ended within seconds and left nothing behind",
            not result.left_behind,
            "; ".join(result.left_behind) or "no process, no socket",
        ),
    )


def _compared(result: DemoResult, common: int | None) -> str:
    if common is None:
        return "no round of which all live peers told"
    digest, state_hash = result.agreement.seen[common][result.live[0]]
    return f"{len(result.live)} peers at round {common}: digest {digest[:16]}, state {state_hash[:16]}"


def data_parallel_bytes(parameters: int, num_workers: int, steps: float) -> float:
    """What a worker would send, and receive as well, if gradients were averaged in float32 at each of `steps` steps:
    2 · 4 · N · (M−1)/M a step, by a ring all-reduce.
    """
    return 2 * FLOAT32_BYTES * parameters * (num_workers - 1) / num_workers * steps


def summary(result: DemoResult) -> list[str]:
    """Rounds, tokens and bytes."""
    lines = [
        f"{result.rounds} rounds, {result.tokens:,} tokens on {result.parameters:,} parameters; bytes of each peer, "
        f"beside what data parallel with {result.num_workers} workers needs for the same steps, each way:"
    ]
    for name, status in result.statuses.items():
        line = f"  {name:<10} sent {megabytes(status.sent_bytes):>9}  received {megabytes(status.received_bytes):>9}"
        if tokens := result.tokens_by_name.get(name, 0):
            steps = tokens / result.batch_tokens
            needed = data_parallel_bytes(result.parameters, result.num_workers, steps)
            moved = max(status.sent_bytes, status.received_bytes, 1)
            line += f"  {steps:>6,.0f} steps: data parallel {megabytes(needed)}, {needed / moved:.0f} times as much"
        lines.append(line)
    return lines


def megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
