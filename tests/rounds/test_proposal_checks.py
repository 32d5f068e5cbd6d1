"""What a peer checks before it votes or follows a plan, and what its vote file keeps."""

from dataclasses import replace

import pytest

from small_ballot import C0, C1, C2, EVE, NUM_PARTS, PREV, VIEW, finished_commit, knock, proposal_of
from swarm_diloco.diloco.ledger import Commit, Head, Kind, Member, PartRecord, member_bitmap
from swarm_diloco.diloco.records import HASH_BYTES, hash_of
from swarm_diloco.errors import RecordError
from swarm_diloco.network.messages import Plan, PlannedPart, VoteCast
from swarm_diloco.rounds.decision.checks import check_plan, check_proposal
from swarm_diloco.rounds.decision.voter import Voter

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
