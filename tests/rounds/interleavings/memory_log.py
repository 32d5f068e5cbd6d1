"""A peer's log without a disk under it: council and view are the real ones, and so are the records."""

from dataclasses import dataclass

from small_swarm import QUICK, identity
from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.diloco.ledger import Commit, Head, Header, Kind, Member
from swarm_diloco.diloco.records import HASH_BYTES, hash_of
from swarm_diloco.diloco.schedule import ScheduleSettings, fragment_of_round
from swarm_diloco.rounds.chain import Chain
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.settings import RunRules
from swarm_diloco.rounds.totals import Totals

RUN = hash_of(b"the interleaved run")
NOT_KNOWN = bytes(HASH_BYTES)  # D_{r−1} of a round that opens before the one in front of it is decided


@dataclass(frozen=True, kw_only=True)
class FragmentedRules(RunRules):
    """Rules of a run of P fragments, each of two parts, whatever the layout says: no θ is averaged here."""

    fragments: int = 1

    @property
    def num_fragments(self) -> int:
        return self.fragments

    def part_sizes(self, fragment: int) -> tuple[int, ...]:
        return (1024, 512)


def rules_of(fragments: int) -> RunRules:
    return FragmentedRules(
        run_id=RUN,
        operator_key=identity("operator").public_key,
        layout=ParameterLayout.of([("weight", (1536,))]),
        schedule=ScheduleSettings(inner_steps=10, pace="steps"),
        rounds=QUICK,
        fragments=fragments,
    )


def genesis_of(rules: RunRules, founders: list[tuple[str, bool]]) -> Header:
    """Commit 0 of (peer, reachable) pairs."""
    commit = Commit(
        run=rules.run_id,
        round=0,
        fragment=0,
        prev=bytes(HASH_BYTES),
        kind=Kind.GENESIS,
        base=b"".join(_first_base(fragment) for fragment in range(rules.num_fragments)),
        members=tuple(Member(peer, 0, 0, 0, reachable, (), bytes(HASH_BYTES)) for peer, reachable in founders),
        parts=(),
        next_due_ms=0,
        wall_ms=0,
    )
    return Header(commit.encode(), 0, ())


def _first_base(fragment: int) -> bytes:
    return hash_of(b"fragment %d" % fragment)


class MemoryLog(Chain):
    """Decided commits in order. Each applied result changes its fragment's base."""

    def __init__(self, rules: RunRules, headers: list[Header]) -> None:
        self.rules = rules
        self.totals = Totals()
        self.headers: list[Header] = []
        self._commits: list[Commit] = []
        self._digests: list[bytes] = []
        self._bases = [_first_base(fragment) for fragment in range(rules.num_fragments)]
        self._views: dict[int, View] = {}
        for header in headers:
            self.append(header)

    @property
    def head(self) -> Head:
        return Head(len(self._digests) - 1, self._digests[-1])

    def digest(self, round_: int) -> bytes:
        return self._digests[round_]

    def commit(self, round_: int) -> Commit:
        return self._commits[round_]

    def append(self, header: Header) -> None:
        commit = header.commit()
        assert commit.round == len(self.headers)
        self.headers.append(header)
        self._commits.append(commit)
        self._digests.append(header.digest)
        self.totals.add(commit)
        self._views.clear()
        if commit.kind is Kind.NORMAL:
            self._bases[commit.fragment] = hash_of(self._bases[commit.fragment] + self._digests[-1])

    def view_of(self, round_: int) -> View:
        """Of one of the W rounds that may be open. Its predecessor is known for the first of them alone."""
        if round_ not in self._views:
            base = self._bases[fragment_of_round(round_, self.rules.num_fragments)]
            if round_ == self.head.round + 1:
                self._views[round_] = self.view(round_, base, self.totals.counters)
            else:
                self._views[round_] = View(
                    rules=self.rules,
                    round=round_,
                    fragment=fragment_of_round(round_, self.rules.num_fragments),
                    prev=NOT_KNOWN,
                    anchor=self.digest(max(0, round_ - self.rules.window)),
                    base=base,
                    council=self.council(round_),
                    tokens_credited=self.totals.counters,
                )
        return self._views[round_]

    def view_before(self, round_: int) -> View:
        """Of a round that is decided here, as it was: to look at another decision of it."""
        return self.view(round_, NOT_KNOWN, {})
