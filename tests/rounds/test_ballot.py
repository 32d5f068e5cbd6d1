"""One coordinator's ballot, message by message: when it plans, tries again, gives up, adopts, and whom it refuses."""

from dataclasses import dataclass, field, replace

import pytest

from small_swarm import QUICK, identity, rules_for
from swarm_diloco.diloco.ledger import Commit, Head, Kind, Member, PartRecord, digest_of, member_bitmap, vote_message
from swarm_diloco.diloco.records import HASH_BYTES, hash_of
from swarm_diloco.errors import RecordError
from swarm_diloco.network.messages import Knock, Plan, PlannedPart, Propose, Sealed, VoteCast
from swarm_diloco.network.wire import Signed, read_signed, sign
from swarm_diloco.rounds.council import council_of
from swarm_diloco.rounds.decision.ballot import (
    Ballot,
    Decide,
    FetchPart,
    Pacing,
    Refuse,
    SendPlan,
    SendProposal,
    StateDiffers,
)
from swarm_diloco.rounds.decision.checks import adopted, check_plan, check_proposal, is_other_state
from swarm_diloco.rounds.decision.proposals import void_commit
from swarm_diloco.rounds.decision.voter import View, Voter

RULES = rules_for(replace(QUICK, group_limit=6))
NUM_PARTS = len(RULES.part_sizes(0))
PREV = hash_of(b"the commit before")
NAMES = ["ann", "ben", "cleo", "dan"]
IDS = {identity(name).peer: identity(name) for name in [*NAMES, "eve", "fay", "gus"]}
COUNCIL = council_of(
    RULES.run_id, 1, [Member(identity(name).peer, 1, 0, 0, True, (), bytes(HASH_BYTES)) for name in NAMES[:3]]
)
C0, C1, C2 = COUNCIL.candidates
OUTSIDER, EVE = identity("dan").peer, identity("eve").peer
VIEW = View(
    rules=RULES,
    round=1,
    fragment=0,
    prev=PREV,
    anchor=PREV,
    base=hash_of(b"the state"),
    council=COUNCIL,
    tokens_credited={},
)


def knock(peer: str, ballot: int = 0, *, weight: int = 100, prev: bytes = PREV, **fields: object) -> Signed:
    message = Knock(
        **{"fragment": 0, "base": VIEW.base, "weight": weight, "tokens_to": weight, "reachable": True, **fields}
    )  # type: ignore[arg-type]
    return sign(IDS[peer], run=RULES.run_id, round_=1, ballot=ballot, head=Head(0, prev), message=message)


def ballot_of(ballot: int = 0, *, expected: set[str] | None = None, own_vote: VoteCast | None = None) -> Ballot:
    return Ballot(
        view=VIEW,
        ballot=ballot,
        me=COUNCIL.candidate(ballot),
        expected=expected if expected is not None else set(),
        pacing=Pacing(patience=5.0, deadline=10.0),
        own_vote=own_vote,
    )


@dataclass
class Round:
    """A ballot with its clock and what it has said."""

    ballot: Ballot
    now: float = 0.0
    actions: list[object] = field(default_factory=list)

    def knock(self, *knocks: Signed) -> None:
        for signed in knocks:
            assert self.ballot.knocked(signed, self.now) is None
        self.advance()

    def advance(self, to: float | None = None) -> None:
        self.now = self.now if to is None else to
        self.actions += self.ballot.advance(self.now, 0)

    def said(self, kind: type) -> list[object]:
        return [action for action in self.actions if isinstance(action, kind)]

    def seal(self, parts: range | None = None, *, held: bool = True, tag: bytes = b"") -> list[bytes]:
        assert self.ballot.plan is not None
        hashes = []
        for index in parts if parts is not None else range(NUM_PARTS):
            part = self.ballot.plan.parts[index]
            reducer = self.ballot.plan.members[part.reducer][0]
            hashes.append(hash_of(b"part %d %d" % (index, part.attempt) + tag))
            self.ballot.sealed(reducer, Sealed(index, part.attempt, hashes[-1], part.senders))
            if held:
                self.ballot.held(hashes[-1])
        self.advance()
        return hashes

    def vote(self, *peers: str) -> None:
        assert self.ballot.proposal is not None
        digest = digest_of(self.ballot.proposal.commit_bytes)
        message = vote_message(RULES.run_id, 1, self.ballot.ballot, digest)
        for peer in peers:
            self.ballot.voted(peer, digest, IDS[peer].sign(message))
        self.advance()

    @property
    def proposed(self) -> Commit:
        (proposal,) = self.said(SendProposal)
        assert isinstance(proposal, SendProposal)
        return Commit.decode(proposal.proposal.commit_bytes)


