"""A swarm whose rounds are timed in virtual seconds: what one peer's slowness or silence costs the others."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from small_swarm import SmallPeer, assert_all_work_counts_once, assert_one_log, genesis_of, identity, rules_for
from swarm_diloco.errors import StreamTimeout
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedNetwork, SimulatedWorld, run_virtual
from swarm_diloco.rounds.follower import Applied
from swarm_diloco.rounds.log import Log
from swarm_diloco.rounds.settings import RoundSettings, RunRules

FAST = LinkSettings(up_bytes_per_second=80_000, down_bytes_per_second=640_000)
SLOW = LinkSettings(up_bytes_per_second=4_000, down_bytes_per_second=640_000)  # as 1 Mbit/s up among 20
DEFAULTS = RoundSettings()
PERIOD_SECONDS = 300.0


NUM_VALUES = 800_000  # up in 5 s on a FAST line, in 100 s on a SLOW one; a part there in a second


def timed_rules() -> RunRules:
    return rules_for(replace(DEFAULTS, part_values=8192), pace="time", num_values=NUM_VALUES)


class Trickle:
    """A stream of parts on which frames go out so slowly that none is ever through. The rest is the stream's own."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.peer = stream.peer
        self.receive, self.close = stream.receive, stream.close
        self._has_greeted = False

    async def send(self, frame: bytes, *, timeout_seconds: float) -> None:
        if not self._has_greeted:
            self._has_greeted = True
            await self._stream.send(frame, timeout_seconds=timeout_seconds)
            return
        await asyncio.sleep(min(float(len(frame)), timeout_seconds))  # a byte a second
        raise StreamTimeout("it took too long")


class TricklingNetwork:
    """A peer's network that lets everything through but its contributions."""

    def __init__(self, network: SimulatedNetwork, parts_protocol: str) -> None:
        self._network, self._parts_protocol = network, parts_protocol

    def __getattr__(self, name: str) -> object:
        return getattr(self._network, name)

    async def dial(self, peer: str, protocol: str, *, timeout_seconds: float) -> Stream:
        stream = await self._network.dial(peer, protocol, timeout_seconds=timeout_seconds)
        return Trickle(stream) if protocol == self._parts_protocol else stream


class Flicker(SmallPeer):
    """Takes part in every second round, and is there all the while."""

    async def _train(self) -> None:
        assert self.follower is not None
        if self.follower.log.head.round % 2 == 0:
            await self.follower.wait_past(self.follower.log.head.round)
        await super()._train()


@dataclass
class TimedSwarm:
    """A bootstrap peer and workers whose rounds come every PERIOD_SECONDS."""

    peers: list[SmallPeer]
    decided_at: dict[int, float] = field(default_factory=dict)  # at the bootstrap peer, by round

    @classmethod
    def make(
        cls, folder: Path, names: Sequence[str], rules: RunRules, *, period_seconds: float = PERIOD_SECONDS
    ) -> "TimedSwarm":
        genesis = genesis_of(rules, [identity("boot").peer])
        boot = SmallPeer("boot", folder / "boot", rules, genesis, trains=False)
        boot.has_first_state()
        workers = [
            (Flicker if name == "flicker" else SmallPeer)(name, folder / name, rules, genesis, donors=[boot.peer])
            for name in names
        ]
        for worker in workers:
            worker.step_seconds, worker.keeps_time = period_seconds, True
            worker.may_train = asyncio.Event()
        swarm = cls([boot, *workers])
        boot.listener = swarm._note
        return swarm

    def _note(self, applied: Applied) -> None:
        self.decided_at[applied.commit.round] = asyncio.get_running_loop().time()

    def play(
        self,
        num_rounds: int,
        *,
        links: dict[str, LinkSettings] | None = None,
        newcomers: Collection[str] = (),
        trickling: Collection[str] = (),
        quick: bool = False,
    ) -> None:
        """Newcomers begin to train after round 2, when the others' lines are known.

        All lines are FAST or as `links` says, or without any limit if they are to be `quick`.
        """

        async def scenario(world: SimulatedWorld) -> None:
            for peer in self.peers:
                network = world.network(peer.identity)
                trickles = peer.name in trickling
                await peer.start(TricklingNetwork(network, peer.rules.parts_protocol) if trickles else network)  # type: ignore[arg-type]
            for peer in self.peers:  # all have the first state
                if not quick:
                    world.networks[peer.peer].link = (links or {}).get(peer.name, FAST)
                if peer.may_train is not None and peer.name not in newcomers:
                    peer.may_train.set()
            if newcomers:
                await self.peers[0].reached(2)
                for peer in self.peers:
                    if peer.may_train is not None:
                        peer.may_train.set()
            await self.peers[0].reached(num_rounds)
            for peer in self.peers:
                await peer.stop()

        run_virtual(scenario, seed=1, limit_seconds=3 * num_rounds * self.peers[-1].step_seconds)
        assert_one_log(self.peers)
        assert_all_work_counts_once(self.peers)

    @property
    def log(self) -> Log:
        assert self.peers[0].follower is not None
        return self.peers[0].follower.log

    def round_seconds(self, first: int, last: int) -> list[float]:
        """From due to decided, of each round."""
        log = self.log
        return [
            self.decided_at[round_] - self.decided_at[round_ - 1] - log.commit(round_ - 1).next_due_ms / 1000
            for round_ in range(first, last + 1)
        ]
