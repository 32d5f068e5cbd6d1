"""One coordinator's ballot, message by message: when it plans, tries again, gives up, adopts, and whom it refuses."""

from dataclasses import replace

import pytest

from small_ballot import (
    C0,
    C1,
    C2,
    COUNCIL,
    EVE,
    IDS,
    NAMES,
    NUM_PARTS,
    OUTSIDER,
    RULES,
    VIEW,
    Round,
    ballot_of,
    finished_commit,
    knock,
)
from small_swarm import NUM_VALUES, identity
from swarm_diloco.diloco.ledger import Kind, digest_of, is_in_bitmap, listed_values, member_bitmap, vote_message
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.network.messages import Sealed, VoteCast
from swarm_diloco.network.wire import read_signed
from swarm_diloco.rounds.decision.ballot import (
    Decide,
    FetchPart,
    Refuse,
    SendPlan,
    SendProposal,
    StateDiffers,
)
from swarm_diloco.rounds.decision.checks import adopted, check_proposal, is_other_state
from swarm_diloco.rounds.decision.proposals import void_commit

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


def test_members_that_nobody_can_dial_wait_for_the_coordinators_own_knock() -> None:
    """Its own can be late, while it trains or encodes; until then nobody is here who could average."""
    round_ = Round(ballot_of(0))
    round_.knock(knock(C1, reachable=False), knock(C2, reachable=False))
    round_.advance(60.0)
    assert not round_.actions
    round_.knock(knock(C0))
    (plan,) = round_.said(SendPlan)
    assert isinstance(plan, SendPlan)
    assert {plan.plan.members[part.reducer][0] for part in plan.plan.parts} == {C0}


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


def test_when_all_reducers_have_failed_whoever_is_alive_tries_again_before_the_round_is_void() -> None:
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1), knock(C2, reachable=False))
    for attempt in range(3):
        plan = round_.ballot.plan
        assert plan is not None
        assert {part.attempt for part in plan.parts} == {attempt}
        round_.advance(round_.ballot.wakes_at())
    assert len(round_.said(SendPlan)) == 3
    assert round_.proposed.kind is Kind.VOID


def test_a_coordinator_that_is_left_alone_averages_what_the_dead_reducers_had() -> None:
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1, reachable=False), knock(C2))
    round_.ballot.left(C2)
    round_.advance(round_.ballot.wakes_at())  # C0 has averaged nothing in its time, and nobody else can be dialled
    plan = round_.ballot.plan
    assert plan is not None
    assert {plan.members[part.reducer][0] for part in plan.parts} == {C0}
    round_.seal()
    assert round_.proposed.kind is Kind.NORMAL


def test_who_has_failed_of_late_is_asked_to_average_only_if_nobody_else_can() -> None:
    first = Round(replace(ballot_of(0), doubtful={C1}))
    first.knock(knock(C0), knock(C1))
    assert first.ballot.plan is not None
    assert {first.ballot.plan.members[part.reducer][0] for part in first.ballot.plan.parts} == {C0}
    alone = Round(replace(ballot_of(0), doubtful={C0, C1}))
    alone.knock(knock(C0), knock(C1))
    assert alone.ballot.plan is not None
    assert {alone.ballot.plan.members[part.reducer][0] for part in alone.ballot.plan.parts} == {C0, C1}
    first.advance(first.ballot.wakes_at())
    assert first.ballot.failed_reducers == {C0}


# --- lines of unlike speed


def test_a_slow_sender_is_in_some_parts_with_all_its_weight_there_and_credited_for_these_alone() -> None:
    round_ = Round(ballot_of(0))
    fast, slow = 1000, 1  # kilobits a second: 20 ms and 20 s for all
    round_.knock(knock(C0, upload_kilobits=fast), knock(C1, upload_kilobits=fast), knock(C2, upload_kilobits=slow))
    plan = round_.ballot.plan
    assert plan is not None
    index = [peer for peer, _ in plan.members].index(C2)
    assert [is_in_bitmap(part.senders, index) for part in plan.parts].count(True) == 1
    assert all(part.reducer != index for part in plan.parts)
    assert plan.close_in_ms < plan.deadline_in_ms / 2
    round_.seal()
    commit = round_.proposed
    assert sorted(part.weight_sum for part in commit.parts) == [200] * (NUM_PARTS - 1) + [300]
    entry = commit.member(C2)
    assert entry is not None
    listed = listed_values(commit, C2, RULES.part_sizes(0))
    assert (entry.weight, entry.tokens) == (100, 100 * listed // NUM_VALUES)
    assert 0 < entry.tokens < 100


def test_without_known_rates_a_part_may_take_half_of_the_deadline() -> None:
    round_ = Round(ballot_of(0))
    round_.knock(knock(C0), knock(C1))
    assert round_.ballot.plan is not None
    assert round_.ballot.plan.close_in_ms == 5000


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
    vote = VoteCast(0, commit.encode())
    round_.knock(knock(C0, 1, vote=vote), knock(C1, 1, vote=vote))
    round_.ballot.unavailable(commit.parts[0].result_hash)
    round_.advance()
    assert round_.ballot.is_over
    assert not round_.said(SendProposal)


def test_a_coordinator_that_is_not_in_its_plan_fetches_what_is_sealed_at_once() -> None:
    """A worker whose own Δ is not ready coordinates all the same; the reducers send their results to members alone."""
    round_ = Round(ballot_of(0))
    round_.knock(knock(C1), knock(C2))
    hashes = round_.seal(held=False)
    assert round_.said(FetchPart) == [FetchPart(part, part_hash) for part, part_hash in enumerate(hashes)]


def test_who_reports_a_vote_for_what_nobody_holds_is_done_without_where_the_others_are_a_majority() -> None:
    """Any majority's promises will do, and a lie stalls nobody."""
    commit = finished_commit()
    round_ = Round(ballot_of(1, expected=set(COUNCIL.members)))
    round_.knock(knock(C0, 1, vote=VoteCast(0, commit.encode())), knock(C1, 1))
    assert len(round_.said(FetchPart)) == NUM_PARTS
    round_.ballot.unavailable(commit.parts[0].result_hash)
    round_.advance()
    assert not round_.ballot.is_over, "the third is still to come"
    round_.knock(knock(C2, 1))
    assert round_.said(SendPlan)
    round_.seal()
    assert round_.proposed != commit
    assert round_.ballot.proposal is not None
    promises = [read_signed(frame, run=RULES.run_id) for frame in round_.ballot.proposal.promises]
    assert {signed.sender for signed in promises} == {C1, C2}
    assert check_proposal(VIEW, 1, round_.ballot.proposal, promises, promises[0]) == round_.proposed


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
