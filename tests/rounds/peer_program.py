"""One peer of a small swarm as a process of its own, over real hivemind: the real engine, made-up pseudo-gradients.

    python peer_program.py NAME FOLDER --bootstrap ADDRESS… [--die ROUND PHASE] …

Prints a JSON line for each round that it has applied; ends after --rounds of them, or by SIGKILL of itself when its own
session is in PHASE of ROUND (how a peer dies at a chosen moment, whatever the machine's speed).
"""

import argparse
import asyncio
import json
import os
import signal
from pathlib import Path

import torch

from small_swarm import FAST, SmallPeer, genesis_of, identity, rules_for
from swarm_diloco.diloco.outer_optimizer import OuterSettings
from swarm_diloco.network.hivemind_network import HivemindNetwork
from swarm_diloco.rounds import replica
from swarm_diloco.rounds.follower import Applied


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


async def main(options: argparse.Namespace) -> None:
    outer = OuterSettings() if options.momentum is None else OuterSettings(momentum=options.momentum, momentum_ramp=0)
    rules = rules_for(FAST, outer=outer)
    if options.sgd:
        use_sgd(outer)
    is_boot = options.name == "boot"
    peer = SmallPeer(options.name, options.folder, rules, genesis_of(rules, [identity("boot").peer]), step_seconds=0.2)
    peer.trains = not is_boot
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
        listen=["/ip4/127.0.0.1/tcp/0"],
        initial_peers=options.bootstrap,
        client_mode=False,
    ) as network:
        peer.may_train = asyncio.Event()
        done = asyncio.Event()

        def report(applied: Applied) -> None:
            state = peer.follower.replica.state_hash().hex()  # type: ignore[union-attr]
            commit = applied.commit
            listed = [
                member.peer for i, member in enumerate(commit.members) if commit.parts and commit.parts[0].lists(i)
            ]
            line = {"round": commit.round, "digest": applied.digest.hex(), "state": state, "listed": listed}
            print(json.dumps(line | {"kind": commit.kind.name}), flush=True)
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
    asyncio.run(main(chosen))
