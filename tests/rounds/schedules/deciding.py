"""*Deciding*: coordinators, reducers and voters die or freeze at every step; messages misbehave; candidates lie."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from fault_stages import COORDINATOR_STAGES, REDUCER_STAGES
from schedules import bounds, faults
from schedules.disorder import LIES, Lie, failing_part, lying_coordinator, two_candidates, unruly_messages
from schedules.peer import ScheduledPeer
from schedules.schedule import BOUNDS, FOUR, Schedule, Trial, lines_of
from schedules.voter_faults import VOTER_STAGES, at_voter
from swarm_diloco.diloco.ledger import Kind
from swarm_diloco.network.simulated_network import LinkSettings

FROZEN_SECONDS = 20.0
BACK_AFTER_SECONDS = 30.0
FURTHER_ROUNDS = 4


def first_round(trial: Trial) -> int:
    return 3 + trial.seed % 3


def struck_once(role: str, fault: str, stage: str) -> Callable[[Trial], Awaitable[None]]:
    """One peer is killed, or frozen for 20 s, at the stage; rounds go on, and it comes back."""
    at = {"coordinator": faults.at_coordinator, "reducer": faults.at_reducer}[role]

    async def play(trial: Trial) -> None:
        def hit(victim: ScheduledPeer) -> bool:
            if fault == "frozen":
                trial.freeze(victim, FROZEN_SECONDS)
            else:
                trial.kill(victim, flushes=True)
            return fault == "frozen"

        with at(trial, stage, hit, first_round=first_round(trial)):
            await trial.begin()
            await trial.struck.wait()
            await trial.reach(trial.struck_round)
            await asyncio.sleep(BACK_AFTER_SECONDS)
            for victim in [peer for peer in trial.peers.values() if peer.name in trial.dead]:
                await trial.restart(victim)
            await trial.further(FURTHER_ROUNDS)

    return play


def voter_restarts(stage: str) -> Callable[[Trial], Awaitable[None]]:
    async def play(trial: Trial) -> None:
        async def back(victim: ScheduledPeer) -> None:
            await asyncio.sleep(trial.chance.uniform(0.0, 2.0))
            await trial.restart(victim)

        def hit(victim: ScheduledPeer) -> bool:
            trial.kill(victim, flushes=True)
            trial.run_aside(back(victim))
            return False

        with at_voter(trial, stage, hit, first_round=first_round(trial)):
            await trial.begin()
            await trial.struck.wait()
            await asyncio.sleep(BACK_AFTER_SECONDS)
            await trial.further(FURTHER_ROUNDS)

    return play


async def only_holder_is_behind_nat(trial: Trial) -> None:
    """A reducer dies when its parts have come to one member alone, and nobody can dial that one."""

    def hit(victim: ScheduledPeer) -> bool:
        trial.kill(victim, flushes=True)
        return False

    trial.peer("nat", is_reachable=False)
    with faults.at_reducer(trial, "only holder", hit, first_round=first_round(trial)):
        await trial.begin({"nat": replace(lines_of(trial.chance), client_mode=True)})
        await trial.struck.wait()
        await trial.reach(trial.struck_round)
        await trial.further(FURTHER_ROUNDS)


async def messages_misbehave(trial: Trial) -> None:
    """Each stream has delays of its own, up to a second; some messages never leave, some twice."""
    link = LinkSettings(latency_seconds=0.03, jitter_seconds=0.15, loss_fraction=0.05, dial_failure_fraction=0.05)
    for name in trial.schedule.names:
        trial.peer(name, step_seconds=trial.chance.uniform(4.0, 5.0))  # rounds longer than what a lost message costs
    with unruly_messages(trial, lost=0.01, doubled=0.1):
        await trial.begin(link=link)
        trial.strike(1)
        await trial.reach(10)


async def two_are_active(trial: Trial) -> None:
    first = first_round(trial)
    with two_candidates(trial, range(first, first + 4)):
        await trial.begin()
        await trial.reach(first - 1)
        trial.strike(first)
        await trial.reach(first + 3 + FURTHER_ROUNDS)


async def all_attempts_fail(trial: Trial) -> None:
    """The round is void, and all that was trained for it is in the next."""
    round_ = first_round(trial)
    with failing_part({round_}):
        await trial.begin()
        await trial.reach(round_ - 1)
        trial.strike(round_)
        await trial.reach(round_ + FURTHER_ROUNDS)
    commit, following = trial.header(round_).commit(), trial.header(round_ + 1).commit()
    assert commit.kind is Kind.VOID
    assert not any(member.tokens for member in commit.members)
    assert following.tokens > sum(peer.weight for peer in trial.peers.values() if peer.trains), "two rounds' tokens"


def a_candidate_lies(lie: Lie) -> Callable[[Trial], Awaitable[None]]:
    async def play(trial: Trial) -> None:
        with lying_coordinator(trial, "cleo", lie):
            await trial.begin()
            await trial.reach(12)
        trial.notes[:] = [f"{len(trial.notes)} lies"]

    return play


SCHEDULES = [
    *(
        Schedule(
            group="deciding",
            name=f"{role} {fault}",
            stage=stage,
            play=struck_once(role, fault, stage),
            bound=bounds.next_ballot(BOUNDS),
        )
        for role, stages in (("coordinator", COORDINATOR_STAGES), ("reducer", REDUCER_STAGES))
        for fault in ("killed", "frozen")
        for stage in stages
    ),
    *(
        Schedule(
            group="deciding",
            name="voter restarts",
            stage=stage,
            play=voter_restarts(stage),
            bound=bounds.next_ballot(BOUNDS),
        )
        for stage in VOTER_STAGES
    ),
    Schedule(
        group="deciding",
        name="only holder of a part",
        stage="in client mode, its reducer dies",
        play=only_holder_is_behind_nat,
        names=(*FOUR, "nat"),
        bound=bounds.next_ballot(BOUNDS),
    ),
    Schedule(
        group="deciding",
        name="messages lost, doubled, delayed",
        play=messages_misbehave,
        bound=bounds.failed_ballot(BOUNDS) + bounds.failed_ballot(BOUNDS),
    ),
    Schedule(group="deciding", name="two candidates active", play=two_are_active, bound=bounds.failed_ballot(BOUNDS)),
    Schedule(
        group="deciding", name="all attempts of a part fail", play=all_attempts_fail, bound=bounds.failed_ballot(BOUNDS)
    ),
    *(
        Schedule(
            group="deciding",
            name="a candidate lies",
            stage=stage,
            play=a_candidate_lies(lie),
            bound=bounds.failed_ballot(BOUNDS),
        )
        for stage, lie in LIES.items()
    ),
]
