"""Sees all that leaves a peer, from outside and with its own words for the rules, and says what was broken.

One chain's round is named (round, D_{r−1}). Without degraded ballots it has one decided commit. With them it may have
two, but never two by a council's majority, and none against a majority of which somebody was in the degraded plan.
"""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from swarm_diloco.diloco.ledger import Header, Kind, digest_of
from swarm_diloco.network.messages import FIRST_DEGRADED, Knock, VoteCast
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.council import Council
from swarm_diloco.rounds.decision.ballot import Ballot
from swarm_diloco.rounds.decision.voter import View

SPLIT = "split"  # two commits decided for one round, and no degraded ballot excuses it
TWO_CHOSEN = "two chosen"  # a majority's votes have left for two commits, whether anybody has seen them together or not
TWO_PROPOSALS = "two proposals"  # by one coordinator at one ballot
DOUBLE_VOTE = "double vote"  # two commits at one ballot by one peer, or two degraded votes and nothing to adopt
PASSED_OVER = "passed over"  # a degraded vote against what its proposal's promises report
HIDDEN_VOTE = "hidden vote"  # a knock at b reports less than what its sender votes for below b: a promise is broken
FORGED = "forged certificate"  # somebody believes a certificate whose votes were never given
LOST = "lost decision"  # a peer's log holds something else than what was decided
UNNOTICED = "unnoticed fork"  # two peers of two branches have met, and one of them does not know it
STUCK = "stuck"  # enough peers, no faults, and yet nothing is decided
ALL = (SPLIT, TWO_CHOSEN, TWO_PROPOSALS, DOUBLE_VOTE, PASSED_OVER, HIDDEN_VOTE, FORGED, LOST, UNNOTICED, STUCK)

Place = tuple[int, bytes]  # round, D_{r−1}
Tally = tuple[Place, int, bytes, frozenset[str]]  # ballot, H(commit), degraded plan


class Violation(Exception):
    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def is_majority(council: Council, peers: Collection[str]) -> bool:
    """The rule once more, so that a mutant of the other does not change it here."""
    present = len(set(council.members) & set(peers))
    half = len(council.members) / 2
    return present > half or (present == half and council.candidates[0] in peers)


def place_of(view: View) -> Place:
    return view.round, view.prev


@dataclass(frozen=True, slots=True)
class Decision:
    """One certificate's meaning. `plan` is nobody for a council's decision."""

    digest: bytes
    ballot: int
    voters: frozenset[str]
    plan: frozenset[str]


@dataclass(frozen=True, slots=True)
class DegradedVote:
    commit_bytes: bytes
    plan: frozenset[str]
    reported: frozenset[VoteCast]  # by its proposal's promises
    cast_at: int  # step of the run

    @property
    def reported_commits(self) -> set[bytes]:
        return {cast.commit_bytes for cast in self.reported}

    @property
    def is_due_elsewhere(self) -> bool:
        """A council's vote of the highest ballot goes first, then a degraded one."""
        order = sorted(self.reported, key=lambda cast: (cast.ballot >= FIRST_DEGRADED, -cast.ballot))
        return bool(order) and self.commit_bytes not in [c.commit_bytes for c in order if c.ballot == order[0].ballot]


def tells_of(reported: int, voted: int) -> bool:
    """Whether a knock that reports a vote of one ballot does not hide one of another. A council's goes first."""
    is_by_council = 0 <= reported < FIRST_DEGRADED
    return reported >= voted and is_by_council if voted < FIRST_DEGRADED else reported >= voted or is_by_council


