"""Peers with the real engine and made-up pseudo-gradients, over any network: what the tests of rounds/ are made of."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch

from swarm_diloco.diloco.codec import CodecSettings
from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.diloco.ledger import Commit, DataRange, Header, Kind, Member, Vote, genesis_message
from swarm_diloco.diloco.outer_optimizer import OuterSettings
from swarm_diloco.diloco.records import HASH_BYTES, hash_of
from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.errors import DataError
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Network
from swarm_diloco.network.simulated_network import SimulatedWorld, run_virtual
from swarm_diloco.rounds.contribution import Contribution
from swarm_diloco.rounds.engine import Engine, Outcome
from swarm_diloco.rounds.follower import Applied, Follower
from swarm_diloco.rounds.library import RunFiles
from swarm_diloco.rounds.replica import Replica, fragment_base
from swarm_diloco.rounds.settings import RoundSettings, RunRules
from swarm_diloco.rounds.snapshot import write_snapshot

NUM_VALUES = 5000
QUICK = RoundSettings(
    part_values=1024,
    snapshot_interval=4,
    opening_seconds=5,
    deadline_seconds=8,
    deadline_floor_seconds=6,
    deadline_ceiling_seconds=20,
    degraded_seconds=20,
    alone_seconds=100,
    greeting_seconds=10,
    heartbeat_seconds=0.5,
    silence_seconds=3,
)


FAST = replace(QUICK, opening_seconds=2, deadline_seconds=6, deadline_floor_seconds=4, snapshot_interval=8)


def identity(name: str) -> Identity:
    return Identity.from_seed(hashlib.sha256(name.encode()).digest())


def rules_for(
    rounds: RoundSettings = QUICK,
    codec: CodecSettings | None = None,
    outer: OuterSettings | None = None,
    pace: Literal["steps", "time"] = "steps",
    num_values: int = NUM_VALUES,
) -> RunRules:
    layout = ParameterLayout.of([("weight", (num_values,))])
    return RunRules(
        run_id=hash_of(b"the run"),
        operator_key=identity("operator").public_key,
        layout=layout,
        codec=codec or CodecSettings(),
        outer=outer or OuterSettings(),
        schedule=ScheduleSettings(inner_steps=10, pace=pace),
        rounds=rounds,
    )


def first_state(num_values: int = NUM_VALUES) -> tuple[torch.Tensor, torch.Tensor]:
    return normal_values(7, num_values), torch.zeros(num_values)


def normal_values(seed: int, num_values: int = NUM_VALUES) -> torch.Tensor:
    """The same on all machines: torch's own generator gives other bits under another ATEN_CPU_CAPABILITY."""
    return _normal_values(seed).repeat(-(-num_values // NUM_VALUES))[:num_values]


@lru_cache(maxsize=256)
def _normal_values(seed: int) -> torch.Tensor:
    chance = random.Random(seed)
    return torch.tensor([chance.gauss(0, 1) for _ in range(NUM_VALUES)])


def genesis_of(rules: RunRules, bootstrap: Sequence[str]) -> bytes:
    theta, momentum = first_state(rules.layout.num_values)
    members = tuple(Member(peer, 0, 0, 0, True, (), bytes(HASH_BYTES)) for peer in bootstrap)
    commit = Commit(
        run=rules.run_id,
        round=0,
        fragment=0,
        prev=bytes(HASH_BYTES),
        kind=Kind.GENESIS,
        base=fragment_base(theta, momentum),
        members=members,
        parts=(),
        next_due_ms=0,
        wall_ms=0,
    ).encode()
    operator = identity("operator")
    return Header(commit, 0, (Vote(operator.peer, operator.sign(genesis_message(commit))),)).encode()


@dataclass
class SmallPeer:
    """One peer's process: log and votes in `folder`, an engine while it runs."""

    name: str
    folder: Path
    rules: RunRules
    genesis: bytes
    trains: bool = True
    weight: int = 100
    step_seconds: float = 1.0  # of training between two rounds
    keeps_time: bool = False  # train until the round is due, however late the last one's result came
    is_reachable: bool = True
    trained: int = 0  # tokens, all
    credited: int = 0
    states: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # round -> digest, base after it
    outcomes: list[Outcome] = field(default_factory=list)
    engine: Engine | None = None
    follower: Follower | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    max_rounds: int | None = None
    donors: Sequence[str] = ()
    listener: Callable[[Applied], None] = lambda _: None
    may_train: asyncio.Event | None = None  # workers begin together

    def __post_init__(self) -> None:
        self.identity = identity(self.name)
        self.peer = self.identity.peer

    def has_first_state(self) -> None:
        """Be the operator's machine: θ_0 lies on the disk."""
        theta, momentum = first_state(self.rules.layout.num_values)
        digest = Header.decode(self.genesis).digest
        write_snapshot(
            self.folder / "snapshots" / "0",
            run=self.rules.run_id,
            round_=0,
            digest=digest,
            theta=theta,
            momentum=momentum,
            applied=[0],
        )

    async def start(self, network: Network) -> None:
        num_values = self.rules.layout.num_values
        replica = Replica(self.rules, torch.zeros(num_values), torch.zeros(num_values))
        published = RunFiles(b"manifest", self.genesis, {})
        self.follower = Follower(network, self.rules, published, self.folder, replica)
        self.follower.subscribe(self._on_applied)
        await self.follower.load()
        with suppress(DataError):  # of parts that are not here
            await self.follower.apply_recorded([])
        if self.donors:
            await self.follower.catch_up(self.donors)
        self.engine = Engine(
            network,
            self.identity,
            self.rules,
            self.follower,
            self.folder / "votes",
            trains=self.trains,
            is_reachable=self.is_reachable,
        )
        self.tasks = [asyncio.create_task(self.engine.run())]
        if self.trains:
            self.tasks.append(asyncio.create_task(self._work()))

    def _on_applied(self, applied: Applied) -> None:
        self.states[applied.commit.round] = (applied.digest, applied.state_hash)
        self.listener(applied)

    async def _work(self) -> None:
        """What a worker and its trainer do, without a model: train for a while, bring a Δ, keep what was not listed."""
        assert self.engine is not None
        assert self.follower is not None
        self.credited = self.follower.log.totals.tokens_by_peer[self.peer]  # also what was decided as it crashed
        self.trained = max(self.trained, self.credited)  # a new process does not know what the one before it trained
        pending = self.trained - self.credited
        if self.may_train is not None:
            await self.may_train.wait()
        await self.engine.begin_training()
        while self.max_rounds is None or len(self.outcomes) < self.max_rounds:
            await self._train()
            self.trained += self.weight
            pending += self.weight
            base_round = self.follower.replica.round
            outcome = await self.engine.contribute(self.contribution(base_round, pending))
            pending = max(0, pending - outcome.credited_tokens)
            self.credited += outcome.credited_tokens
            self.outcomes.append(outcome)

    async def _train(self) -> None:
        assert self.follower is not None
        await asyncio.sleep(self.follower.seconds_until_due() if self.keeps_time else self.step_seconds)

    def contribution(self, base_round: int, tokens: int) -> Contribution:
        num_values = self.rules.layout.num_values
        delta = normal_values(base_round * 1000 + len(self.name), num_values) * 0.01
        if base_round > 1:
            delta[num_values // 2 :] = 0  # rows trained in two rounds only: their momentum becomes tiny
        ranges = (DataRange(0, sum(self.name.encode()), self.credited, self.credited + tokens),)
        return Contribution(
            delta=delta,
            base_round=base_round,
            weight=self.weight,
            tokens=tokens,
            ranges=ranges,
            norm=float(delta.norm()),
            step_seconds=self.step_seconds / 10,
        )

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []

    async def reached(self, round_: int) -> None:
        """Until this peer has applied the round; an engine that ended raises here."""
        assert self.follower is not None
        waiting = asyncio.create_task(self._until(round_))
        try:
            await asyncio.wait({waiting, *self.tasks}, return_when=asyncio.FIRST_COMPLETED)
            while not waiting.done():
                for task in self.tasks:
                    if task.done() and task.exception():
                        raise task.exception()  # type: ignore[misc]
                await asyncio.wait({waiting, *(t for t in self.tasks if not t.done())}, return_when="FIRST_COMPLETED")
            await waiting
        finally:
            waiting.cancel()

    async def _until(self, round_: int) -> None:
        assert self.follower is not None
        await self.follower.wait_past(round_ - 1)
        while self.follower.replica.round < round_:
            await asyncio.sleep(0.01)


def assert_all_work_counts_once(peers: Sequence[SmallPeer]) -> None:
    """What the newest log credits a worker with is what it knows of, and none of it twice: the rest is pending."""
    logs = [peer.follower.log for peer in peers if peer.follower is not None]
    newest = max(logs, key=lambda log: log.head.round)
    for peer in peers:
        credited = newest.totals.tokens_by_peer[peer.peer]
        if peer.trains:
            assert peer.credited <= credited <= peer.trained, (
                f"{peer.name}: {peer.credited}, {credited}, {peer.trained}"
            )
        assert credited == newest.totals.counters.get(peer.peer, 0), f"{peer.name}: its ranges do not join on"


async def until_phase(peer: SmallPeer, round_: int, phase: str) -> None:
    assert peer.engine is not None
    while True:
        status = peer.engine.status()
        if status.open_round == round_ and status.phase == phase:
            return
        assert status.round < round_, f"{peer.name} was never {phase} in round {round_}"
        await asyncio.sleep(0.002)


def assert_one_log(peers: Sequence[SmallPeer]) -> None:
    """No two peers hold different digests or bases for one round."""
    seen: dict[int, tuple[bytes, bytes]] = {}
    for peer in peers:
        for round_, state in peer.states.items():
            assert seen.setdefault(round_, state) == state, f"round {round_}: {peer.name} differs"


def played(folder: Path, num_rounds: int, *, rules: RunRules | None = None) -> list[SmallPeer]:
    """A bootstrap peer and a worker that have done so many rounds and stopped: real logs, parts and snapshots."""
    rules = rules or rules_for()
    genesis = genesis_of(rules, [identity("boot").peer])
    peers = [SmallPeer(name, folder / name, rules, genesis) for name in ("boot", "ann")]
    peers[0].trains = False
    peers[0].has_first_state()
    peers[1].donors = [peers[0].peer]
    peers[1].max_rounds = num_rounds

    async def scenario(world: SimulatedWorld) -> None:
        for peer in peers:
            await peer.start(world.network(peer.identity))
        for peer in peers:
            await peer.reached(num_rounds)
        for peer in peers:
            await peer.stop()

    run_virtual(scenario, seed=1, limit_seconds=100 + 10 * num_rounds)
    return peers
