"""*Waiting*: what one peer that never comes, never sends, drips, comes every second time or has a thin line costs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from hostile_peer import HostilePeer
from schedules.peer import ScheduledPeer
from schedules.schedule import BOUNDS, HOUR, Bound, Schedule, Trial, lines_of
from small_swarm import SmallPeer
from swarm_diloco.diloco.ledger import Header, listed_values
from swarm_diloco.network.messages import Coming, Plan
from swarm_diloco.network.simulated_network import LinkSettings
from swarm_diloco.rounds.settings import RoundSettings

PERIOD_SECONDS = 60.0
USUAL_ROUNDS, SHORT_USUAL_ROUNDS = 45, 12  # before: what a round takes without it
ROUNDS, SHORT_ROUNDS = 100, 30  # with it
FIRST_ROUNDS = 5  # until lateness is known patience is long
NAMES = ("boot", "ann", "ben", "cleo")


def lateness(trial: Trial, first: int, last: int) -> list[float]:
    """Of each round, from due to its decision at the bootstrap peer, in seconds."""
    boot = trial.peers["boot"]
    assert boot.follower is not None
    log, at = boot.follower.log, boot.applied_at
    return [
        at[round_] - at[round_ - 1] - log.commit(round_ - 1).next_due_ms / 1000 for round_ in range(first, last + 1)
    ]


async def without(trial: Trial) -> float:
    """Play the usual rounds; what one takes."""
    num_rounds = SHORT_USUAL_ROUNDS if trial.is_short else USUAL_ROUNDS
    for name in trial.schedule.names:
        trial.peer(name, step_seconds=PERIOD_SECONDS)
    await trial.begin()
    await trial.reach(num_rounds)
    return mean(lateness(trial, FIRST_ROUNDS + 1, num_rounds))


async def measure(trial: Trial, usual: float, peers: Sequence[ScheduledPeer]) -> None:
    """So many rounds more, and what they take more than the usual ones."""
    first, num_rounds = trial.head + 1, SHORT_ROUNDS if trial.is_short else ROUNDS
    last = first + num_rounds - 1
    await trial.reach(last, peers)
    with_it = lateness(trial, first, last)
    trial.seconds = max(0.0, sum(with_it) - usual * len(with_it))
    percent = 100 * trial.seconds / (len(with_it) * PERIOD_SECONDS)
    trial.notes.append(f"{percent:.2f} % of the period, {max(with_it) - usual:.1f} s in the worst round")


# --- a hostile one


async def beats_and_never_knocks(eve: HostilePeer) -> None:
    """It says each round that it will come, answers every dial, and does not come."""
    while True:
        view = eve.view()
        await eve.say(view, Coming())
        await eve.until_decided(view)


async def knocks_and_never_sends(eve: HostilePeer) -> None:
    while True:
        view = await eve.until_due()
        async with eve.knock(view, weight=100):
            await eve.until_decided(view)


async def knocks_and_never_works(eve: HostilePeer) -> None:
    """It says that it can be dialled, so that it is a candidate and a reducer; and it is neither."""
    while True:
        view = await eve.until_due()
        async with eve.knock(view, weight=100, reachable=True):
            await eve.until_decided(view)


async def sends_a_byte_a_second(eve: HostilePeer) -> None:
    while True:
        view = await eve.until_due()
        async with eve.knock(view, weight=100) as conversation:
            plan = await conversation.heard(Plan) if conversation is not None else None
            if plan is not None and eve.peer in dict(plan.members):
                dripping = asyncio.create_task(eve.drip(view, plan, seconds_per_byte=1.0))
                await eve.until_decided(view)
                dripping.cancel()
                await asyncio.gather(dripping, return_exceptions=True)
            else:
                await eve.until_decided(view)


def hostile(conduct: Callable[[HostilePeer], Awaitable[None]]) -> Callable[[Trial], Awaitable[None]]:
    async def play(trial: Trial) -> None:
        usual = await without(trial)
        folder: Path = trial.folder / "eve"
        small = SmallPeer("eve", folder, trial.rules, trial.genesis, donors=[trial.peers["boot"].peer])
        eve = HostilePeer(small, trial.world, lines_of(trial.chance))
        await eve.start()
        eve.do(conduct(eve))
        await measure(trial, usual, trial.alive)
        await eve.stop()

    return play


async def joins_every_second_round(trial: Trial) -> None:
    """An honest worker that brings something to every second round only."""
    usual = await without(trial)
    dan = trial.peer("dan", step_seconds=PERIOD_SECONDS, comes_every=2)
    await trial.start("dan")
    await measure(trial, usual, [peer for peer in trial.alive if peer is not dan])
    in_rounds = sum(outcome.listed > 0 for outcome in dan.outcomes)
    trial.notes.append(f"it is in {in_rounds} rounds")


# --- a thin line

NUM_VALUES = 800_000  # up in 0.6 s on a usual line, in 12 s on the thin one
USUAL_LINE = LinkSettings(up_bytes_per_second=640_000, down_bytes_per_second=2_560_000)
THIN_LINE = replace(USUAL_LINE, up_bytes_per_second=32_000)  # as 1 Mbit/s among 20
LONG_PERIOD_SECONDS = 300.0
KNOWN_ROUND = 10  # by which all lines are known: rates are the best of eight rounds
THIN_ROUNDS = 6


def thin_line(num_workers: int) -> tuple[str, ...]:
    return ("boot", *(f"w{number:02}" for number in range(num_workers - 1)))


async def one_thin_line(trial: Trial) -> None:
    """The others know what a round takes and how fast they are; then it comes, and is measured as they were."""
    names = trial.schedule.names
    for name in names:
        trial.peer(name, step_seconds=LONG_PERIOD_SECONDS)
    await trial.begin(link=LinkSettings())
    others = list(trial.peers.values())
    for peer in others:  # all have the first state
        trial.world.networks[peer.peer].link = USUAL_LINE
    await trial.reach(KNOWN_ROUND + THIN_ROUNDS)
    usual = mean(lateness(trial, KNOWN_ROUND + 1, KNOWN_ROUND + THIN_ROUNDS))
    thin = trial.peer("thin", step_seconds=LONG_PERIOD_SECONDS)
    await trial.start("thin", link=THIN_LINE)
    first = trial.head + 4  # its line is known by then
    await trial.reach(first + THIN_ROUNDS, others)
    now = mean(lateness(trial, first + 1, first + THIN_ROUNDS))
    trial.seconds = max(0.0, now - usual)
    sizes = trial.rules.part_sizes(0)
    shares = []
    for round_ in range(first + 1, first + THIN_ROUNDS + 1):
        listed = listed_values(Header.commit(trial.header(round_)), thin.peer, sizes)
        shares.append(listed / sum(sizes))
    trial.notes.append(
        f"{usual:.1f} s a round, {now:.1f} s with it ({100 * (now / usual - 1):+.1f} %); "
        f"it is in {100 * min(shares):.0f} to {100 * max(shares):.0f} % of the parts"
    )
    assert now <= 1.05 * usual
    assert min(shares) > 0


GROUP = "waiting"
REFUSED_SECONDS = 2.0  # a dial, and the pause before the next candidate
ONE_PERCENT = Bound(seconds=ROUNDS * PERIOD_SECONDS / 100, why="1 % of 100 periods")
REFUSALS = Bound(seconds=ROUNDS / 5 * REFUSED_SECONDS, why="a refusal in each fifth round")
CONDUCTS: dict[str, Callable[[HostilePeer], Awaitable[None]]] = {
    "beats and never knocks": beats_and_never_knocks,
    "knocks and never sends": knocks_and_never_sends,
    "sends a byte a second": sends_a_byte_a_second,
}
SCHEDULES = [
    *(
        Schedule(
            group=GROUP,
            name="a peer",
            stage=stage,
            play=play,
            pace="time",
            rounds=replace(BOUNDS, heartbeat_seconds=1.5, greeting_seconds=60),
            limit_seconds=6 * HOUR,
            bound=bound,
            measured="the seconds lost in 100 rounds",
        )
        for stage, play, bound in (
            *((stage, hostile(conduct), ONE_PERCENT) for stage, conduct in CONDUCTS.items()),
            ("knocks and never coordinates or averages", hostile(knocks_and_never_works), ONE_PERCENT + REFUSALS),
            ("joins every second round", joins_every_second_round, ONE_PERCENT),
        )
    ),
    Schedule(
        group=GROUP,
        name="one line of 1 Mbit/s among 50 of 20",
        play=one_thin_line,
        names=thin_line(50),
        rounds=replace(RoundSettings(), part_values=16384),
        pace="time",
        num_values=NUM_VALUES,
        limit_seconds=6 * HOUR,
        bound=Bound(seconds=LONG_PERIOD_SECONDS, why="5 % of a round, which the script asserts"),
        measured="one round's seconds lost",
        most_seeds=1,
    ),
]
