"""One peer of a measured exchange as a process: `python exchange_peer.py butterfly|averager|gloo INDEX PEERS FOLDER`.

Reads commands as JSON lines from its input and answers each with a line: start, connect, prepare, go, take, check and
stop. What is measured runs from "go" to the answer to "take"; butterfly.py, which sends them, does the measuring.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import hivemind
import numpy as np
import numpy.typing as npt
import psutil
import torch
import uvloop
from blake3 import blake3
from hivemind.averaging.control import AveragingStage
from hivemind.compression import Float16Compression, NoCompression
from made_up_vectors import fill, give_back_memory, largest_error
from one_exchange import OneExchange, Vector, rules_of
from torch import distributed

from swarm_diloco.diloco.records import hash_of
from swarm_diloco.network.hivemind_network import HivemindNetwork
from swarm_diloco.network.identity import Identity

Command = dict[str, Any]
Answer = dict[str, Any]


def checked(mean: npt.NDArray[np.float32], num_peers: int) -> Answer:
    return {"hash": blake3(mean.view(np.uint8).data).hexdigest(), "error": largest_error(mean, num_peers)}


class GlooPeer:
    """torch.distributed's all-reduce: no peers that come and go, no encryption, for scale."""

    def __init__(self, index: int, num_peers: int, folder: Path) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        self._index, self._num_peers, self._folder = index, num_peers, folder
        self._vector = torch.empty(0)

    def handle(self, command: Command) -> Answer:
        match command["do"]:
            case "start":
                store = f"file://{self._folder}/gloo"
                distributed.init_process_group("gloo", init_method=store, rank=self._index, world_size=self._num_peers)
                return {"python": [os.getpid()], "p2pd": [], "memory": os.getpid(), "tcp": os.getpid()}
            case "prepare":
                self._vector = torch.empty(command["values"])
                fill(self._vector.numpy(), self._index)
                self._kind = {"float32": torch.float32, "float16": torch.float16}[command["upload"]]
                distributed.barrier()
            case "go":
                summed = self._vector.to(self._kind)
                distributed.all_reduce(summed)
                torch.div(summed, self._num_peers, out=summed)
                self._vector.copy_(summed)
            case "check":
                answer = checked(self._vector.numpy(), self._num_peers)
                self._vector = torch.empty(0)
                if command["last"]:
                    give_back_memory()
                return answer
            case "stop":
                distributed.destroy_process_group()
        return {}


class AveragerPeer:
    """hivemind's DecentralizedAverager, from the moment at which its group stands: matchmaking is not counted."""

    def __init__(self, index: int, num_peers: int, _folder: Path) -> None:
        self._index, self._num_peers = index, num_peers
        self._dht: Any = None
        self._averager: Any = None
        self._step: Any = None

    def handle(self, command: Command) -> Answer:
        match command["do"]:
            case "start":
                self._dht = hivemind.DHT(
                    initial_peers=command["initial"], host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True
                )
                return {"addresses": [str(address) for address in self._dht.get_visible_maddrs()]}
            case "prepare":
                return self._prepare(command)
            case "go":
                self._step.allow_allreduce()
                gathered = self._step.result(timeout=self._limit_seconds)
                return {"group": len(gathered)}
            case "check":
                with self._averager.get_tensors() as tensors:
                    answer = checked(tensors[0].numpy(), self._num_peers)
                if command["last"]:
                    self._averager.shutdown()
                    self._averager = None
                return answer
            case "stop":
                self._dht.shutdown()
        return {}

    def _prepare(self, command: Command) -> Answer:
        self._limit_seconds = command["limit_seconds"]
        if self._averager is None:
            self._averager = hivemind.DecentralizedAverager(
                [torch.empty(command["values"])],
                self._dht,
                start=True,
                prefix=f"row{command['row']}",
                target_group_size=self._num_peers,
                min_group_size=self._num_peers,
                min_matchmaking_time=3.0,
                request_timeout=2.0,
                allow_state_sharing=False,
                compression={"float32": NoCompression, "float16": Float16Compression}[command["upload"]](),
            )
        with self._averager.get_tensors() as tensors:
            fill(tensors[0].numpy(), self._index)
        self._step = self._averager.step(wait=False, require_trigger=True, timeout=command["limit_seconds"])
        while self._step.stage is not AveragingStage.AWAITING_TRIGGER:
            if self._step.done():
                self._step.result()  # raises why there is no group
            time.sleep(0.005)
        daemon = [child.pid for child in psutil.Process().children(recursive=True) if child.name() == "p2pd"]
        python = [os.getpid(), self._dht.pid, self._averager.pid]
        return {"python": python, "p2pd": daemon, "memory": self._averager.pid, "tcp": daemon[0]}


