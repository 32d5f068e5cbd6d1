"""What adding up the log's commits gives: tokens, credited data, evaluations."""

from collections import Counter

from swarm_diloco.diloco.ledger import Commit, Evaluation, Kind


class Totals:
    """Sums over the chain up to its head. Every follower of one log has the same."""

    def __init__(self) -> None:
        self.tokens = 0  # trained and averaged by all, the run's global token count
        self.tokens_by_peer: Counter[str] = Counter()
        self.counters: dict[str, int] = {}  # each member's counter as of its last commit
        self.credited: dict[tuple[int, int], int] = {}  # (pass, shard) -> end of its credited sequences
        self.evaluations: list[Evaluation] = []
        self.rounds: Counter[Kind] = Counter()
        self.rounds_by_peer: Counter[str] = Counter()  # in how many commits each peer is; the genesis does not count
        self.applied: Counter[int] = Counter()  # results of each fragment so far

    def add(self, commit: Commit) -> None:
        self.rounds[commit.kind] += 1
        self.applied[commit.fragment] += commit.kind is Kind.NORMAL
        if commit.kind is not Kind.GENESIS:
            self.rounds_by_peer.update(member.peer for member in commit.members)
        self.evaluations.extend(commit.evaluation)
        for member in commit.members:
            self.tokens += member.tokens
            self.tokens_by_peer[member.peer] += member.tokens
            self.counters[member.peer] = member.tokens_to
            for data_range in member.ranges:
                key = (data_range.data_pass, data_range.shard)
                self.credited[key] = max(self.credited.get(key, 0), data_range.end)
