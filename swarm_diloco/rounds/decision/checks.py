"""What a peer checks before it votes for a commit, and before it believes that one is decided."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import pairwise

from swarm_diloco.diloco.ledger import (
    MAX_DURATION_MS,
    Commit,
    Header,
    Kind,
    Member,
    degraded_message,
    listed_values,
    vote_message,
)
from swarm_diloco.errors import RecordError
from swarm_diloco.network.identity import is_signed_by
from swarm_diloco.network.messages import FIRST_DEGRADED, Knock, Plan, Propose, VoteCast
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.settings import RunRules

MAX_ATTEMPTS = 3  # of one part in one ballot


def adopted(
    view: View, ballot: int, knocks: Sequence[Signed], without: Collection[bytes] = frozenset()
) -> bytes | None:
    """The commit that a proposal of `ballot` must repeat, or None when it is free.

    Of the votes that the council's knocks report it is the one of the highest ballot; a vote at a degraded ballot, by
    whomever, counts when there is no other. What no honest peer can have voted for (another chain's commit, one that
    breaks a rule) does not count, nor do the commits in `without`.
    """
    votes: list[VoteCast] = []
    for signed in knocks:
        cast = signed.message.vote if isinstance(signed.message, Knock) else None
        if cast is None or cast.commit_bytes in without:
            continue
        if cast.ballot >= FIRST_DEGRADED or (cast.ballot <= ballot and signed.sender in view.council.members):
            votes.append(cast)
    for cast in sorted(votes, key=_precedence, reverse=True):
        with suppress(RecordError):
            check_commit(view, Commit.decode(cast.commit_bytes), is_degraded=cast.ballot >= FIRST_DEGRADED)
            return cast.commit_bytes
    return None


def _precedence(cast: VoteCast) -> tuple[bool, int, bytes]:
    return cast.ballot < FIRST_DEGRADED, cast.ballot, cast.commit_bytes


def is_promise(view: View, ballot: int, signed: Signed) -> bool:
    """Whether the message is a knock at this very ballot, on my chain."""
    return (
        isinstance(signed.message, Knock)
        and (signed.round, signed.ballot) == (view.round, ballot)
        and signed.head.digest == view.prev
    )


def is_other_state(view: View, ballot: int, knocks: Sequence[Signed]) -> bool:
    """Whether these knocks prove that a majority of the council has one state, and that it is not mine."""
    bases = {
        signed.sender: signed.message.base
        for signed in knocks
        if isinstance(signed.message, Knock) and is_promise(view, ballot, signed)
    }
    return view.council.is_majority(bases) and len(set(bases.values())) == 1 and view.base not in bases.values()


def check_plan(view: View, plan: Plan, former: Plan | None, own: Signed) -> None:
    """What a member checks of its coordinator's plan; `former` is this ballot's plan so far. Raises RecordError."""
    rules, knock = view.rules, own.message
    assert isinstance(knock, Knock)
    weights = dict(plan.members)
    if len(weights) != len(plan.members) or len(weights) > rules.rounds.group_limit:
        raise RecordError("plan: a member twice, or more than the group may have")
    if (
        weights.get(own.sender, knock.weight) != knock.weight
        or max(weights.values(), default=0) > rules.rounds.maximum_weight
    ):
        raise RecordError("plan: a weight is not as it was knocked")
    if len(plan.parts) != len(rules.part_sizes(view.fragment)):
        raise RecordError(f"plan: {len(plan.parts)} parts, not the fragment's")
    longest = max(rules.rounds.deadline_seconds, rules.rounds.deadline_ceiling_seconds)
    if not plan.close_in_ms <= plan.deadline_in_ms <= longest * 1000:
        raise RecordError("plan: its deadline is past the manifest's limit")
    workers = sum(1 << index for index, (_, weight) in enumerate(plan.members) if weight)
    for part in plan.parts:
        senders = int.from_bytes(part.senders, "little")
        if not senders or senders & ~workers or part.attempt >= MAX_ATTEMPTS:
            raise RecordError(
                "plan: a part without senders, with a sender that has no weight, or with an attempt too many"
            )
    if former is not None:
        attempts = [(old.attempt, new.attempt) for old, new in zip(former.parts, plan.parts, strict=True)]
        if plan.members != former.members or any(new < old for old, new in attempts) or plan.parts == former.parts:
            raise RecordError("plan: it is to differ from the former one in the failed parts alone")


def check_proposal(
    view: View, ballot: int, proposal: Propose, promises: Sequence[Signed], own: Signed | None
) -> Commit:
    """What a council peer checks before it votes, but for the parts, which it must hold as well.

    `promises` are the proposal's knocks, signatures verified; `own` is this peer's knock at any ballot of the round.
    Raises RecordError with the rule that is broken.
    """
    must: bytes | None = None
    if ballot > 0:
        promises = [signed for signed in promises if is_promise(view, ballot, signed)]
        if not view.council.is_majority({signed.sender for signed in promises}):
            raise RecordError("proposal: no majority has promised its ballot")
        must = adopted(view, ballot, promises)
        if must is not None and must != proposal.commit_bytes:
            raise RecordError("proposal: a vote that must be adopted is passed over")
    commit = Commit.decode(proposal.commit_bytes)
    # What must be adopted may have been proposed at a degraded ballot.
    check_commit(view, commit, is_degraded=must is not None)
    # An adopted commit may be decided already, by votes that nobody here has seen, and may list an earlier knock of
    # mine, from before a restart.
    if must is None and own is not None and not is_as_knocked(commit.member(own.sender), own):
        raise RecordError("proposal: my entry is not as I knocked")
    return commit


def check_commit(view: View, commit: Commit, *, is_degraded: bool = False) -> None:
    """Whether the commit may follow this peer's log; a degraded one may lack the council. Raises RecordError."""
    rules = view.rules
    if (commit.run, commit.round, commit.fragment, commit.prev) != (
        rules.run_id,
        view.round,
        view.fragment,
        view.prev,
    ):
        raise RecordError(f"commit {commit.round}: it does not follow my log")
    if commit.base != view.base:
        raise RecordError(f"commit {commit.round}: its base is not my state's")
    if commit.kind not in (Kind.NORMAL, Kind.VOID):
        raise RecordError(f"commit {commit.round}: a vote cannot decide a {commit.kind.name.lower()} commit")
    if not is_degraded and not view.council.is_majority({member.peer for member in commit.members}):
        raise RecordError(f"commit {commit.round}: no majority of the council is among its members")
    if commit.absorbs is not None or commit.lever:
        raise RecordError(f"commit {commit.round}: it carries what comes with a later version")
    if commit.next_due_ms and rules.schedule.pace == "steps":
        raise RecordError(f"commit {commit.round}: with pace steps no round is due by the clock")
    if len(commit.members) > rules.rounds.group_limit or commit.next_due_ms > MAX_DURATION_MS:
        raise RecordError(f"commit {commit.round}: its group or its period is past the manifest's limit")
    for member in commit.members:
        if member.weight > rules.rounds.maximum_weight:
            raise RecordError(f"commit {commit.round}: {member.peer}'s weight is past the manifest's limit")
        if member.tokens_from != view.tokens_credited.get(member.peer, 0):
            raise RecordError(f"commit {commit.round}: {member.peer}'s tokens do not join on to its last ones")
    _check_parts(rules, commit)


