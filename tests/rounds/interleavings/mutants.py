"""The real deciding module with one rule broken each. Every one must be caught: that is what the runs can see."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from interleavings.scenario import EVERYTHING, Focus
from interleavings.signing import replaced
from interleavings.surroundings import Conduct
from swarm_diloco.diloco.ledger import Commit, Header, vote_message
from swarm_diloco.errors import RecordError
from swarm_diloco.network.messages import FIRST_DEGRADED, Knock, Propose, VoteCast
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.council import Council
from swarm_diloco.rounds.decision.checks import adopted, check_certificate, check_commit, check_proposal, is_promise
from swarm_diloco.rounds.decision.voter import View, Voter

Break = Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    broken_rule: str
    break_: Break = lambda _: None
    conduct: Conduct = field(default_factory=Conduct)
    focus: Focus = EVERYTHING  # where it is looked for

    @contextmanager
    def broken(self) -> Iterator[None]:
        with ExitStack() as stack:
            self.break_(stack)
            yield


def _replace(original: Callable[..., object], by: Callable[..., object]) -> Break:
    """In every module that has taken the function's name."""

    def break_(stack: ExitStack) -> None:
        assert replaced(stack, original, original.__name__, by)

    return break_


def _patch(owner: type, **methods: object) -> Break:
    def break_(stack: ExitStack) -> None:
        for name, method in methods.items():
            stack.enter_context(patch.object(owner, name, method))

    return break_


# --- promises


def _promise_nothing(self: Voter, view: View, ballot: int) -> bool:
    return True


def _vote_without_promise(self: Voter, view: View, ballot: int, commit_bytes: bytes) -> bool:
    """Keeps what was promised, but a vote is no promise."""
    cast = self.vote_cast(view)
    if ballot < self.promised(view) or (cast and cast.ballot == ballot and cast.commit_bytes != commit_bytes):
        return False
    self._votes[view.round, view.prev] = VoteCast(ballot, commit_bytes)
    return True


def _encode_without(forgotten: str) -> Callable[[Voter], bytes]:
    encode = Voter.encode

    def encode_the_rest(self: Voter) -> bytes:
        rest = copy(self)
        setattr(rest, forgotten, {})
        return encode(rest)

    return encode_the_rest


def _any_knock_is_a_promise(view: View, ballot: int, signed: Signed) -> bool:
    return isinstance(signed.message, Knock) and signed.round == view.round and signed.head.digest == view.prev


# --- votes


def _vote_twice_at_a_ballot(self: Voter, view: View, ballot: int, commit_bytes: bytes) -> bool:
    if ballot < self.promised(view):
        return False
    self._promises[view.round, view.anchor] = ballot
    self._votes[view.round, view.prev] = VoteCast(ballot, commit_bytes)
    return True


def _any_ballot(run: bytes, round_: int, ballot: int, commit_digest: bytes) -> bytes:
    return vote_message(run, round_, 0, commit_digest)


def _half_is_enough(self: Council, peers: Collection[str]) -> bool:
    return 2 * sum(member in peers for member in self.members) >= len(self.members)


def _one_vote_is_enough(view: View, header: Header) -> Commit:
    class Anybody(Council):
        def is_majority(self, peers: Collection[str]) -> bool:
            return bool(peers)

    council = Anybody(view.council.members, view.council.candidates)
    return check_certificate(replace(view, council=council), header)


# --- adopting


def _adopt_nothing(view: View, ballot: int, knocks: Sequence[Signed], without: Collection[bytes] = ()) -> bytes | None:
    return None


def _reported(view: View, ballot: int, knocks: Sequence[Signed]) -> list[VoteCast]:
    casts = [
        signed.message.vote
        for signed in knocks
        if isinstance(signed.message, Knock) and signed.sender in view.council.members
    ]
    return [cast for cast in casts if cast is not None and cast.ballot <= ballot]