@dataclass
class Witness:
    watched: Collection[str] = ALL
    may_pass_over: bool = False  # a vote whose parts are gone: then a fork needs no other excuse
    counts: Counter[str] = field(default_factory=Counter)
    decided: defaultdict[Place, dict[bytes, Decision]] = field(default_factory=lambda: defaultdict(dict))
    _chosen: dict[Place, Decision] = field(default_factory=dict)  # by a council's majority
    _proposed: dict[tuple[str, Place, int], bytes] = field(default_factory=dict)
    _tallies: defaultdict[Tally, set[str]] = field(default_factory=lambda: defaultdict(set))
    _votes: defaultdict[tuple[str, Place], dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    _degraded_votes: defaultdict[tuple[str, Place], list[DegradedVote]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _knocks: defaultdict[tuple[str, Place], dict[int, set[int]]] = field(default_factory=lambda: defaultdict(dict))

    def violated(self, kind: str, text: str) -> None:
        if kind in self.watched:
            raise Violation(kind, text)

    # --- what leaves a peer

    def knock_left(self, view: View, signed: Signed) -> None:
        """A knock that takes part in `view`: it reports the vote of the highest ballot below its own."""
        assert isinstance(signed.message, Knock)
        reported = signed.message.vote.ballot if signed.message.vote else -1
        key = (signed.sender, place_of(view))
        self._knocks[key].setdefault(signed.ballot, set()).add(reported)
        for voted in self._votes[key]:
            self._compare(key, voted, signed.ballot, reported)

    def _compare(self, key: tuple[str, Place], voted: int, knocked: int, reported: int) -> None:
        if voted < knocked and not tells_of(reported, voted):
            text = f"{key[0][-6:]}, round {key[1][0]}: a vote at {voted}, a knock at {knocked} that reports {reported}"
            self.violated(HIDDEN_VOTE, text)

    def proposal_left(self, peer: str, ballot: Ballot, commit_bytes: bytes) -> None:
        key, digest = (peer, place_of(ballot.view), ballot.ballot), digest_of(commit_bytes)
        if self._proposed.setdefault(key, digest) != digest:
            self.violated(TWO_PROPOSALS, f"{peer[-6:]} in round {ballot.view.round} at ballot {ballot.ballot}")
        self.counts["ballots proposed"] += 1
        self.counts["... past ballot 0"] += 0 < ballot.ballot < FIRST_DEGRADED
        self.counts["... degraded"] += ballot.ballot >= FIRST_DEGRADED
        self.counts["... adopting a vote"] += ballot.plan is None
        self.counts["... without a report that nobody can prove"] += bool(ballot._unproven)

    def vote_left(self, view: View, peer: str, ballot: int, commit_bytes: bytes) -> None:
        """A council peer's."""
        tally = self._count_vote(view, peer, ballot, commit_bytes, frozenset())
        if is_majority(view.council, tally):
            place = place_of(view)
            chosen = Decision(digest_of(commit_bytes), ballot, frozenset(tally), frozenset())
            if self._chosen.setdefault(place, chosen).digest != chosen.digest:
                self.violated(TWO_CHOSEN, f"round {view.round}, the second one at ballot {ballot}")

    def degraded_vote_left(self, view: View, peer: str, ballot: int, vote: DegradedVote) -> None:
        """Of two for unlike commits the later one adopts; their signatures may leave in another order."""
        former = self._degraded_votes[peer, place_of(view)]
        for other in former:
            later = max(vote, other, key=lambda each: each.cast_at)
            if other.commit_bytes != vote.commit_bytes and later.commit_bytes not in later.reported_commits:
                self.violated(DOUBLE_VOTE, f"{peer[-6:]} in round {view.round}, degraded, at ballot {ballot}")
        if vote.is_due_elsewhere and not self.may_pass_over:
            self.violated(PASSED_OVER, f"{peer[-6:]} in round {view.round} at degraded ballot {ballot}")
        former.append(vote)
        self._count_vote(view, peer, ballot, vote.commit_bytes, vote.plan)

    def _count_vote(self, view: View, peer: str, ballot: int, commit_bytes: bytes, plan: frozenset[str]) -> set[str]:
        digest, place = digest_of(commit_bytes), place_of(view)
        if self._votes[peer, place].setdefault(ballot, digest) != digest:
            self.violated(DOUBLE_VOTE, f"{peer[-6:]} in round {view.round} at ballot {ballot}")
        for knocked, reports in self._knocks[peer, place].items():
            for report in reports:
                self._compare((peer, place), ballot, knocked, report)
        tally = self._tallies[place, ballot, digest, plan]
        tally.add(peer)
        return tally

    # --- what is believed

    def accepted(self, view: View, header: Header) -> None:
        """Somebody takes the header as a decision."""
        place, plan = place_of(view), frozenset(header.degraded)
        voters = frozenset(vote.peer for vote in header.votes)
        decision = Decision(header.digest, header.ballot, voters, plan)
        if not self.decided[place]:
            self._count(header)
        if header.digest not in self.decided[place]:
            self.decided[place][header.digest] = decision
            self._excuse(place)
        is_enough = 2 * len(voters) > len(plan) if plan else is_majority(view.council, voters)
        have_come = all(header.ballot in self._knocks[peer, place] for peer in plan)
        if not voters <= self._tallies[place, header.ballot, header.digest, plan] or not is_enough or not have_come:
            self.violated(FORGED, f"round {view.round} at ballot {header.ballot}")

    def _excuse(self, place: Place) -> None:
        """Two decisions of one round: one at least is degraded, and nobody of its plan had voted for a council's."""
        decisions = list(self.decided[place].values())
        if place in self._chosen:
            decisions.append(self._chosen[place])
        for one, other in combinations(decisions, 2):
            if one.digest == other.digest:
                continue
            if not one.plan and not other.plan:
                self.violated(SPLIT, f"round {place[0]}: at ballots {one.ballot} and {other.ballot}")
            if bool(one.plan) != bool(other.plan) and not self.may_pass_over:
                council, degraded = (other, one) if one.plan else (one, other)
                both = self._tallies[place, council.ballot, council.digest, frozenset()] & degraded.plan
                if both:
                    self.violated(SPLIT, f"round {place[0]}: {len(both)} of a degraded plan had voted with a majority")

    def _count(self, header: Header) -> None:
        commit = header.commit()
        self.counts["rounds decided"] += 1
        self.counts["... void"] += commit.kind is Kind.VOID
        self.counts["... decided past ballot 0"] += 0 < header.ballot < FIRST_DEGRADED
        self.counts["... decided degraded"] += bool(header.degraded)
        self.counts["... decided by one alone"] += len(header.degraded) == 1

    # --- the end

    def finish(self) -> None:
        for place, found in self.decided.items():
            self._excuse(place)
            for one, other in combinations(found.values(), 2):
                self.counts["forks"] += 1
                if one.plan and other.plan:
                    if one.voters & other.voters:
                        self.counts["... of two plans with a peer that votes in both"] += 1
                        self.counts["... ... and hides its first vote"] += self._hides(place, one, other)
                    elif one.plan & other.plan:
                        self.counts["... of two plans with a peer in both"] += 1
                    else:
                        self.counts["... of two plans apart"] += 1
                else:
                    self.counts["... of a plan and a council's majority"] += 1

    def _hides(self, place: Place, one: Decision, other: Decision) -> bool:
        """Whether the plan that decided later was not told of a vote for what the other had decided."""
        for peer in one.voters & other.voters:
            votes = sorted(self._degraded_votes[peer, place], key=lambda vote: vote.cast_at)
            relevant = [vote for vote in votes if digest_of(vote.commit_bytes) in (one.digest, other.digest)]
            first = relevant[0].commit_bytes
            second = next(vote for vote in relevant if vote.commit_bytes != first)
            if first not in second.reported_commits:
                return True
        return False

    def holds(self, peer: str, digests: list[bytes]) -> None:
        """A peer's log, from the genesis on."""
        for round_, (prev, digest) in enumerate(pairwise(digests), start=1):
            if digest not in self.decided[round_, prev]:
                self.violated(LOST, f"{peer[-6:]} holds another commit of round {round_}")