def _check_parts(rules: RunRules, commit: Commit) -> None:
    if commit.kind is Kind.VOID:
        if any(member.tokens or member.ranges for member in commit.members):
            raise RecordError(f"commit {commit.round}: a void credits nothing")
        return
    sizes = rules.part_sizes(commit.fragment)
    if len(commit.parts) != len(sizes):
        raise RecordError(f"commit {commit.round}: {len(commit.parts)} parts where the fragment has {len(sizes)}")
    for part in commit.parts:
        listed = [member.weight for index, member in enumerate(commit.members) if part.lists(index)]
        if not listed or 0 in listed or sum(listed) != part.weight_sum:
            raise RecordError(f"commit {commit.round}: a part's weights are not its senders'")
    for member in commit.members:
        if (member.tokens or member.ranges) and not listed_values(commit, member.peer, sizes):
            raise RecordError(f"commit {commit.round}: {member.peer} is credited and in no part")


def is_as_knocked(entry: Member | None, own: Signed) -> bool:
    knock = own.message
    assert isinstance(knock, Knock)
    if entry is None:
        return True
    is_late = entry.weight == entry.tokens == 0  # listed as having knocked, without its contribution
    return (
        (entry.weight == knock.weight or is_late)
        and entry.reachable == knock.reachable
        and entry.tokens_from == knock.tokens_from
        and entry.tokens_to <= knock.tokens_to
        and set(entry.ranges) <= set(knock.ranges)
    )


def check_certificate(view: View, header: Header) -> Commit:
    """Whether a header's commit follows the log and a majority of its council voted for it. Raises RecordError.

    The base is compared by whoever applies the commit: a header alone can be checked without the state.
    """
    commit = header.commit()
    followed = (view.rules.run_id, view.round, view.fragment, view.prev)
    if (commit.run, commit.round, commit.fragment, commit.prev) != followed:
        raise RecordError(f"commit {commit.round}: it does not follow commit {view.round - 1} of my log")
    if header.degraded:
        plan, ballot = header.degraded, header.ballot
        if not is_degraded_plan(view, plan) or ballot < FIRST_DEGRADED:
            raise RecordError(f"commit {commit.round}: its degraded certificate's plan is none")
        message = degraded_message(view.rules.run_id, commit.round, ballot, header.digest, plan)
        voters = {vote.peer for vote in header.votes if vote.peer in plan}
        is_decided = 2 * len(voters) > len(plan)
    else:
        message = vote_message(view.rules.run_id, commit.round, header.ballot, header.digest)
        voters = {vote.peer for vote in header.votes if vote.peer in view.council.members}
        is_decided = view.council.is_majority(voters) and header.ballot < FIRST_DEGRADED
    if not is_decided:
        raise RecordError(f"commit {commit.round}: its certificate names no majority of the council or plan")
    for vote in header.votes:
        if vote.peer not in voters or not is_signed_by(vote.peer, message, vote.signature):
            raise RecordError(f"commit {commit.round}: a vote by {vote.peer} is not valid")
    return commit


def is_degraded_plan(view: View, plan: Sequence[str]) -> bool:
    """Whether these peers may decide the round without the council: sorted, one of the recent members among them."""
    recent = {member.peer for member in view.recent}
    is_sorted = all(earlier < later for earlier, later in pairwise(plan))
    return is_sorted and len(plan) <= view.rules.rounds.group_limit and not recent.isdisjoint(plan)
