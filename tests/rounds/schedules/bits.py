"""*Bits*: who dies in the middle of a part, in what order parts come, large weights, manifests spelled in two ways."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from hostile_peer import send_bytes
from schedules import bounds
from schedules.deciding import BACK_AFTER_SECONDS, FURTHER_ROUNDS, first_round
from schedules.faults import Aim
from schedules.peer import ScheduledPeer
from schedules.schedule import BOUNDS, Schedule, Trial, lines_of
from swarm_diloco.diloco.aggregate import aggregate
from swarm_diloco.diloco.codec import codec
from swarm_diloco.diloco.ledger import MAX_TOKENS
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.errors import DataError
from swarm_diloco.rounds import butterfly
from swarm_diloco.rounds.butterfly import Butterfly
from swarm_diloco.rounds.part_frame import PartFrame
from swarm_diloco.rounds.part_sender import PartSender

# --- a sender that dies


@contextmanager
def at_tenth(trial: Trial, tenth: int, name: str, *, first: int) -> Iterator[None]:
    """The sender dies when so many tenths of its first part are out; what is out still comes."""

    def hit(victim: ScheduledPeer) -> bool:
        trial.kill(victim, flushes=True)
        return False

    aim, send = Aim(trial, hit, first), PartSender._send

    async def struck(sender: PartSender, frame: PartFrame) -> None:
        exchange: Butterfly = sender._frame_of.__self__  # type: ignore[attr-defined]
        plan, round_ = exchange._plan, exchange._hello.round
        is_victims = sender._is_contribution and exchange._network.peer == trial.peers[name].peer
        if is_victims and plan is not None and aim.is_due(round_, len(plan.members)):
            data = frame.encode()
            places = [len(data) * number // 10 for number in range(tenth + 1)]
            for start, end in pairwise(places):
                send_bytes(sender._stream, data, start, end)  # type: ignore[arg-type]
            await aim.strikes_within(exchange._network.peer, round_)
        await send(sender, frame)

    with patch.object(PartSender, "_send", struck):
        yield


def sender_dies(tenth: int) -> Callable[[Trial], Awaitable[None]]:
    async def play(trial: Trial) -> None:
        with at_tenth(trial, tenth, "cleo", first=first_round(trial)):
            await trial.begin()
            await trial.struck.wait()
            await trial.reach(trial.struck_round)
            await trial.sleep(BACK_AFTER_SECONDS)
            await trial.restart(trial.peers["cleo"])
            await trial.further(FURTHER_ROUNDS)

    return play


# --- the order of arrival


@contextmanager
def orders_of_arrival(orders: set[tuple[int, ...]]) -> Iterator[None]:
    """Every part that is averaged is averaged once more, from what came, in plan order."""
    reduce = Butterfly._reduce

    async def checked(exchange: Butterfly, key: tuple[int, int], reduction: Any) -> None:
        assert exchange._plan is not None
        inputs, members = dict(reduction.inputs), exchange._plan.members
        place = {peer: number for number, (peer, _) in enumerate(members)}
        orders.add(tuple(place[peer] for peer in inputs))
        await reduce(exchange, key, reduction)
        senders = sorted(inputs, key=place.__getitem__)
        weights = [members[place[peer]][1] for peer in senders]
        values = [inputs[peer] for peer in senders]
        expected = butterfly._average(exchange._rules, values, weights, exchange._part_sizes[key[0]])
        assert exchange._sealed[key] == hash_of(expected)

    with patch.object(Butterfly, "_reduce", checked):
        yield


async def orders_permuted(trial: Trial) -> None:
    """Whoever comes first: the sum is in plan order."""
    orders: set[tuple[int, ...]] = set()
    link = replace(lines_of(trial.chance), jitter_seconds=0.3)
    with orders_of_arrival(orders):
        await trial.begin(link=link)
        trial.strike(1)
        await trial.reach(8)
    trial.notes.append(f"{len(orders)} orders")
    assert len(orders) >= 3


# --- weights

WEIGHTS = {"ann": 1, "ben": 2**24 + 1, "cleo": BOUNDS.maximum_weight}


async def large_weights(trial: Trial) -> None:
    """An archive's 0, one that float32 cannot hold, the manifest's largest: counted to the token."""
    shares_are_exact()
    for name in trial.schedule.names:
        trial.peer(name, weight=WEIGHTS.get(name, 0))
    await trial.begin()
    trial.strike(1)
    await trial.reach(8)
    assert trial.header(8).commit().tokens == sum(WEIGHTS.values())


def shares_are_exact() -> None:
    """Each share is the true quotient rounded to float64 and then to float32, up to sums near 2^53."""
    identity = codec("float32", 256)
    for weights in ([1, MAX_TOKENS - 1], [2**24 + 1, 2**24 + 3], [2**52, 2**51, 2**51 - 1]):
        total = sum(weights)
        assert total <= MAX_TOKENS
        ones = identity.encode(torch.ones(4))
        zeros = identity.encode(torch.zeros(4))
        for number, weight in enumerate(weights):
            inputs = [ones if other == number else zeros for other in range(len(weights))]
            share = aggregate(inputs, weights, identity, 4)[0].item()
            assert share == float(np.float32(float(Fraction(weight, total))))


# --- manifests

SPELLINGS = {
    "1 and 1.0": ("outer_lr = 1\n", "outer_lr = 1.0\n"),
    "NFC and NFD": ('name = "caf\u00e9"\n', 'name = "cafe\u0301"\n'),
    "reordered keys": ("a = 1\nb = 2\n", "b = 2\na = 1\n"),
}


def two_spellings(one: str, other: str) -> Callable[[Trial], Awaitable[None]]:
    """The run id is the hash of the published bytes: whoever has others is in another run, and nobody is harmed."""

    async def play(trial: Trial) -> None:
        trial.rules = replace(trial.rules, run_id=hash_of(one.encode()))
        trial.make_genesis()
        await trial.begin()
        await trial.reach(2)
        trial.strike()
        stranger = trial.peer("eli")
        stranger.rules = replace(trial.rules, run_id=hash_of(other.encode()))
        assert stranger.rules.run_id != trial.rules.run_id
        stranger.genesis = trial.genesis_for(stranger.rules)
        del trial.peers["eli"]
        try:
            await stranger.start(trial.world.network(stranger.identity))
        except DataError:
            trial.notes.append("the other spelling finds nobody")
        else:
            raise AssertionError("peers of two runs have met")
        await trial.further(4)

    return play


GROUP = "bits"
SCHEDULES = [
    *(
        Schedule(
            group=GROUP,
            name="a sender dies in the middle of a part",
            stage=f"at {tenth} tenths",
            play=sender_dies(tenth),
            bound=bounds.next_ballot(BOUNDS),
        )
        for tenth in range(10)
    ),
    Schedule(group=GROUP, name="arrival orders permuted", play=orders_permuted, bound=bounds.next_ballot(BOUNDS)),
    Schedule(group=GROUP, name="weights 0, 1, 2^24 + 1, 2^40", play=large_weights, bound=bounds.next_ballot(BOUNDS)),
    *(
        Schedule(
            group=GROUP,
            name="manifests spelled in two ways",
            stage=stage,
            play=two_spellings(*spellings),
            bound=bounds.next_ballot(BOUNDS),
        )
        for stage, spellings in SPELLINGS.items()
    ),
]