def proposal_of(commit: Commit, *promises: Signed) -> Propose:
    return Propose(commit.encode(), tuple(signed.frame for signed in promises))


def finished_commit() -> Commit:
    """A right commit of this round, as another ballot's coordinator proposed it."""
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1), knock(C2))
    round_.seal()
    return round_.proposed


# --- from knocks to a decision


def test_a_round_from_its_knocks_to_its_decision() -> None:
    round_ = Round(ballot_of(0, expected={C0, C1, C2}))
    round_.knock(knock(C0), knock(C1, weight=300))
    assert round_.actions == []  # somebody is expected
    round_.knock(knock(C2, weight=0))
    (plan,) = round_.said(SendPlan)
    assert isinstance(plan, SendPlan)
    assert sorted(plan.plan.members) == sorted([(C0, 100), (C1, 300), (C2, 0)])
    round_.seal()
    commit = round_.proposed
    assert [part.weight_sum for part in commit.parts] == [400] * NUM_PARTS
    assert {member.peer: member.tokens for member in commit.members} == {C0: 100, C1: 300, C2: 0}
    round_.vote(C0)
    assert not round_.said(Decide)
    round_.vote(OUTSIDER)
    assert not round_.said(Decide)
    round_.vote(C2)
    (decide,) = round_.said(Decide)
    assert isinstance(decide, Decide)
    assert decide.header.commit_bytes == commit.encode()
    assert {vote.peer for vote in decide.header.votes} == {C0, C2}
    round_.advance(1e9)
    assert len(round_.said(Decide)) == 1


def test_a_vote_with_a_wrong_signature_or_for_something_else_does_not_count() -> None:
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1))
    round_.seal()
    digest = digest_of(round_.proposed.encode())
    right = vote_message(RULES.run_id, 1, 0, digest)
    round_.ballot.voted(C0, digest, IDS[C1].sign(right))
    round_.ballot.voted(C1, digest, IDS[C1].sign(vote_message(RULES.run_id, 1, 1, digest)))
    round_.ballot.voted(C2, hash_of(b"another"), IDS[C2].sign(vote_message(RULES.run_id, 1, 0, hash_of(b"another"))))
    round_.advance()
    assert not round_.said(Decide)


def test_patience_runs_from_the_first_worker_and_ends() -> None:
    round_ = Round(ballot_of(0, expected={C0, C1, C2}))
    round_.knock(knock(C0, weight=0), knock(C1, weight=0))
    round_.advance(100.0)
    assert not round_.actions
    assert round_.ballot.wakes_at() is None  # without a worker no clock runs
    round_.knock(knock(EVE))
    assert round_.ballot.wakes_at() == 105.0
    round_.advance(104.9)
    assert not round_.said(SendPlan)
    round_.advance(105.0)
    assert round_.said(SendPlan)


def test_nobody_waits_for_who_is_gone_and_no_majority_no_plan() -> None:
    round_ = Round(ballot_of(0, expected={C0, C1, C2}))
    round_.knock(knock(C0), knock(C1))
    round_.ballot.left(C1)
    round_.ballot.left(C2)
    round_.advance(60.0)
    assert not round_.actions  # one of three is no majority
    round_.now = 1.0
    round_.knock(knock(C1))
    assert round_.said(SendPlan)  # and C2, which is expected, is not waited for


def test_a_late_knock_is_listed_without_weight_and_is_not_in_the_average() -> None:
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1))
    assert round_.said(SendPlan)
    round_.knock(knock(EVE, weight=500))
    round_.seal()
    entry = round_.proposed.member(EVE)
    assert entry is not None
    assert (entry.weight, entry.tokens, entry.ranges) == (0, 0, ())
    assert all(part.weight_sum == 200 for part in round_.proposed.parts)


