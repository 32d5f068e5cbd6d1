"""*Deciding*: councils of 1, 2, 3, 4 and 9 that lose one to all of their members, the tie-breaker or not."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import combinations

from schedules import bounds
from schedules.peer import ScheduledPeer
from schedules.schedule import BOUNDS, Bound, Schedule, Trial

SIZES = (1, 2, 3, 4, 9)
GONE_SECONDS = 10.0
NAMES = ("boot", "ann", "ben", "cleo", "dan", "eli", "fay", "gus", "hal")


async def choose(trial: Trial, num_gone: int, tie_breaker_goes: bool | None) -> list[ScheduledPeer]:
    """Whoever is left, a worker is among them: without one nothing is to be decided. Waits for a council that suits."""
    boot, all_names = trial.peers["boot"], sorted(trial.peers)
    while True:
        assert boot.follower is not None
        members = boot.follower.log.council(trial.head + 1).members  # the tie-breaker first
        assert len(members) == len(all_names)
        tie_breaker = trial.named(members[0]).name
        choices = [set(gone) for gone in combinations(all_names, num_gone)]
        choices = [
            gone
            for gone in choices
            if (num_gone == len(all_names) or set(all_names) - gone - {"boot"})
            and tie_breaker_goes in (None, tie_breaker in gone)
        ]
        if choices:
            return [trial.peers[name] for name in sorted(trial.chance.choice(choices))]
        await trial.further(1)


def lose(num_gone: int, *, tie_breaker_goes: bool | None = None) -> Callable[[Trial], Awaitable[None]]:
    """So many of the council are gone at once, for good until the round is decided without them; then all are back."""

    async def play(trial: Trial) -> None:
        await trial.begin()
        await trial.reach(3)
        gone = await choose(trial, num_gone, tie_breaker_goes)
        silently = trial.chance.random() < 0.5
        for peer in gone:
            trial.kill(peer, silently=silently)
        trial.strike(trial.head + 1)
        if trial.alive:
            await trial.reach(trial.struck_round)
        await asyncio.sleep(GONE_SECONDS)
        if not trial.alive:
            trial.strike(trial.head + 1)
        for peer in gone:
            await trial.restart(peer)
        await trial.further(4)

    return play


async def archive_alone(trial: Trial) -> None:
    """A council of one, a bootstrap peer before the first round: nobody decides for it, and all goes on with it."""
    await trial.begin()
    boot = trial.peers["boot"]
    trial.kill(boot)
    await asyncio.sleep(GONE_SECONDS + BOUNDS.alone_seconds)
    assert trial.head == 0, "who is in none of the last commits never steps alone"
    trial.strike(1)
    await trial.restart(boot)
    await trial.further(4)


def bound_of(size: int, num_gone: int, tie_breaker_goes: bool | None) -> Bound:
    num_left = size - num_gone
    if num_left == 0:
        return bounds.next_ballot(BOUNDS)  # from the moment at which they are back
    if 2 * num_left > size or (2 * num_left == size and not tie_breaker_goes):
        return bounds.next_ballot(BOUNDS, times=num_gone)
    return bounds.degraded(BOUNDS, dead=num_gone) if num_left > 1 else bounds.alone(BOUNDS, dead=num_gone)


def _schedules() -> list[Schedule]:
    found = [
        Schedule(
            group="deciding",
            name="council of 1",
            stage="it is gone for a while",
            play=archive_alone,
            names=("boot", "ann"),
            bound=bounds.next_ballot(BOUNDS),
            stalled_seconds=GONE_SECONDS + BOUNDS.alone_seconds,
        )
    ]
    for size in SIZES[1:]:
        for num_gone in range(1, size + 1):
            is_half = 2 * num_gone == size
            for goes in (True, False) if is_half else (None,):
                half = {True: ", the tie-breaker too", False: ", not the tie-breaker", None: ""}[goes]
                found.append(
                    Schedule(
                        group="deciding",
                        name=f"council of {size}",
                        stage=f"{num_gone} gone{half}",
                        play=lose(num_gone, tie_breaker_goes=goes),
                        names=NAMES[:size],
                        bound=bound_of(size, num_gone, goes),
                        stalled_seconds=GONE_SECONDS if num_gone == size else 0.0,
                    )
                )
    return found


SCHEDULES = _schedules()
