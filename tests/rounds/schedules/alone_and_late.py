"""*Alone and late*: an hour asleep, one worker left, no bootstrap peer, all at once, all dead, late by some rounds."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from schedules import bounds
from schedules.peer import ScheduledPeer
from schedules.schedule import BOUNDS, FOUR, HOUR, Bound, Schedule, Trial, lines_of
from swarm_diloco.rounds.settings import RoundSettings
from swarm_diloco.training.progress import MAX_MISSED

PERIOD_SECONDS = 20.0
SLOW_STEP_SECONDS = 120.0  # an hour in some thirty rounds
HOME = replace(RoundSettings(), part_values=1024)  # the manifest's defaults
LATE_ROUNDS = (0.5, 1, 3, MAX_MISSED - 1, MAX_MISSED, MAX_MISSED + 1)


def with_steps(trial: Trial, seconds: float) -> None:
    """So long a worker trains for a round."""
    for name in trial.schedule.names:
        if name not in trial.peers:
            trial.peer(name, step_seconds=seconds * trial.chance.uniform(0.95, 1.05))


async def laptop_sleeps_an_hour(trial: Trial) -> None:
    with_steps(trial, SLOW_STEP_SECONDS)
    await trial.begin()
    await trial.reach(3)
    await asyncio.sleep(trial.chance.uniform(0.0, SLOW_STEP_SECONDS))
    cleo = trial.peers["cleo"]
    trial.freeze(cleo, HOUR)
    asleep_from = trial.head
    await asyncio.sleep(HOUR + 1)
    woken_at, woken_from = trial.now, trial.head
    assert woken_from > asleep_from + 20, "the others have gone on"
    listed = await trial.until_listed(cleo, woken_from)
    trial.seconds = trial.named(cleo.peer).applied_at.get(listed, trial.now) - woken_at
    trial.notes.append(f"{woken_from - asleep_from} rounds without it, back in the {listed - woken_from}th after")
    await trial.further(3)


def one_of_two_leaves(*, says_bye: bool) -> Callable[[Trial], Awaitable[None]]:
    """M = 2 → 1 → 2. The bootstrap peer is gone too, so that the one that stays is alone."""

    async def play(trial: Trial) -> None:
        boot, ann, ben = (trial.peer(name) for name in trial.schedule.names)
        await trial.begin()
        await trial.reach(4)
        if says_bye:
            assert ben.engine is not None
            await ben.engine.leave()
        trial.kill(ben)
        if says_bye:
            await trial.further(4)  # the last commits do not list it any more
        await until_tie_breaker(trial, boot)
        trial.strike()
        trial.kill(boot)
        await trial.reach(trial.struck_round, [ann])
        await trial.further(4, [ann])
        await trial.restart(ben)
        await trial.until_listed(ben, trial.head)
        await trial.restart(boot)
        await trial.further(4)

    return play


async def until_tie_breaker(trial: Trial, peer: ScheduledPeer) -> None:
    """Without it there is no majority in a council of two; in a larger one this is no more than some rounds."""
    assert peer.follower is not None
    while peer.follower.log.council(trial.head + 1).candidates[0] != peer.peer:
        await trial.further(1)


def without_bootstrap(seconds: float) -> Callable[[Trial], Awaitable[None]]:
    """Two workers that nobody can dial lose the only peer that both can reach."""

    async def play(trial: Trial) -> None:
        boot = trial.peer("boot")
        workers = [trial.peer(name, is_reachable=False, step_seconds=45.0) for name in ("ann", "ben")]
        nat = {worker.name: replace(lines_of(trial.chance), client_mode=True) for worker in workers}
        await trial.begin(nat)
        await trial.reach(3)
        trial.kill(boot)
        before = trial.head
        await asyncio.sleep(seconds)
        if seconds < HOME.alone_seconds:
            trial.strike()
            await trial.restart(boot)
            await trial.further(4)
            assert trial.head < before + 10, "nobody has gone on alone"
            return
        trial.strike()
        await trial.restart(boot)
        began_at = trial.now
        while not all(peer.follower is not None and len(peer.follower.forks) for peer in trial.peers.values()):
            await asyncio.sleep(1.0)
        trial.seconds = trial.now - began_at
        trial.notes.append("each has gone on alone: two heads, recorded and named by all")

    return play


async def all_start_at_once(trial: Trial) -> None:
    """A bootstrap peer and three workers within 100 ms; a worker tries again while nobody answers."""
    boot = trial.peer("boot")
    trial.strike(1)

    async def come(name: str) -> None:
        await asyncio.sleep(trial.chance.uniform(0.0, 0.1))
        peer = boot if name == "boot" else trial.peer(name)
        network = trial.world.network(peer.identity, lines_of(trial.chance))
        await trial.start_until_it_works(peer, network)

    await asyncio.gather(*(come(name) for name in trial.schedule.names))
    await trial.reach(8)


def all_killed(names: tuple[str, ...]) -> Callable[[Trial], Awaitable[None]]:
    """These come back from their disks and go on; the others follow later."""

    async def play(trial: Trial) -> None:
        await trial.begin()
        await trial.reach(4)
        await asyncio.sleep(trial.chance.uniform(0.0, 2.0))
        everybody = list(trial.peers.values())
        for peer in everybody:
            trial.kill(peer, silently=trial.chance.random() < 0.5)
        await asyncio.sleep(5.0)
        back = [trial.peers[name] for name in names]
        for peer in back:
            await trial.restart(peer)
        trial.strike()
        began_at = trial.now
        await trial.reach(trial.struck_round, back)
        trial.seconds = trial.now - began_at
        await trial.further(4, back)
        for peer in everybody:
            if peer not in back:
                await trial.restart(peer)
        await trial.further(4)

    return play


def late_by(num_rounds: float) -> Callable[[Trial], Awaitable[None]]:
    """A worker stops for so many rounds with its Δ formed and not yet brought.

    Once it is back it may miss one or two more, until it is waited for again, and these count towards S. What it then
    does with θ_local (α = 0 and 0.5) is the trainer's: tests/training shows it.
    """

    async def play(trial: Trial) -> None:
        with_steps(trial, PERIOD_SECONDS)
        await trial.begin()
        await trial.reach(4)
        cleo = trial.peers["cleo"]
        due = asyncio.Event()
        assert cleo.engine is not None
        cleo.engine.on_due(lambda _round: due.set())
        await due.wait()
        asleep_at = trial.head
        trial.freeze(cleo)
        if num_rounds < 1:
            await asyncio.sleep(num_rounds * PERIOD_SECONDS)
        else:
            await trial.reach(asleep_at + int(num_rounds))
        woken_at, woken_from = trial.now, trial.head
        trial.thaw(cleo)
        await trial.until_listed(cleo, woken_from)
        trial.seconds = trial.now - woken_at
        await trial.further(3)
        trial.notes.append(f"{woken_from - asleep_at} commits missed, {cleo.dropped} tokens dropped")
        if num_rounds <= 3:
            assert not cleo.dropped, "its work is kept"
        elif num_rounds > MAX_MISSED:
            assert cleo.dropped, "the Δ that S commits did not list is dropped"

    return play


def next_round(period_seconds: float, rounds: RoundSettings = BOUNDS, *, times: int = 1) -> Bound:
    return Bound(seconds=times * period_seconds, why=f"{times} rounds") + bounds.ballot(rounds) + bounds.notice(rounds)


def _bounds_of(says_bye: bool) -> Bound:
    """Who has said bye is not waited for."""
    if says_bye:
        return bounds.degraded(BOUNDS, dead=2)
    return bounds.alone(BOUNDS, dead=2)


GROUP = "alone and late"
SCHEDULES = [
    Schedule(
        group=GROUP,
        name="a laptop sleeps for an hour",
        play=laptop_sleeps_an_hour,
        bound=next_round(SLOW_STEP_SECONDS, times=3),
        measured="waking to its work in a commit",
    ),
    *(
        Schedule(
            group=GROUP,
            name="M = 2 → 1 → 2",
            stage="with a bye" if says_bye else "without a word",
            play=one_of_two_leaves(says_bye=says_bye),
            names=FOUR[:3],
            bound=_bounds_of(says_bye),
        )
        for says_bye in (True, False)
    ),
    Schedule(
        group=GROUP,
        name="two workers behind NAT, bootstrap peer killed",
        stage="back after 2 min",
        play=without_bootstrap(120.0),
        names=FOUR[:3],
        rounds=HOME,
        bound=bounds.next_ballot(HOME) + Bound(seconds=HOME.degraded_seconds, why="degraded_seconds"),
        stalled_seconds=120.0,
        measured="its return to the next decision",
    ),
    Schedule(
        group=GROUP,
        name="two workers behind NAT, bootstrap peer killed",
        stage="back after 1 h",
        play=without_bootstrap(HOUR),
        names=FOUR[:3],
        rounds=HOME,
        bound=Bound(seconds=4 * HOME.greeting_seconds, why="4 greetings"),
        stalled_seconds=HOME.alone_seconds + HOUR,
        measured="its return until all have recorded the two heads",
    ),
    Schedule(
        group=GROUP,
        name="three workers and a bootstrap peer start within 100 ms",
        play=all_start_at_once,
        bound=bounds.next_ballot(BOUNDS),
        measured="start to the first decision",
    ),
    *(
        Schedule(
            group=GROUP,
            name="everybody is killed",
            stage=f"{' and '.join(names)} back from disk",
            play=all_killed(names),
            names=(*FOUR, "dan"),
            bound=bound,
            stalled_seconds=bound.seconds,
            measured="the return of some to their next decision",
        )
        for names, bound in (
            (("boot", "ann", "ben"), bounds.next_ballot(BOUNDS, times=2)),
            (("ann", "ben"), bounds.degraded(BOUNDS, dead=3)),
            (("ann",), bounds.alone(BOUNDS, dead=4)),
        )
    ),
    *(
        Schedule(
            group=GROUP,
            name="a worker is late",
            stage=f"by {num_rounds:g} rounds",
            play=late_by(num_rounds),
            pace="time",
            bound=next_round(PERIOD_SECONDS, times=3),
            stalled_seconds=PERIOD_SECONDS,
            measured="its waking to its work in a commit",
        )
        for num_rounds in LATE_ROUNDS
    ),
]