def test_knocks_that_break_a_rule_are_refused() -> None:
    ballot = ballot_of(0)
    other = hash_of(b"another chain")
    assert "another chain" in str(ballot.knocked(knock(C0, prev=other), 0))
    assert "another chain" in str(ballot.knocked(knock(C0, fragment=1), 0))
    assert "limit" in str(ballot.knocked(knock(C0, weight=RULES.rounds.maximum_weight + 1), 0))
    assert "limit" in str(ballot.knocked(knock(C0, norm_millionths=int(RULES.rounds.maximum_norm * 1e6) + 1), 0))
    assert "join on" in str(ballot.knocked(knock(C0, tokens_from=1), 0))
    for name in [*NAMES, "eve", "fay"]:
        assert ballot.knocked(knock(identity(name).peer), 0) is None
    assert "full" in str(ballot.knocked(knock(identity("gus").peer), 0))
    assert ballot.knocked(knock(EVE), 0) is None  # who is in may knock again


def test_another_state_is_refused_once_a_majority_has_ours_and_stops_us_when_a_majority_has_it() -> None:
    round_ = Round(ballot_of(0, expected={C0, C1, C2}))
    round_.knock(knock(EVE, base=hash_of(b"broken")), knock(C0))
    assert not round_.actions
    round_.knock(knock(C1))
    (refuse,) = round_.said(Refuse)
    assert isinstance(refuse, Refuse)
    assert refuse.peer == EVE
    proof = [read_signed(frame, run=RULES.run_id) for frame in refuse.knocks]
    assert is_other_state(replace(VIEW, base=hash_of(b"broken")), 0, proof)
    assert not is_other_state(VIEW, 0, proof)  # it has ours
    assert not is_other_state(replace(VIEW, base=hash_of(b"broken")), 0, proof[:1])  # no majority
    assert not is_other_state(replace(VIEW, base=hash_of(b"broken")), 1, proof)
    broken = Round(ballot_of(0))
    broken.knock(knock(C0), knock(C1, base=hash_of(b"another")), knock(C2, base=hash_of(b"another")))
    assert broken.actions == [StateDiffers()]
    repaired = Round(ballot_of(0))
    repaired.knock(knock(C0), knock(C1, base=hash_of(b"another")))
    repaired.knock(knock(C1), knock(C2, base=hash_of(b"another")))
    assert not repaired.said(StateDiffers)  # C1 came again with ours


# --- parts that fail


def test_a_dead_reducers_parts_get_another_and_the_third_time_the_round_is_void() -> None:
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1), knock(C2))
    for attempt in range(3):
        plan = round_.ballot.plan
        assert plan is not None
        assert [part.attempt for part in plan.parts] == [attempt] + [0] * (NUM_PARTS - 1)
        round_.seal(range(1, NUM_PARTS))
        assert round_.ballot.wakes_at() is not None
        round_.advance(round_.ballot.wakes_at())
    assert round_.proposed.kind is Kind.VOID
    assert len(round_.said(SendPlan)) == 3
    assert {member.peer for member in round_.proposed.members} == {C0, C1, C2}
    assert round_.proposed.tokens == 0


def test_only_the_parts_of_who_left_are_planned_again() -> None:
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1), knock(C2))
    first = round_.ballot.plan
    assert first is not None
    lost = [i for i, part in enumerate(first.parts) if first.members[part.reducer][0] == C1]
    round_.ballot.left(C1)
    round_.advance()
    second = round_.ballot.plan
    assert second is not None
    assert [i for i in range(NUM_PARTS) if second.parts[i] != first.parts[i]] == lost
    for index in lost:
        part = second.parts[index]
        assert second.members[part.reducer][0] != C1
        assert part.attempt == 1
        assert part.senders == member_bitmap([i for i, (peer, _) in enumerate(second.members) if peer != C1])
    round_.seal()
    assert round_.proposed.kind is Kind.NORMAL


def test_without_anybody_who_could_reduce_the_round_is_void() -> None:
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1, reachable=False), knock(C2, reachable=False))
    round_.advance(round_.ballot.wakes_at())
    assert round_.proposed.kind is Kind.VOID  # the coordinator alone can be dialled, and it has failed