def _is_possible(view: View, cast: VoteCast) -> bool:
    try:
        check_commit(view, Commit.decode(cast.commit_bytes))
    except RecordError:
        return False
    return True


def _adopt_the_lowest(
    view: View, ballot: int, knocks: Sequence[Signed], without: Collection[bytes] = ()
) -> bytes | None:
    casts = [cast for cast in _reported(view, ballot, knocks) if _is_possible(view, cast)]
    return min(casts, key=lambda cast: (cast.ballot, cast.commit_bytes)).commit_bytes if casts else None


def _adopt_the_highest_or_nothing(
    view: View, ballot: int, knocks: Sequence[Signed], without: Collection[bytes] = ()
) -> bytes | None:
    """What no honest peer can have voted for hides what one has."""
    casts = _reported(view, ballot, knocks)
    highest = max(casts, key=lambda cast: (cast.ballot, cast.commit_bytes), default=None)
    return highest.commit_bytes if highest and _is_possible(view, highest) else None


def _believe_the_coordinator(
    view: View, ballot: int, proposal: Propose, promises: Sequence[Signed], own: Signed | None
) -> Commit:
    """The majority of promises is looked at, not what they report."""
    silent = []
    for signed in promises:
        assert isinstance(signed.message, Knock)
        silent.append(replace(signed, message=replace(signed.message, vote=None)))
    return check_proposal(view, ballot, proposal, silent, None)


# --- degraded ballots


def _promise_the_council_alone(self: Voter, view: View, ballot: int) -> bool:
    """Who comes to a degraded ballot still votes with the council."""
    if ballot < self.promised(view):
        return False
    if ballot < FIRST_DEGRADED:
        self._promises[view.round, view.anchor] = ballot
    return True


def _vote_degraded_and_stay(self: Voter, view: View, ballot: int, commit_bytes: bytes, *, is_adopted: bool) -> bool:
    cast = self.degraded_vote_cast(view)
    if cast and cast.commit_bytes != commit_bytes and not is_adopted:
        return False
    self._degraded_votes[view.round, view.prev] = VoteCast(ballot, commit_bytes)
    return True


def _vote_degraded_again(self: Voter, view: View, ballot: int, commit_bytes: bytes, *, is_adopted: bool) -> bool:
    if ballot < self.promised(view):
        return False
    self._promises[view.round, view.anchor] = ballot
    self._degraded_votes[view.round, view.prev] = VoteCast(ballot, commit_bytes)
    return True


def _adopt_by_majorities_alone(
    view: View, ballot: int, knocks: Sequence[Signed], without: Collection[bytes] = frozenset()
) -> bytes | None:
    return None if ballot >= FIRST_DEGRADED else adopted(view, ballot, knocks, without)


def _adopt_degraded_votes_first(
    view: View, ballot: int, knocks: Sequence[Signed], without: Collection[bytes] = frozenset()
) -> bytes | None:
    """By the ballot's number, in which a degraded vote counts for more than a council's."""
    casts = [signed.message.vote for signed in knocks if isinstance(signed.message, Knock) and signed.message.vote]
    degraded = [cast for cast in casts if cast.ballot >= FIRST_DEGRADED and cast.commit_bytes not in without]
    if degraded:
        return max(degraded, key=lambda cast: (cast.ballot, cast.commit_bytes)).commit_bytes
    return adopted(view, ballot, knocks, without)


SILENT = Focus(weathers=("silence", "amnesia"), founders=(3, 3, 4), degradings=(0.0,))
LYING = Focus(weathers=("silence", "amnesia"), founders=(3, 3, 4), degradings=(0.0,), liar_share=1.0)
DEGRADING = Focus(founders=(2, 3, 3, 4), degradings=(0.05, 0.15), liar_share=0.0)

