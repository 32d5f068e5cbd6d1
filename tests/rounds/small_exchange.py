"""Members of one exchange of parts over the simulated network: for the tests of rounds/butterfly."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from small_swarm import QUICK, identity, rules_for
from swarm_diloco.diloco.codec import CodecSettings
from swarm_diloco.diloco.ledger import member_bitmap
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.messages import Plan, PlannedPart, Sealed
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedNetwork, SimulatedWorld
from swarm_diloco.rounds.butterfly import Butterfly, Traffic
from swarm_diloco.rounds.contribution import encode_parts
from swarm_diloco.rounds.log import PartStore
from swarm_diloco.rounds.parts_stream import Hello

EXACT = CodecSettings(upload="float32", download="float32")
RULES = rules_for(replace(QUICK, maximum_norm=1000.0), codec=EXACT)
NUM_PARTS = len(RULES.part_sizes(0))
PREV = hash_of(b"the commit before")


@dataclass
class Member:
    """One peer's butterfly in ballot 0 of round 1."""

    name: str
    network: SimulatedNetwork
    butterfly: Butterfly
    parts: PartStore
    sealed: list[Sealed] = field(default_factory=list)
    held: set[bytes] = field(default_factory=set)
    running: asyncio.Task[None] | None = None
    encoded: list[bytes] | None = None

    @property
    def peer(self) -> str:
        return self.network.peer


async def join(
    world: SimulatedWorld,
    folder: Path,
    name: str,
    delta: torch.Tensor | None,
    link: LinkSettings | None = None,
    *,
    doubtful: Collection[str] = (),
) -> Member:
    network = world.network(identity(name), link or LinkSettings())
    parts, sealed, held = PartStore(folder / name), [], set()
    encoded = None if delta is None else encode_parts(RULES, 0, delta)
    butterfly = Butterfly(
        network,
        RULES,
        round_=1,
        ballot=0,
        prev=PREV,
        encoded=encoded,
        parts=parts,
        traffic=Traffic(),
        on_sealed=sealed.append,
        on_held=held.add,
        doubtful=doubtful,
    )

    async def accept(stream: Stream) -> None:
        Hello.decode(await stream.receive(timeout_seconds=5))
        await butterfly.accept(stream)

    await network.serve(RULES.parts_protocol, accept)
    member = Member(name, network, butterfly, parts, sealed, held, encoded=encoded)
    member.running = asyncio.create_task(butterfly.run())
    return member


def plan_of(members: list[Member], weights: list[int], reducers: list[int] | None = None, attempt: int = 0) -> Plan:
    order = reducers or list(range(len(members)))
    senders = member_bitmap([index for index, weight in enumerate(weights) if weight])
    return Plan(
        tuple((member.peer, weight) for member, weight in zip(members, weights, strict=True)),
        tuple(PlannedPart(order[part % len(order)], attempt, senders) for part in range(NUM_PARTS)),
        close_in_ms=4000,
        deadline_in_ms=8000,
    )


async def stop(members: list[Member]) -> None:
    for member in members:
        assert member.running is not None
        member.running.cancel()
    await asyncio.gather(*(m.running for m in members if m.running), return_exceptions=True)


async def until_all_hold(members: list[Member], num_parts: int = NUM_PARTS) -> None:
    while any(len(member.held) < num_parts for member in members):
        await asyncio.sleep(0.01)


def result_of(member: Member, sealed: list[Sealed]) -> torch.Tensor:
    """The averaged parts in order, decoded."""
    newest = {seal.part: seal for seal in sorted(sealed, key=lambda seal: seal.attempt)}
    sizes = RULES.part_sizes(0)
    datas = [member.parts.get(newest[part].result_hash) for part in range(NUM_PARTS)]
    return torch.cat([RULES.download.decode(data, size) for data, size in zip(datas, sizes, strict=True) if data])


def mean(deltas: list[torch.Tensor], weights: list[int]) -> torch.Tensor:
    total = sum(weights)
    return sum(delta.double() * weight / total for delta, weight in zip(deltas, weights, strict=True)).float()  # type: ignore[union-attr]
