"""Who sends which parts and who averages them, by the upload rates that the members measured (protocol rule 4).

Everything is compared as seconds: how long a member's line needs for all of its contribution. Rates are claims, so that
none counts for more than four usual ones; a lie costs its author's parts, or its line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

QUICK_SECONDS = (
    1.0  # a contribution that is up in so little, round trips included, is as good as one that is up at once
)
SLOW_FACTOR = 2.0  # a sender has so many times the median's time
ALIKE = 2.0  # rates within this factor of the median count as the median
MOST_OF_USUAL = 4.0  # a reducer's share is at most so many times a usual one's


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    senders: tuple[tuple[int, ...], ...]  # of each part, in order
    reducers: tuple[int, ...]  # of each part
    seconds: float | None  # until all that is sent is there and averaged; None: nothing is known


def share(
    sent_bytes: Sequence[int],
    result_bytes: Sequence[int],
    *,
    senders: Mapping[int, int],
    reducers: Mapping[int, int],
    num_members: int,
    turn: int,
) -> Sharing:
    """`senders` and `reducers` map members to kilobits a second (0: not known), the other two are by part.

    A sender too slow for its whole contribution gets as many parts as are up in time, other ones each turn, and
    averages none if anybody else can; nor does a newcomer among others whose lines are known.
    """
    seconds = {member: _seconds(sum(sent_bytes), kilobits) for member, kilobits in senders.items()}
    known = [value for value in seconds.values() if value is not None]
    allowed = max(SLOW_FACTOR * median_low(known), QUICK_SECONDS) if known else QUICK_SECONDS
    slow = {member: value for member, value in seconds.items() if value is not None and value > allowed}
    num_parts = len(sent_bytes)
    planned: list[list[int]] = [[] for _ in range(num_parts)]
    for rank, member in enumerate(sorted(senders)):
        for part in _parts_in_time(num_parts, allowed, slow.get(member), turn=turn, rank=rank):
            planned[part].append(member)
    unknown = (
        {member for member, kilobits in senders.items() if not kilobits} if 2 * len(known) > len(senders) else set()
    )
    fit = {member: kilobits for member, kilobits in reducers.items() if member not in slow and member not in unknown}
    able = _levelled(fit or reducers)
    chosen = share_out(num_parts, able, num_bytes=sum(result_bytes), turn=turn)
    reducing = _longest_reduce(result_bytes, chosen, able, num_receivers=num_members - 1)
    return Sharing(
        senders=tuple(map(tuple, planned)),
        reducers=tuple(chosen),
        seconds=None if reducing is None or 2 * len(known) <= len(senders) else allowed + reducing,
    )


def _seconds(num_bytes: int, kilobits: int) -> float | None:
    return num_bytes * 8 / 1000 / kilobits if kilobits else None


def _parts_in_time(
    num_parts: int, allowed: float, slow_seconds: float | None, *, turn: int, rank: int
) -> Sequence[int]:
    """All parts, or the window of a slow sender, which moves on by its width each turn."""
    if slow_seconds is None:
        return range(num_parts)
    width = max(1, int(num_parts * allowed / slow_seconds))
    return [(turn * width + rank + offset) % num_parts for offset in range(width)]


def _longest_reduce(
    result_bytes: Sequence[int], chosen: Sequence[int], kilobits: Mapping[int, int], *, num_receivers: int
) -> float | None:
    """Seconds in which each reducer's results can be with the others."""
    usual = _usual(kilobits)
    if usual is None:
        return None
    sent = dict.fromkeys(chosen, 0)
    for member, num_bytes in zip(chosen, result_bytes, strict=True):
        sent[member] += num_bytes * num_receivers
    return max(num_bytes * 8 / 1000 / (kilobits[member] or usual) for member, num_bytes in sent.items())


def _levelled(kilobits: Mapping[int, int]) -> dict[int, int]:
    """Measured rates of equal lines differ by some tens of percent, and a round lasts as long as the largest share."""
    usual = _usual(kilobits) or 0
    return {member: usual if usual / ALIKE <= rate <= usual * ALIKE else rate for member, rate in kilobits.items()}


def _usual(kilobits: Mapping[int, int]) -> int | None:
    known = [rate for rate in kilobits.values() if rate]
    return median_low(known) if known else None


def share_out(num_parts: int, kilobits: Mapping[int, int], *, num_bytes: int, turn: int) -> list[int]:
    """A reducer for each part: each one's number follows its upload rate, and its parts lie spread out.

    An unknown rate counts as the median; rates at which `num_bytes` are up at once are all the same. A share under half
    a part is none if others take it. `turn` moves what is left over from one member to the next.
    """
    if not kilobits:
        raise ValueError("nobody can reduce")
    members = sorted(kilobits)
    turned = members[turn % len(members) :] + members[: turn % len(members)]
    usual = _usual(kilobits) or 1
    enough = num_bytes * 8 / 1000 / QUICK_SECONDS
    weights = {member: min(kilobits[member] or usual, MOST_OF_USUAL * usual, max(enough, 1)) for member in members}
    counts = _apportion(num_parts, {member: weights[member] for member in turned})
    taken = dict.fromkeys(turned, 0)
    shares: list[int] = []
    for part in range(1, num_parts + 1):
        open_ = [member for member in turned if taken[member] < counts[member]]
        member = max(open_, key=lambda member: counts[member] * part / num_parts - taken[member])
        taken[member] += 1
        shares.append(member)
    return shares


def _apportion(num_parts: int, weights: Mapping[int, float]) -> dict[int, int]:
    """Whole numbers in proportion, by largest remainders; among equal ones the first in order."""
    total = sum(weights.values())
    exact = {member: num_parts * weight / total for member, weight in weights.items()}
    counts = {member: int(share) for member, share in exact.items()}
    left = num_parts - sum(counts.values())
    for member in sorted(exact, key=lambda member: counts[member] - exact[member])[:left]:
        counts[member] += 1
    return counts
