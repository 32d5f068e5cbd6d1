"""The commit that a coordinator proposes, made from what was knocked and sealed."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from swarm_diloco.diloco.ledger import (
    MAX_DURATION_MS,
    MAX_TOKENS,
    Commit,
    Evaluation,
    Kind,
    Member,
    PartRecord,
    is_in_bitmap,
)
from swarm_diloco.network.messages import Knock, Sealed
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.settings import RunRules

MAX_EVALUATIONS = 16  # in one commit


def normal_commit(
    view: View, members: Sequence[Signed], sealed: Sequence[Sealed], *, late: Sequence[Signed], wall_ms: int
) -> Commit:
    """`members` are the plan's knocks in its order, `sealed` one for each part.

    `late` knocked after the plan: they are listed with weight 0, so that the next round's coordinator, whoever it is,
    waits for them. Else a newcomer that keeps step with the others a moment behind them would be late for ever.
    """
    parts = []
    for seal in sealed:
        weights = [knock_of(signed).weight for index, signed in enumerate(members) if is_in_bitmap(seal.senders, index)]
        parts.append(PartRecord(seal.attempt, seal.result_hash, seal.senders, sum(weights)))
    sizes = view.rules.part_sizes(view.fragment)
    entries = []
    for index, signed in enumerate(members):
        listed = sum(size for part, size in zip(parts, sizes, strict=True) if part.lists(index))
        entries.append(_entry(signed, listed, sum(sizes)))
    entries += [replace(_entry(signed, 0, sum(sizes)), weight=0) for signed in late]
    return _record(view, Kind.NORMAL, entries, parts, [knock_of(signed) for signed in members], wall_ms)


def void_commit(view: View, members: Sequence[Signed], *, wall_ms: int) -> Commit:
    """Closes the round: its members are those who knocked, and it credits nothing."""
    entries = [_entry(signed, 0, 1) for signed in members]
    return _record(view, Kind.VOID, entries, [], [knock_of(signed) for signed in members], wall_ms)


def _record(
    view: View,
    kind: Kind,
    entries: Sequence[Member],
    parts: Sequence[PartRecord],
    knocks: Sequence[Knock],
    wall_ms: int,
) -> Commit:
    return Commit(
        run=view.rules.run_id,
        round=view.round,
        fragment=view.fragment,
        prev=view.prev,
        kind=kind,
        base=view.base,
        members=tuple(entries),
        parts=tuple(parts),
        next_due_ms=next_due_ms(view.rules, knocks),
        wall_ms=wall_ms,
        evaluation=_evaluations(knocks),
    )


def _entry(signed: Signed, listed: int, num_values: int) -> Member:
    """A member's line in the commit: it credits floor(tokens × values listed / values)."""
    knock = knock_of(signed)
    credited = (knock.tokens_to - knock.tokens_from) * listed // num_values
    return Member(
        peer=signed.sender,
        weight=knock.weight,
        tokens_from=knock.tokens_from,
        tokens_to=min(knock.tokens_from + credited, MAX_TOKENS),
        reachable=knock.reachable,
        ranges=knock.ranges if listed else (),
        knock_hash=signed.hash_,
    )


def next_due_ms(rules: RunRules, knocks: Sequence[Knock]) -> int:
    """How long until the next round opens: when the median worker has done H/P steps. 0 with pace "steps"."""
    steps = [knock.step_microseconds for knock in knocks if knock.weight and knock.step_microseconds]
    if rules.schedule.pace == "steps" or not steps:
        return 0
    return min(int(rules.schedule.round_steps * median(steps) / 1000), MAX_DURATION_MS)


def _evaluations(knocks: Sequence[Knock]) -> tuple[Evaluation, ...]:
    """One for each set and round: the first in the plan's order."""
    found: dict[tuple[str, int], Evaluation] = {}
    for knock in knocks:
        for evaluation in knock.evaluation:
            found.setdefault((evaluation.set_name, evaluation.round), evaluation)
    return tuple(found[key] for key in sorted(found)[:MAX_EVALUATIONS])


def knock_of(signed: Signed) -> Knock:
    """The knock in a signed message that is known to be one."""
    assert isinstance(signed.message, Knock)
    return signed.message
