"""From a proposal to a vote: the rules, the parts on this disk, the vote file, and only then the signature."""

from collections.abc import Sequence

from swarm_diloco.diloco.ledger import digest_of
from swarm_diloco.errors import RecordError
from swarm_diloco.network.messages import CastVote, Propose
from swarm_diloco.network.wire import Signed, read_signed
from swarm_diloco.rounds.butterfly import check_result
from swarm_diloco.rounds.decision.checks import check_proposal
from swarm_diloco.rounds.decision.degraded import DegradedProposal, check_degraded_proposal, is_degraded
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.participant import Participant


async def vote_for(
    participant: Participant,
    view: View,
    ballot: int,
    proposal: Propose,
    *,
    own: Signed | None,
    holders: Sequence[str],
) -> CastVote | None:
    """Check a proposal, hold its parts, make parts and vote durable. None if a promise or another vote forbids it.

    `own` is this peer's newest knock. Raises RecordError for a broken rule, DataError when a part cannot be had.
    """
    promises = [read_signed(frame, run=view.rules.run_id) for frame in proposal.promises]
    degraded: DegradedProposal | None = None
    if is_degraded(ballot):
        if own is None:
            raise RecordError("degraded proposal: this peer has not knocked")
        may_pass_over = participant.may_pass_over()
        degraded = check_degraded_proposal(view, ballot, proposal, promises, own, may_pass_over=may_pass_over)
        commit = degraded.commit
    else:
        commit = check_proposal(view, ballot, proposal, promises, own)
    hashes = [part.result_hash for part in commit.parts]
    network, store = participant.network, participant.follower.log.parts
    await participant.follower.fetch_parts(hashes, holders)
    for part, part_hash in enumerate(hashes):
        data = store.get(part_hash)
        if data is not None:  # if it is gone again, the next line says so
            await network.run_blocking(check_result, view.rules, view.fragment, part, data)
    await network.run_blocking(store.make_durable, hashes)
    if degraded is not None:
        return await participant.vote_degraded(view, ballot, degraded, proposal.commit_bytes)
    return await participant.vote(view, ballot, proposal.commit_bytes, digest_of(proposal.commit_bytes))
