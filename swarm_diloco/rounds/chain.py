"""What follows from a chain of commits: who decides its next rounds, and what a peer knows of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from swarm_diloco.diloco.ledger import Commit, Member
from swarm_diloco.diloco.schedule import fragment_of_round
from swarm_diloco.rounds.council import Council, council_of
from swarm_diloco.rounds.decision.voter import RECENT_COMMITS, View
from swarm_diloco.rounds.settings import RunRules


class Chain(ABC):
    """Commits from the genesis to a head."""

    rules: RunRules

    @abstractmethod
    def commit(self, round_: int) -> Commit:
        """A round's commit, up to the head."""

    @abstractmethod
    def digest(self, round_: int) -> bytes:
        """D_r. Raises IndexError past the head."""

    def council(self, round_: int) -> Council:
        """Of a round up to head + W."""
        named_by = max(0, round_ - self.rules.window)
        while named_by and not self.commit(named_by).members:
            named_by -= 1
        return council_of(self.rules.run_id, round_, self.commit(named_by).members)

    def view(self, round_: int, base: bytes, tokens_credited: Mapping[str, int]) -> View:
        """What this chain says of `round_`, whose predecessor it holds; `base` is the reader's own state's hash."""
        return View(
            rules=self.rules,
            round=round_,
            fragment=fragment_of_round(round_, self.rules.num_fragments),
            prev=self.digest(round_ - 1),
            anchor=self.digest(max(0, round_ - self.rules.window)),
            base=base,
            council=self.council(round_),
            tokens_credited=tokens_credited,
            recent=self._recent(round_),
        )

    def _recent(self, round_: int) -> tuple[Member, ...]:
        commits = [self.commit(earlier) for earlier in range(max(0, round_ - RECENT_COMMITS), round_)]
        return tuple({member.peer: member for commit in commits for member in commit.members}.values())