MUTANTS = {
    "no promise": Mutant(
        "a knock promises nothing", _patch(Voter, promise=_promise_nothing, vote=_vote_without_promise)
    ),
    "no adopting": Mutant("no reported vote is proposed again", _replace(adopted, _adopt_nothing)),
    "lowest adopted": Mutant(
        "of the reported votes the lowest ballot's is adopted", _replace(adopted, _adopt_the_lowest), focus=SILENT
    ),
    "shadowed vote": Mutant(
        "a reported vote that nobody can have cast hides those that somebody has",
        _replace(adopted, _adopt_the_highest_or_nothing),
        focus=LYING,
    ),
    "unchecked adoption": Mutant(
        "a voter does not look whether the proposal adopts",
        _replace(check_proposal, _believe_the_coordinator),
        focus=LYING,
    ),
    "promises forgotten": Mutant(
        "promises are not in the vote file", _patch(Voter, encode=_encode_without("_promises"))
    ),
    "votes forgotten": Mutant("votes are not in the vote file", _patch(Voter, encode=_encode_without("_votes"))),
    "sent before saved": Mutant(
        "knocks and votes leave before the vote file is written", conduct=Conduct(saves_before_it_sends=False)
    ),
    "lost round voted again": Mutant(
        "a damaged log takes part once more in a round that it has seen decided",
        conduct=Conduct(waits_for_lost_rounds=False),
        focus=replace(SILENT, weathers=("crashes", "amnesia")),
    ),
    "proposed before voted": Mutant(
        "others see a proposal before its coordinator's own vote is durable",
        conduct=Conduct(votes_before_it_proposes=False),
        focus=replace(SILENT, weathers=("slow disks",)),
    ),
    "vote without promise": Mutant(
        "a vote leaves lower ballots open", _patch(Voter, vote=_vote_without_promise), focus=SILENT
    ),
    "two votes a ballot": Mutant(
        "one may vote for two commits at one ballot",
        _patch(Voter, vote=_vote_twice_at_a_ballot),
        Conduct(resumes_its_proposal=False),
        replace(SILENT, weathers=("crashes", "slow disks")),
    ),
    "half is enough": Mutant(
        "exactly half decides without the tie-breaker", _patch(Council, is_majority=_half_is_enough)
    ),
    "old promises": Mutant(
        "knocks at other ballots count as promises",
        _replace(is_promise, _any_knock_is_a_promise),
        Conduct(takes_this_ballots_knocks_alone=False),
        replace(SILENT, client_shares=(0.3,)),
    ),
    "ballots added up": Mutant(
        "votes for one commit at several ballots count together",
        _replace(vote_message, _any_ballot),
        Conduct(takes_this_ballots_votes_alone=False),
    ),
    "minority believed": Mutant(
        "one vote is a certificate", _replace(check_certificate, _one_vote_is_enough), focus=replace(LYING)
    ),
    "promised and voting": Mutant(
        "who has promised a degraded ballot still votes with the council",
        _patch(Voter, promise=_promise_the_council_alone, vote_degraded=_vote_degraded_and_stay),
        focus=DEGRADING,
    ),
    "plan without promises": Mutant(
        "knocks at the council's ballots are promises for a degraded one",
        _replace(is_promise, _any_knock_is_a_promise),
        Conduct(takes_this_ballots_knocks_alone=False),
        DEGRADING,
    ),
    "degraded adopts nothing": Mutant(
        "a degraded ballot passes over reported votes", _replace(adopted, _adopt_by_majorities_alone), focus=DEGRADING
    ),
    "degraded adopted first": Mutant(
        "a degraded vote goes before a council's",
        _replace(adopted, _adopt_degraded_votes_first),
        focus=replace(DEGRADING, weathers=("cuts",), founders=(3, 4, 5)),
    ),
    "degraded votes again": Mutant(
        "one gives any number of degraded votes in a round",
        _patch(Voter, vote_degraded=_vote_degraded_again),
        focus=replace(DEGRADING, passing_over_share=1.0),
    ),
    "degraded votes forgotten": Mutant(
        "degraded votes are not in the vote file",
        _patch(Voter, encode=_encode_without("_degraded_votes")),
        focus=DEGRADING,
    ),
}
