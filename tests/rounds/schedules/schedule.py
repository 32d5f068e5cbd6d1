"""What a schedule is, what one run of it gives, and the swarm that it plays with."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from schedules.peer import ScheduledPeer
from small_swarm import NUM_VALUES, QUICK, genesis_of, identity, rules_for
from swarm_diloco.diloco.ledger import Header
from swarm_diloco.diloco.records import hash_of
from swarm_diloco.errors import DataError
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedNetwork, SimulatedWorld
from swarm_diloco.rounds.settings import RoundSettings, RunRules

FOUR = ("boot", "ann", "ben", "cleo")
BOUNDS = replace(QUICK, snapshot_interval=8, deadline_ceiling_seconds=8)  # of all schedules that say nothing else
HOUR = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """What the settings promise, and in words why."""

    seconds: float
    why: str

    def __add__(self, other: "Bound") -> "Bound":
        return Bound(seconds=self.seconds + other.seconds, why=f"{self.why} + {other.why}")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A scenario of one group. `bound` holds from the fault to the decision at the last survivor."""

    group: str
    name: str
    stage: str = ""
    play: Callable[["Trial"], Awaitable[None]]
    bound: Bound
    names: tuple[str, ...] = FOUR
    rounds: RoundSettings = BOUNDS
    pace: str = "steps"
    limit_seconds: float = 2 * HOUR
    stalled_seconds: float = 0.0  # while nobody is there who could decide: a worker's wait may last so much longer
    num_values: int = NUM_VALUES
    most_seeds: int | None = None  # of a schedule that takes minutes; no test plays it
    measured: str = "fault to decision"  # what the seconds are of, that the bound is for

    @property
    def id(self) -> str:
        return "/".join(filter(None, (self.group, self.name, self.stage)))


def lines_of(chance: random.Random) -> LinkSettings:
    """A home's line: some delay, some disorder between streams, a clock that is wrong."""
    return LinkSettings(
        latency_seconds=chance.uniform(0.005, 0.08),
        jitter_seconds=chance.uniform(0.0, 0.05),
        loss_fraction=chance.choice((0.0, 0.0, 0.02)),
        clock_offset_milliseconds=chance.randint(-HOUR_MS, HOUR_MS),
    )


HOUR_MS = 3_600_000


