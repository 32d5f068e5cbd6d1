"""peer_program.py with a fate: it may strike itself at an exact point of a round, listens at a chosen port, tries again
while nobody answers, has other bounds, and notes its tokens and rounds.

    python struck_peer.py NAME FOLDER … --strike SIGKILL 6 "before plan"
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import peer_program
from fault_stages import COORDINATOR_STAGES, REDUCER_STAGES
from small_swarm import SmallPeer, normal_values
from strikes import Strike
from swarm_diloco.errors import PeerUnreachable
from swarm_diloco.network.hivemind_network import HivemindNetwork
from swarm_diloco.network.interface import Network
from swarm_diloco.rounds.contribution import Contribution
from swarm_diloco.rounds.follower import Applied

RETRY_SECONDS = 0.5


def split_arguments(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--strike", nargs=3, metavar=("SIGNAL", "ROUND", "STAGE"))
    parser.add_argument("--members", type=int, default=2, help="in the struck round's plan, at least")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--bound", nargs=2, action="append", default=[], metavar=("SETTING", "VALUE"))
    parser.add_argument("--sparse", action="store_true", help="half of the values are trained in round 1 alone")
    parser.add_argument("--step", type=float, default=0.2, help="seconds of training between two rounds")
    return parser.parse_known_args(arguments)


class NotingPeer(SmallPeer):
    """A line in the file `notes` for each contribution (against which round, tokens trained in all, those pending in
    it), for each round that is applied, and for each start.
    """

    is_sparse = False

    async def start(self, network: Network) -> None:
        self._note(started=True)
        await super().start(network)

    def contribution(self, base_round: int, tokens: int) -> Contribution:
        self._note(base_round=base_round, trained=self.trained, pending=tokens)
        made = super().contribution(base_round, tokens)
        if self.is_sparse:
            return made
        # A part of zeros has the same bytes in every round: all would hold it before it is sent.
        delta = normal_values(base_round * 1000 + len(self.name)) * 0.01
        return replace(made, delta=delta, norm=float(delta.norm()))

    def _on_applied(self, applied: Applied) -> None:
        self._note(applied=applied.commit.round)
        super()._on_applied(applied)

    def _note(self, **what: Any) -> None:
        with (self.folder / "notes").open("a") as file:
            file.write(json.dumps(what | {"at": time.monotonic()}) + "\n")


class PersistentNetwork:
    """Starts as HivemindNetwork does, at a chosen port, and again while no bootstrap peer answers, as the client."""

    port = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, *arguments: Any, listen: list[str], **options: Any) -> AsyncIterator[HivemindNetwork]:
        places = [address.replace("/tcp/0", f"/tcp/{cls.port}") for address in listen]
        async with contextlib.AsyncExitStack() as stack:
            while True:
                try:
                    starting = HivemindNetwork.start(*arguments, listen=places, **options)
                    network = await stack.enter_async_context(starting)
                    break
                except PeerUnreachable:
                    await asyncio.sleep(RETRY_SECONDS)
            yield network


def main() -> None:
    fate, sys.argv[1:] = split_arguments(sys.argv[1:])
    options = peer_program.arguments()
    bounds: dict[str, Any] = {name: float(value) for name, value in fate.bound}
    peer_program.FAST = replace(peer_program.FAST, **bounds)
    NotingPeer.is_sparse = fate.sparse
    PersistentNetwork.port = fate.port
    peer_program.HivemindNetwork = PersistentNetwork  # type: ignore[misc, assignment]

    def peer(*arguments: Any, step_seconds: float, **others: Any) -> NotingPeer:
        return NotingPeer(*arguments, step_seconds=fate.step, **others)

    peer_program.SmallPeer = peer  # type: ignore[misc, assignment]
    if fate.strike:
        name, round_, stage = fate.strike
        assert stage in COORDINATOR_STAGES + REDUCER_STAGES, f"no such stage: {stage}"
        note: Path = options.folder / "struck"
        Strike(signal.Signals[name], int(round_), stage, num_members=fate.members, note=note).install()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(options.flush)
    asyncio.run(peer_program.main(options))


if __name__ == "__main__":
    main()
