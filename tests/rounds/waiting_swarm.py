"""A swarm whose rounds are timed in virtual seconds: what one peer's slowness or silence costs the others."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from small_swarm import SmallPeer, assert_all_work_counts_once, assert_one_log, genesis_of, identity, rules_for
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedWorld, run_virtual
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


@dataclass
class TimedSwarm:
    """A bootstrap peer and workers whose rounds come every PERIOD_SECONDS."""

    peers: list[SmallPeer]
    decided_at: dict[int, float] = field(default_factory=dict)  # at the bootstrap peer, by round

    @classmethod
    def make(cls, folder: Path, names: Sequence[str], rules: RunRules) -> "TimedSwarm":
        genesis = genesis_of(rules, [identity("boot").peer])
        boot = SmallPeer("boot", folder / "boot", rules, genesis, trains=False)
        boot.has_first_state()
        workers = [SmallPeer(name, folder / name, rules, genesis, donors=[boot.peer]) for name in names]
        for worker in workers:
            worker.step_seconds, worker.keeps_time = PERIOD_SECONDS, True
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
    ) -> None:
        """Newcomers begin to train after round 2, when the others' lines are known."""

        async def scenario(world: SimulatedWorld) -> None:
            for peer in self.peers:
                await peer.start(world.network(peer.identity))
            for peer in self.peers:  # all have the first state
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

        run_virtual(scenario, seed=1, limit_seconds=2 * num_rounds * PERIOD_SECONDS + 1000)
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
