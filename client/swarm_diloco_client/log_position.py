"""What the trainer needs to know of the log, as pure functions of it."""

from collections.abc import Sequence
from fractions import Fraction

from swarm_diloco.diloco.ledger import Commit, Kind
from swarm_diloco.manifest import EvaluationSettings
from swarm_diloco.rounds.log import Log
from swarm_diloco.training.channel import LogPosition

RATE_COMMITS = 4  # the newest ones, for the swarm's speed
ASSUMED_WORKERS = 64  # until a commit says who trains: so few of those who start together train the same text


def log_position(log: Log, me: str, num_shards: int) -> LogPosition:
    """Where the log stands for the worker `me`, and who else trains on the `num_shards` shards of text."""
    newest = log.newest(RATE_COMMITS)
    return LogPosition(
        round=log.head.round,
        global_tokens=log.totals.tokens,
        tokens_per_own_token=tokens_per_own_token(newest, me),
        workers=text_workers(newest, me, num_shards),
        credited=tuple((data_pass, shard, end) for (data_pass, shard), end in log.totals.credited.items()),
        worker=me,
    )


def tokens_per_own_token(newest: Sequence[Commit], me: str) -> float:
    """The swarm's tokens for one of this worker's by the given commits; a newcomer counts as an average worker."""
    trained = [commit for commit in newest if commit.kind is Kind.NORMAL]
    everybody = sum(commit.tokens for commit in trained)
    own = sum(member.tokens for commit in trained if (member := commit.member(me)) is not None)
    if own:
        return float(Fraction(everybody, own))
    return float(len(set(trained[-1].workers) | {me})) if trained else 1.0


def text_workers(newest: Sequence[Commit], me: str, num_shards: int) -> tuple[str, ...]:
    """Among whom the shards of text are split: the newest commit's workers.

    Before there is one, workers that start together know nothing of each other and would all train the same text: each
    then takes the shards that it would have among ASSUMED_WORKERS.
    """
    for commit in reversed(newest):
        if commit.workers:
            return commit.workers
    return (me, *(f"nobody {number}" for number in range(1, min(ASSUMED_WORKERS, num_shards))))


def evaluates(commit: Commit, me: str, settings: EvaluationSettings) -> bool:
    """Whether it is this worker's turn to measure θ after the commit: every so many rounds one of its workers does.

    θ_0 is measured by all who train for the first round; the first value in the log counts.
    """
    if commit.round % settings.every_rounds or not settings.sets:
        return False
    if commit.kind is Kind.GENESIS:
        return True
    workers = commit.workers
    return bool(workers) and workers[commit.round // settings.every_rounds % len(workers)] == me