@dataclass
class Trial:
    """One run of a schedule: its peers, its chance, and what is measured of the fault."""

    schedule: Schedule
    world: SimulatedWorld
    folder: Path
    seed: int
    is_short: bool = False  # for the tests, where a schedule counts rounds by the hundred
    rules: RunRules = field(init=False)
    peers: dict[str, ScheduledPeer] = field(default_factory=dict)
    chance: random.Random = field(init=False)
    may_train: asyncio.Event = field(default_factory=asyncio.Event)
    struck_at: float | None = None
    struck_round: int = 0
    seconds: float | None = None  # measured by the script itself
    struck: asyncio.Event = field(default_factory=asyncio.Event)
    notes: list[str] = field(default_factory=list)  # what a script has to say of its run
    num_starts_in_vain: int = 0
    dead: set[str] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        rules = rules_for(
            self.schedule.rounds,
            pace=self.schedule.pace,  # type: ignore[arg-type]
            num_values=self.schedule.num_values,
        )
        run_id = hash_of(f"{self.schedule.id} {self.seed}".encode())  # another order of candidates each time
        self.rules = replace(rules, run_id=run_id)
        self.make_genesis()

    def make_genesis(self) -> None:
        self.genesis = self.genesis_for(self.rules)

    @staticmethod
    def genesis_for(rules: RunRules) -> bytes:
        return genesis_of(rules, [identity("boot").peer])

    # --- who is there

    def peer(self, name: str, **settings: object) -> ScheduledPeer:
        """A peer that is not started yet."""
        peer = ScheduledPeer(name, self.folder / name, self.rules, self.genesis, **settings)  # type: ignore[arg-type]
        if name == "boot":
            peer.trains = False
            peer.has_first_state()
        else:
            peer.donors = [identity("boot").peer]
            if "step_seconds" not in settings:
                peer.step_seconds = self.chance.uniform(0.8, 1.2)
        peer._chance = random.Random(self.chance.random())
        self.peers[name] = peer
        return peer

    async def start(self, *names: str, link: LinkSettings | None = None) -> None:
        for name in names:
            peer = self.peers[name] if name in self.peers else self.peer(name)
            await peer.start(self.world.network(peer.identity, link or lines_of(self.chance)))

    async def begin(self, links: Mapping[str, LinkSettings] | None = None, *, link: LinkSettings | None = None) -> None:
        """All are there before the first round, so that its commit lists them."""
        for name in self.schedule.names:
            peer = self.peers[name] if name in self.peers else self.peer(name)
            peer.may_train = peer.may_train or self.may_train
            await self.start(name, link=(links or {}).get(name, link))
        self.may_train.set()

    def named(self, peer_id: str) -> ScheduledPeer:
        return next(peer for peer in self.peers.values() if peer.peer == peer_id)

    @property
    def alive(self) -> list[ScheduledPeer]:
        return [peer for peer in self.peers.values() if peer.name not in self.dead and peer.follower is not None]

    async def reach(self, round_: int, peers: Iterable[ScheduledPeer] | None = None) -> None:
        for peer in self.alive if peers is None else peers:
            await peer.reached(round_)

    @property
    def head(self) -> int:
        return max(peer.follower.log.head.round for peer in self.peers.values() if peer.follower)

    async def further(self, num_rounds: int, peers: Sequence[ScheduledPeer] | None = None) -> None:
        await self.reach(self.head + num_rounds, peers)

    def header(self, round_: int) -> Header:
        for peer in self.peers.values():
            if peer.follower is not None and peer.follower.log.head.round >= round_:
                return Header.decode(peer.follower.log.header_bytes(round_))
        raise IndexError(f"nobody has decided round {round_}")

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def usual_seconds(self) -> float:
        """What a round may take before its fault: patience for the slowest worker, then plan to decision."""
        rounds = self.rules.rounds
        return rounds.opening_seconds + rounds.deadline_seconds + self.schedule.stalled_seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    # --- faults

    def strike(self, round_: int | None = None) -> None:
        """The fault is now: what is measured begins here."""
        self.struck_at = self.now
        self.struck_round = self.head + 1 if round_ is None else round_
        self.struck.set()

    def kill(self, peer: ScheduledPeer, *, silently: bool = False, flushes: bool = False) -> None:
        """SIGKILL, or `silently` the machine's power: from within the peer's own code too."""
        self.world.crash(peer.peer, silently=silently, flushes=flushes)
        self.dead.add(peer.name)
        peer.away.append((self.now, float("inf")))
        self.run_aside(peer.stop())

    def freeze(self, peer: ScheduledPeer, seconds: float | None = None) -> None:
        """SIGSTOP, or a laptop's sleep: for so long, or until `thaw`."""
        self.world.freeze(peer.peer)
        self.dead.add(peer.name)
        peer.away.append((self.now, float("inf")))
        if seconds is not None:
            self.run_aside(self._thaw_after(peer, seconds))

    def thaw(self, peer: ScheduledPeer) -> None:
        self.world.thaw(peer.peer)
        self.dead.discard(peer.name)
        peer.away[-1] = (peer.away[-1][0], self.now)

    async def _thaw_after(self, peer: ScheduledPeer, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.thaw(peer)

    async def restart(self, peer: ScheduledPeer) -> None:
        """From its disk."""
        await peer.stop()
        peer.donors = [other.peer for other in self.alive]
        peer.away[-1] = (peer.away[-1][0], self.now)
        self.dead.discard(peer.name)
        await self.start_until_it_works(peer, self.world.restart(peer.peer))

    async def start_until_it_works(self, peer: ScheduledPeer, network: SimulatedNetwork) -> None:
        """While nobody can give it the run's state it says so, and whoever runs it starts it again."""
        while True:
            try:
                await peer.start(network)
                return
            except DataError:
                self.num_starts_in_vain += 1
                self.world.crash(peer.peer)
                await asyncio.sleep(1)
                network = self.world.restart(peer.peer)

    async def until_listed(self, peer: ScheduledPeer, since: int) -> int:
        """The first round after `since` whose commit has this worker's work."""
        round_ = since + 1
        while True:
            await self.reach(round_, [other for other in self.alive if other is not peer][:1] or [peer])
            member = self.header(round_).commit().member(peer.peer)
            if member is not None and member.tokens:
                return round_
            round_ += 1

    def run_aside(self, work: Awaitable[None]) -> None:
        """What goes on beside the script; `end` waits for it."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)  # type: ignore[arg-type]

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for peer in self.peers.values():
            await peer.stop()
