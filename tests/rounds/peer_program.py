"""One peer of a small swarm as a process of its own, over real hivemind: the real engine, made-up pseudo-gradients.

    python peer_program.py NAME FOLDER --bootstrap ADDRESS… [--die ROUND PHASE] …

Prints a JSON line for each round that it has applied; ends after --rounds of them, or by SIGKILL of itself when its own
session is in PHASE of ROUND (how a peer dies at a chosen moment, whatever the machine's speed).

With --values it has so many, the settings of home links and pace "time", a round every --period seconds, and each line
says when the peer passed the round's stations (timeline.py).
"""

import argparse
import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import torch
import uvloop

from small_swarm import FAST, SmallPeer, genesis_of, identity, rules_for
from swarm_diloco.diloco.ledger import Commit, listed_values
from swarm_diloco.diloco.outer_optimizer import OuterSettings
from swarm_diloco.network.hivemind_network import HivemindNetwork
from swarm_diloco.network.interface import Network
from swarm_diloco.rounds import replica
from swarm_diloco.rounds.contribution import Contribution
from swarm_diloco.rounds.follower import Applied
from swarm_diloco.rounds.settings import RoundSettings, RunRules
from timeline import Timeline


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bootstrap", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--die", nargs=2, metavar=("ROUND", "PHASE"))
    parser.add_argument("--stop", nargs=2, metavar=("ROUND", "PHASE"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--flush", action="store_true")
    parser.add_argument("--momentum", type=float)
    parser.add_argument("--sgd", action="store_true", help="the outer step by torch.optim.SGD, which must not do")
    parser.add_argument("--listen", default="127.0.0.1", help="the address to listen at")
    parser.add_argument("--founds", action="store_true", help="boot trains as well")
    parser.add_argument("--values", type=int)
    parser.add_argument("--part-values", type=int, default=RoundSettings().part_values)
    parser.add_argument("--period", type=float, default=10.0)
    return parser.parse_args()


def use_sgd(settings: OuterSettings) -> None:
    """Replace the exact outer step by torch's optimizer."""

    def step(theta: torch.Tensor, momentum: torch.Tensor, delta: torch.Tensor, *_: object) -> None:
        parameter = torch.nn.Parameter(theta)
        optimizer = torch.optim.SGD([parameter], settings.learning_rate, settings.momentum, nesterov=True)
        optimizer.state[parameter]["momentum_buffer"] = momentum
        parameter.grad = delta
        optimizer.step()

    replica.outer_step_ = step  # type: ignore[attr-defined]


class TimedPeer(SmallPeer):
    """Trains until the round is due, as a worker with pace "time" does."""

    due_round = 0
    made: Contribution | None = None
    became_due: asyncio.Event

    async def start(self, network: Network) -> None:
        self.became_due = asyncio.Event()
        await super().start(network)
        assert self.engine is not None
        self.engine.on_due(self._on_due)

    def _on_due(self, round_: int) -> None:
        self.due_round = round_
        self.became_due.set()

    async def _until_due(self) -> None:
        assert self.follower is not None
        log = self.follower.log
        while self.due_round <= log.head.round and log.commit(log.head.round).next_due_ms:
            self.became_due.clear()
            await self.became_due.wait()

    async def _work(self) -> None:
        assert self.engine is not None
        assert self.follower is not None
        assert self.may_train is not None
        await self.may_train.wait()
        await self.engine.begin_training()
        pending = 0
        while True:
            await self._until_due()
            self.trained += self.weight
            pending += self.weight
            outcome = await self.engine.contribute(self.contribution(self.follower.replica.round, pending))
            pending = max(0, pending - outcome.credited_tokens)
            self.credited += outcome.credited_tokens

    def contribution(self, base_round: int, tokens: int) -> Contribution:
        """The same Δ, scaled: to make one up takes a second of a large model's processor time."""
        if self.made is None:
            self.made = super().contribution(0, tokens)
        return replace(
            self.made,
            delta=self.made.delta * (1 + base_round / 1000),
            base_round=base_round,
            tokens=tokens,
            ranges=(replace(self.made.ranges[0], first=self.credited, end=self.credited + tokens),),
            step_seconds=self.step_seconds / self.rules.schedule.round_steps,
        )


def peer_of(options: argparse.Namespace) -> SmallPeer:
    outer = OuterSettings() if options.momentum is None else OuterSettings(momentum=options.momentum, momentum_ramp=0)
    if options.sgd:
        use_sgd(outer)
    kind, rules, period = SmallPeer, rules_for(FAST, outer=outer), 0.2
    if options.values:
        home = RoundSettings(part_values=options.part_values)
        rules = rules_for(home, outer=outer, pace="time", num_values=options.values)
        kind, period = TimedPeer, options.period
    peer = kind(options.name, options.folder, rules, genesis_of(rules, [identity("boot").peer]), step_seconds=period)
    peer.trains = options.name != "boot" or options.founds
    return peer


def values_listed(commit: Commit, rules: RunRules) -> dict[str, float]:
    """In how much of the fragment, of 1, each member's contribution is."""
    sizes = rules.part_sizes(commit.fragment)
    return {member.peer: listed_values(commit, member.peer, sizes) / sum(sizes) for member in commit.members}


async def main(options: argparse.Namespace) -> None:
    peer = peer_of(options)
    is_boot, rules = options.name == "boot", peer.rules
    options.folder.mkdir(parents=True, exist_ok=True)
    key = options.folder / "identity.key"
    peer.identity.save(key)
    if is_boot and not (options.folder / "snapshots").exists():
        peer.has_first_state()
    peer.donors = [address.rsplit("/", 1)[1] for address in options.bootstrap]
    async with HivemindNetwork.start(
        peer.identity,
        key,
        run_id=rules.run_id,
        runtime_folder=options.folder / "run",
        listen=[f"/ip4/{options.listen}/tcp/0"],
        initial_peers=options.bootstrap,
        client_mode=False,
    ) as network:
        peer.may_train = asyncio.Event()
        done = asyncio.Event()

        timeline = Timeline() if options.values else None

        def report(applied: Applied) -> None:
            commit, status = applied.commit, peer.engine.status() if peer.engine else None  # None: replays at its start
            state = (applied.state_hash if timeline else peer.follower.replica.state_hash()).hex()  # type: ignore[union-attr]
            listed = [
                member.peer for i, member in enumerate(commit.members) if commit.parts and commit.parts[0].lists(i)
            ]
            line = {"round": commit.round, "digest": applied.digest.hex(), "state": state, "listed": listed}
            line |= {"kind": commit.kind.name, "sent_bytes": status.sent_bytes if status else 0}
            line |= {"received_bytes": status.received_bytes if status else 0}
            if timeline:
                assert len({part.result_hash for part in commit.parts}) == len(commit.parts), "parts of equal bytes"
                line |= {"at": timeline.of(applied), "reduces": timeline.reduced_parts.get(peer.peer, 0)}
                line |= {
                    "upload_kilobits": timeline.upload_kilobits,
                    "values_listed": values_listed(commit, peer.rules),
                }
            print(json.dumps(line), flush=True)
            if commit.round >= options.rounds:
                done.set()

        peer.listener = report
        await peer.start(network)
        print(json.dumps({"address": f"{network.addresses()[0]}/p2p/{peer.peer}"}), flush=True)
        watching = asyncio.create_task(watch(peer, options))
        starting = asyncio.create_task(begin_together(peer, options))
        waiting = asyncio.create_task(done.wait())
        await asyncio.wait({waiting, watching, *peer.tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in peer.tasks:
            if task.done():
                task.result()
        await asyncio.sleep(1.0)  # who asks for the last round still finds it here
        for task in (waiting, watching, starting):
            task.cancel()
        await peer.stop()


async def begin_together(peer: SmallPeer, options: argparse.Namespace) -> None:
    while not (options.folder.parent / "go").exists():
        await asyncio.sleep(0.05)
    assert peer.may_train is not None
    peer.may_train.set()


async def watch(peer: SmallPeer, options: argparse.Namespace) -> None:
    for what, number in ((options.die, signal.SIGKILL), (options.stop, signal.SIGSTOP)):
        while what:
            status = peer.engine.status()  # type: ignore[union-attr]
            if status.open_round == int(what[0]) and status.phase == what[1]:
                os.kill(os.getpid(), number)
                break
            await asyncio.sleep(0 if status.open_round == int(what[0]) else 0.002)  # a phase may last a moment only
    await asyncio.Event().wait()


if __name__ == "__main__":
    chosen = arguments()
    torch.set_num_threads(chosen.threads)
    torch.set_flush_denormal(chosen.flush)
    if chosen.values:
        uvloop.run(main(chosen))  # as the apps do; the small swarms of the tests cover asyncio's own loop
    else:
        asyncio.run(main(chosen))