def test_a_sealed_part_that_never_comes_is_fetched_and_else_averaged_again() -> None:
    """A reducer that says it is done and gives the bytes to nobody does not hold up the round."""
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1), knock(C2))
    hashes = round_.seal(held=False)
    assert not round_.said(FetchPart)
    round_.advance(round_.ballot.wakes_at())
    assert round_.said(FetchPart) == [FetchPart(i, part_hash) for i, part_hash in enumerate(hashes)]
    for part_hash in hashes[1:]:
        round_.ballot.held(part_hash)
    round_.ballot.unavailable(hashes[0])
    round_.advance()
    plan = round_.ballot.plan
    assert plan is not None
    assert [part.attempt for part in plan.parts] == [1] + [0] * (NUM_PARTS - 1)
    round_.seal(range(1), tag=b"again")
    assert round_.proposed.kind is Kind.NORMAL


def test_seals_by_others_for_others_and_with_strangers_in_do_not_count() -> None:
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1), knock(C2, weight=0))
    plan = round_.ballot.plan
    assert plan is not None
    reducer = plan.members[plan.parts[0].reducer][0]
    other = next(peer for peer, _ in plan.members if peer != reducer)
    good, bad = plan.parts[0].senders, member_bitmap(range(3))
    for peer, seal in (
        (other, Sealed(0, 0, hash_of(b"x"), good)),
        (reducer, Sealed(0, 1, hash_of(b"x"), good)),
        (reducer, Sealed(0, 0, hash_of(b"x"), bad)),
        (reducer, Sealed(0, 0, hash_of(b"x"), b"")),
        (reducer, Sealed(NUM_PARTS, 0, hash_of(b"x"), good)),
    ):
        round_.ballot.sealed(peer, seal)
    round_.ballot.held(hash_of(b"x"))
    round_.seal()
    assert hash_of(b"x") not in {part.result_hash for part in round_.proposed.parts}


# --- adopting


def test_past_ballot_0_the_reported_vote_of_the_highest_ballot_is_proposed_unchanged() -> None:
    commit = finished_commit()
    older = replace(commit, wall_ms=1)
    round_ = Round(ballot_of(3))
    me = COUNCIL.candidate(3)
    others = [peer for peer in COUNCIL.members if peer != me]
    round_.knock(
        knock(me, 3, vote=VoteCast(0, older.encode())),
        knock(others[0], 3, vote=VoteCast(2, commit.encode())),
    )
    wanted = [FetchPart(i, part.result_hash) for i, part in enumerate(commit.parts)]
    assert round_.actions == wanted
    round_.knock(knock(others[1], 3, vote=VoteCast(2, commit.encode())))  # too late to change what is adopted
    for part in commit.parts:
        round_.ballot.held(part.result_hash)
    round_.advance()
    assert round_.proposed == commit
    assert round_.ballot.proposal is not None
    assert len(round_.ballot.proposal.promises) == 2


def test_an_adopted_commit_whose_parts_are_nowhere_ends_the_ballot() -> None:
    commit = finished_commit()
    round_ = Round(ballot_of(1))
    round_.knock(knock(C0, 1, vote=VoteCast(0, commit.encode())), knock(C1, 1))
    round_.ballot.unavailable(commit.parts[0].result_hash)
    round_.advance()
    assert round_.ballot.is_over
    assert not round_.said(SendProposal)


def test_after_a_restart_a_coordinator_proposes_what_it_has_voted_for_at_this_ballot() -> None:
    commit = void_commit(VIEW, [knock(C0), knock(C1)], wall_ms=7)
    cast = VoteCast(0, commit.encode())
    round_ = Round(ballot_of(0, own_vote=cast))
    round_.knock(knock(C1), knock(C2))
    assert not round_.actions  # its own knock, which reports the vote, is not here yet
    round_.knock(knock(C0, vote=cast))
    assert round_.proposed == commit


