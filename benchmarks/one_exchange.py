"""One exchange of parts at one peer, on a plan that no coordinator made: equal weights, equal shares of the reduce."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from swarm_diloco.diloco.codec import CodecSettings
from swarm_diloco.diloco.fragments import ParameterLayout
from swarm_diloco.diloco.ledger import member_bitmap
from swarm_diloco.diloco.schedule import ScheduleSettings
from swarm_diloco.network.interface import Network, Stream
from swarm_diloco.network.messages import Plan, PlannedPart
from swarm_diloco.rounds.butterfly import Butterfly, Traffic
from swarm_diloco.rounds.contribution import encode_parts
from swarm_diloco.rounds.log import PartStore
from swarm_diloco.rounds.settings import RoundSettings, RunRules

HELLO_SECONDS = 10.0
Vector = npt.NDArray[np.float32]


def rules_of(run_id: bytes, num_values: int, upload: str, download: str, part_values: int) -> RunRules:
    return RunRules(
        run_id=run_id,
        operator_key=bytes(32),
        layout=ParameterLayout.of([("vector", (num_values,))]),
        schedule=ScheduleSettings(inner_steps=1),
        codec=CodecSettings(upload=upload, download=download),  # type: ignore[arg-type]
        rounds=RoundSettings(part_values=part_values),
    )


class OneExchange:
    """`open` at all peers, then `run` at all, then `take` at all."""

    def __init__(
        self, network: Network, rules: RunRules, members: Sequence[str], folder: Path, *, limit_seconds: float
    ) -> None:
        self.traffic = Traffic()
        self._network, self._rules, self._members = network, rules, members
        self._limit_ms = round(limit_seconds * 1000)
        self._parts = PartStore(folder)
        self._butterfly: asyncio.Future[Butterfly] = asyncio.get_running_loop().create_future()
        self._running: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._network.serve(self._rules.parts_protocol, self._accept)

    async def _accept(self, stream: Stream) -> None:
        await stream.receive(timeout_seconds=HELLO_SECONDS)
        butterfly = await asyncio.shield(self._butterfly)
        await butterfly.accept(stream)

    async def run(self, vectors: list[Vector]) -> None:
        """Encode the vector, which is taken out of the list, and exchange until all averaged parts are here."""
        encoded = await self._network.run_blocking(self._encode, vectors)
        num_held, all_held = 0, asyncio.Event()

        def on_held(_: bytes) -> None:
            nonlocal num_held
            num_held += 1
            if num_held == len(self._rules.part_sizes(0)):
                all_held.set()

        butterfly = Butterfly(
            self._network,
            self._rules,
            round_=1,
            ballot=0,
            prev=bytes(32),
            encoded=encoded,
            parts=self._parts,
            traffic=self.traffic,
            on_sealed=lambda _: None,
            on_held=on_held,
        )
        self._running = asyncio.create_task(butterfly.run())
        butterfly.follow_plan(self._plan())
        self._butterfly.set_result(butterfly)
        await all_held.wait()

    def _encode(self, vectors: list[Vector]) -> list[memoryview]:
        return encode_parts(self._rules, 0, torch.from_numpy(vectors.pop()))

    def _plan(self) -> Plan:
        senders = member_bitmap(range(len(self._members)))
        return Plan(
            members=tuple((peer, 1) for peer in self._members),
            parts=tuple(
                PlannedPart(part % len(self._members), 0, senders) for part in range(len(self._rules.part_sizes(0)))
            ),
            close_in_ms=self._limit_ms,
            deadline_in_ms=self._limit_ms,
        )

    async def take(self) -> Vector:
        """Once all have run, as when a round is decided: the exchange ends, the mean is decoded."""
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait({self._running})
        sealed = self._butterfly.result()._sealed
        hashes = [sealed[part, 0] for part in range(len(self._rules.part_sizes(0)))]
        vector = await self._network.run_blocking(self._decode, hashes)
        self._parts.drop_held()  # the network knows this exchange for as long as it lives itself
        return vector

    def _decode(self, hashes: Sequence[bytes]) -> Vector:
        vector = np.empty(self._rules.layout.num_values, np.float32)
        for where, part_hash in zip(self._rules.part_slices(0), hashes, strict=True):
            data = self._parts.get(part_hash)
            assert data is not None
            vector[where] = self._rules.download.decode(data, where.stop - where.start).numpy()
        return vector