class ButterflyPeer:
    """This project's exchange over hivemind's libp2p daemon."""

    def __init__(self, index: int, num_peers: int, folder: Path) -> None:
        self._index, self._num_peers, self._folder = index, num_peers, folder
        self._resources = AsyncExitStack()
        self._vectors: list[Vector] = []
        self._peers: list[str] = []

    async def handle(self, command: Command) -> Answer:
        match command["do"]:
            case "start":
                return await self._start(command["initial"])
            case "connect":
                self._peers = [address.rsplit("/", 1)[1] for address in command["addresses"]]
                for address, peer in zip(command["addresses"], self._peers, strict=True):
                    self._network.remember(peer, [address.removesuffix(f"/p2p/{peer}")])
            case "prepare":
                await self._prepare(command)
            case "go":
                await self._exchange.run(self._vectors)
            case "take":
                self._vectors = [await self._exchange.take()]
            case "check":
                return self._check(last=command["last"])
            case "stop":
                await self._resources.aclose()
        return {}

    async def _start(self, initial: list[str]) -> Answer:
        identity = Identity.from_seed(bytes([self._index]) * 32)
        key = self._folder / f"{self._index}.key"
        identity.save(key)
        self._network = await self._resources.enter_async_context(
            HivemindNetwork.start(
                identity,
                key,
                run_id=bytes(32),
                runtime_folder=self._folder / f"run-{self._index}",
                listen=["/ip4/127.0.0.1/tcp/0"],
                initial_peers=initial,
                client_mode=False,
            )
        )
        addresses = [f"{address}/p2p/{identity.peer}" for address in self._network.addresses()]
        daemon = [child.pid for child in psutil.Process().children() if child.name() == "p2pd"]
        costs = {"python": [os.getpid()], "p2pd": daemon, "memory": os.getpid(), "tcp": daemon[0]}
        return {"addresses": addresses, **costs}

    async def _prepare(self, command: Command) -> None:
        run_id = hash_of(json.dumps([command["row"], command["repeat"]]).encode())
        codecs = command["upload"], command["download"]
        rules = rules_of(run_id, command["values"], *codecs, command["part_values"])
        self._vectors = [np.empty(command["values"], np.float32)]
        fill(self._vectors[0], self._index)
        self._exchange = OneExchange(
            self._network, rules, self._peers, self._folder / "parts", limit_seconds=command["limit_seconds"]
        )
        await self._exchange.open()

    def _check(self, *, last: bool) -> Answer:
        answer = checked(self._vectors[0], self._num_peers)
        answer |= {"sent": self._exchange.traffic.sent_bytes, "received": self._exchange.traffic.received_bytes}
        self._vectors.clear()
        del self._exchange
        if last:  # the next row begins with fresh memory, as the averager's does, whose process is new
            give_back_memory()
        return answer


def say(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)


def answer_all(handle: Callable[[Command], Answer]) -> None:
    for line in sys.stdin:
        say(handle(json.loads(line)))


async def answer_all_concurrently(handle: Callable[[Command], Awaitable[Answer]]) -> None:
    """The network lives on between commands."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        say(await handle(json.loads(line)))


def main() -> None:
    system, index, num_peers, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    match system:
        case "butterfly":
            uvloop.run(answer_all_concurrently(ButterflyPeer(index, num_peers, folder).handle))
        case "averager":
            answer_all(AveragerPeer(index, num_peers, folder).handle)
        case "gloo":
            answer_all(GlooPeer(index, num_peers, folder).handle)


if __name__ == "__main__":
    main()