@pytest.mark.parametrize(
    "vote",
    [
        VoteCast(0, b"no commit"),
        VoteCast(0, replace(finished_commit(), prev=hash_of(b"another chain")).encode()),
        VoteCast(0, replace(finished_commit(), round=2).encode()),
        VoteCast(0, replace(finished_commit(), lever=b"mine").encode()),
        VoteCast(2, finished_commit().encode()),  # past the ballot of the knock that reports it
    ],
)
def test_a_vote_that_nobody_honest_can_have_cast_is_not_adopted(vote: VoteCast) -> None:
    round_ = Round(ballot_of(1))
    round_.knock(knock(C0, 1, vote=vote), knock(C1, 1))
    assert len(round_.said(SendPlan)) == 1
    assert adopted(VIEW, 1, [knock(C0, 1, vote=vote)]) is None


def test_what_a_peer_outside_of_the_council_claims_to_have_voted_for_is_not_adopted() -> None:
    """Else any stranger could write the log."""
    theirs = finished_commit()
    round_ = Round(ballot_of(1))
    round_.knock(knock(EVE, 1, vote=VoteCast(0, theirs.encode())), knock(C0, 1), knock(C1, 1))
    assert round_.said(SendPlan)
    assert not round_.said(FetchPart)
    assert adopted(VIEW, 1, [knock(EVE, 1, vote=VoteCast(0, theirs.encode()))]) is None


# --- what a voter checks


def test_a_proposal_past_ballot_0_needs_a_majoritys_promises_of_this_ballot_on_this_chain() -> None:
    commit = finished_commit()
    right = [knock(C0, 1), knock(C1, 1)]
    assert check_proposal(VIEW, 1, proposal_of(commit, *right), right, None) == commit
    for wrong in (
        [knock(C0, 1)],
        [knock(C0, 1), knock(C0, 1)],
        [knock(C0, 1), knock(EVE, 1)],
        [knock(C0, 1), knock(C1, 0)],
        [knock(C0, 1), knock(C1, 2)],
        [knock(C0, 1), knock(C1, 1, prev=hash_of(b"another chain"))],
    ):
        with pytest.raises(RecordError, match="no majority has promised"):
            check_proposal(VIEW, 1, proposal_of(commit, *wrong), wrong, None)


def test_a_proposal_that_passes_over_a_vote_is_refused() -> None:
    voted, another = finished_commit(), replace(finished_commit(), wall_ms=99)
    promises = [knock(C0, 1, vote=VoteCast(0, voted.encode())), knock(C1, 1)]
    with pytest.raises(RecordError, match="passed over"):
        check_proposal(VIEW, 1, proposal_of(another, *promises), promises, None)
    assert check_proposal(VIEW, 1, proposal_of(voted, *promises), promises, None) == voted


def test_my_entry_must_be_as_i_knocked_unless_the_commit_is_an_adopted_one() -> None:
    commit, own = finished_commit(), knock(C0, weight=200)
    with pytest.raises(RecordError, match="not as I knocked"):
        check_proposal(VIEW, 0, proposal_of(commit), [], own)
    promises = [knock(C0, 1, weight=200), knock(C1, 1, vote=VoteCast(0, commit.encode()))]
    assert check_proposal(VIEW, 1, proposal_of(commit, *promises), promises, promises[0]) == commit


def wrong_commits() -> dict[str, Commit]:
    right = finished_commit()
    first = right.members[0]
    part = right.parts[0]
    return {
        "another run": replace(right, run=hash_of(b"another")),
        "another round": replace(right, round=2),
        "another chain": replace(right, prev=hash_of(b"another")),
        "another state": replace(right, base=hash_of(b"another")),
        "a lever": replace(right, kind=Kind.LEVER, parts=()),
        "a part missing": replace(right, parts=right.parts[1:]),
        "a part too many": replace(right, parts=(*right.parts, part)),
        "a wrong weight sum": replace(right, parts=(replace(part, weight_sum=299), *right.parts[1:])),
        "nobody's part": replace(right, parts=(PartRecord(0, part.result_hash, b"", 0), *right.parts[1:])),
        "another weight": replace(right, members=(replace(first, weight=101), *right.members[1:])),
        "a weight past the limit": replace(right, members=(replace(first, weight=2**41), *right.members[1:])),
        "tokens that do not join on": replace(
            right, members=(replace(first, tokens_from=5, tokens_to=105), *right.members[1:])
        ),
        "no majority": replace(
            right,
            kind=Kind.VOID,
            parts=(),
            members=(replace(first, tokens_to=0), replace(first, peer=EVE, tokens_to=0)),
        ),
        "a void that credits": replace(right, kind=Kind.VOID, parts=()),
        "tokens for no part": replace(
            right, members=(*right.members, Member(EVE, 0, 0, 500, True, (), bytes(HASH_BYTES)))
        ),
        "a lever's bytes": replace(right, lever=b"x"),
        "a fork's head": replace(right, absorbs=Head(5, PREV)),
        "a due time with pace steps": replace(right, next_due_ms=1),
        "too many members": replace(
            right,
            members=(*right.members, *(Member(f"peer {i}", 0, 0, 0, True, (), bytes(HASH_BYTES)) for i in range(4))),
        ),
    }


@pytest.mark.parametrize("what", wrong_commits())
def test_a_wrong_commit_gets_no_vote(what: str) -> None:
    commit = wrong_commits()[what]
    with pytest.raises(RecordError):
        check_proposal(VIEW, 0, proposal_of(commit), [], None)


def test_the_right_commit_gets_one() -> None:
    assert check_proposal(VIEW, 0, proposal_of(finished_commit()), [], knock(C0)).kind is Kind.NORMAL


# --- what a member checks of a plan


def plan_of(**changes: object) -> Plan:
    members = ((C0, 100), (C1, 100), (C2, 0))
    parts = tuple(PlannedPart(i % 3, 0, member_bitmap([0, 1])) for i in range(NUM_PARTS))
    return replace(Plan(members, parts, 4000, 8000), **changes)  # type: ignore[arg-type]


def test_plans_that_no_honest_coordinator_sends_are_refused() -> None:
    right = plan_of()
    check_plan(VIEW, right, None, knock(C0))
    check_plan(VIEW, right, None, knock(EVE))  # it is not in it: a late one
    again = replace(right, parts=(PlannedPart(1, 1, member_bitmap([0])), *right.parts[1:]))
    check_plan(VIEW, again, right, knock(C0))
    part = right.parts[0]
    for wrong, former in (
        (plan_of(parts=right.parts[1:]), None),
        (plan_of(parts=(*right.parts, part)), None),
        (plan_of(parts=(replace(part, senders=b""), *right.parts[1:])), None),
        (plan_of(parts=(replace(part, senders=member_bitmap([0, 2])), *right.parts[1:])), None),  # C2 has no weight
        (plan_of(parts=(replace(part, senders=member_bitmap([0, 7])), *right.parts[1:])), None),
        (plan_of(parts=(replace(part, attempt=3), *right.parts[1:])), None),
        (plan_of(members=((C0, 100), (C0, 100), (C2, 0))), None),
        (plan_of(members=((C0, 99), (C1, 100), (C2, 0))), None),
        (plan_of(members=((C0, 100), (C1, 2**41), (C2, 0))), None),
        (plan_of(deadline_in_ms=86_400_000), None),
        (plan_of(close_in_ms=9000), None),
        (right, right),  # says nothing new, and would move the deadline
        (right, again),
        (replace(again, members=((C0, 100), (C1, 200), (C2, 0))), right),
    ):
        with pytest.raises(RecordError, match="plan"):
            check_plan(VIEW, wrong, former, knock(C0))


# --- the vote file


def test_a_voter_keeps_its_promises_and_votes_over_a_restart() -> None:
    voter = Voter()
    assert voter.promise(VIEW, 2)
    assert not voter.promise(VIEW, 1)
    assert voter.vote(VIEW, 3, b"first")
    assert not voter.vote(VIEW, 3, b"second")
    assert not voter.vote(VIEW, 2, b"first")
    restarted = Voter.decode(voter.encode())
    assert restarted.promised(VIEW) == 3
    assert restarted.vote_cast(VIEW) == VoteCast(3, b"first")
    assert not restarted.vote(VIEW, 3, b"second")
    assert restarted.vote(VIEW, 4, b"second")
    restarted.forget_before(2)
    assert restarted.promised(VIEW) == 0
    for damaged in (b"", voter.encode()[:-1], b"\x93\x02\x90\x90", voter.encode() + b"\x00"):
        with pytest.raises(RecordError):
            Voter.decode(damaged)
