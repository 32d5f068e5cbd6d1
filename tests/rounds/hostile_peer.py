"""A peer that speaks the wire with a real key, follows the log and keeps to nothing else: for tests of what that costs.

    eve = HostilePeer(SmallPeer("eve", folder, rules, genesis, donors=[boot]), world)
    await eve.start()
    async with eve.knock(view, weight=100) as conversation:
        plan = await conversation.heard(Plan)

She says what she is told to say, in whatever order; what she does not say is her lie too.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import torch

from small_swarm import SmallPeer
from swarm_diloco.diloco.ledger import Head
from swarm_diloco.errors import NetworkError, RecordError
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.messages import Beat, Knock, Message, Plan, Promised
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedNetwork, SimulatedWorld
from swarm_diloco.network.simulated_stream import HEADER_BYTES, Chunk, SimulatedStream
from swarm_diloco.network.wire import read_signed, sign
from swarm_diloco.rounds.contribution import encode_parts
from swarm_diloco.rounds.decision.voter import View
from swarm_diloco.rounds.follower import Follower
from swarm_diloco.rounds.library import RunFiles
from swarm_diloco.rounds.part_frame import PartFrame
from swarm_diloco.rounds.parts_stream import Hello
from swarm_diloco.rounds.replica import Replica

SECONDS = 5.0

M = TypeVar("M", bound=Message)


class HostilePeer:
    """`peer` gives the name, the folder and the run; its engine is never started."""

    def __init__(self, peer: SmallPeer, world: SimulatedWorld, link: LinkSettings | None = None) -> None:
        self.peer = peer.peer
        self.rules = peer.rules
        self.network: SimulatedNetwork = world.network(peer.identity, link or LinkSettings())
        num_values = self.rules.layout.num_values
        replica = Replica(self.rules, torch.zeros(num_values), torch.zeros(num_values))
        published = RunFiles(b"manifest", peer.genesis, {})
        self.follower = Follower(self.network, self.rules, published, peer.folder, replica)
        self._identity, self._donors = peer.identity, peer.donors
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Have the log, follow it, answer pings: whoever looks sees a peer that lives."""
        await self.follower.catch_up(self._donors)
        await self.network.serve(self.rules.ping_protocol, self._answer)
        await self.network.serve(self.rules.control_protocol, self._answer)
        self.do(self.follower.follow(lambda: self._donors))

    async def _answer(self, stream: Stream) -> None:
        with suppress(NetworkError):
            await stream.receive(timeout_seconds=SECONDS)

    def do(self, conduct: Any) -> None:
        """Beside all else, until `stop`."""
        self._tasks.append(asyncio.ensure_future(conduct))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.network.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    # --- what she knows

    def view(self) -> View:
        """Of the next round."""
        return self.follower.log.next_view(self.follower.replica.base(0))

    async def until_due(self) -> View:
        await asyncio.sleep(self.follower.seconds_until_due())
        return self.view()

    async def until_decided(self, view: View) -> None:
        await self.follower.wait_past(view.round - 1)
        while self.follower.replica.round < view.round:
            await asyncio.sleep(0.05)

    # --- what she says

    def frame(self, view: View, ballot: int, message: Message) -> bytes:
        head = Head(view.round - 1, view.prev)
        run = self.rules.run_id
        return sign(self._identity, run=run, round_=view.round, ballot=ballot, head=head, message=message).frame

    async def say(self, view: View, message: Message, *, ballot: int = 0) -> None:
        """One message to the ballot's candidate, on a stream of its own."""
        candidate = view.candidate(ballot)
        if candidate in (None, self.peer):
            return
        assert candidate is not None
        with suppress(NetworkError):
            stream = await self.network.dial(candidate, self.rules.control_protocol, timeout_seconds=SECONDS)
            try:
                await stream.send(self.frame(view, ballot, message), timeout_seconds=SECONDS)
                await stream.receive(timeout_seconds=SECONDS)
            finally:
                await stream.close()

    def knock_of(self, view: View, weight: int, *, reachable: bool) -> Knock:
        credited = view.tokens_credited.get(self.peer, 0)
        return Knock(
            fragment=view.fragment,
            base=view.base,
            weight=weight,
            tokens_from=credited,
            tokens_to=credited + weight,
            reachable=reachable,
        )

    @asynccontextmanager
    async def knock(
        self, view: View, *, weight: int, ballot: int = 0, reachable: bool = False
    ) -> AsyncIterator["Conversation | None"]:
        """A knock and what follows it, with beats for as long as it lasts; None if nobody takes it.

        Who is `reachable` is a candidate of the next rounds and averages parts, or does not.
        """
        candidate = view.candidate(ballot)
        if candidate in (None, self.peer):
            yield None
            return
        assert candidate is not None
        try:
            stream = await self.network.dial(candidate, self.rules.control_protocol, timeout_seconds=SECONDS)
        except NetworkError:
            yield None
            return
        conversation = Conversation(self, view, ballot, stream)
        beating = asyncio.create_task(conversation.beat())
        try:
            await conversation.say(self.knock_of(view, weight, reachable=reachable))
            yield conversation
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            await stream.close()

    # --- what she sends

    def parts(self, view: View) -> list[bytes]:
        num_values = self.rules.layout.num_values
        return encode_parts(self.rules, view.fragment, torch.full((num_values,), 1e-3))

    async def drip(self, view: View, plan: Plan, *, seconds_per_byte: float) -> None:
        """To each reducer its first part, byte by byte, as long as it listens."""
        peers, parts = [peer for peer, _ in plan.members], self.parts(view)
        first = {peers[part.reducer]: number for number, part in reversed(list(enumerate(plan.parts)))}
        sending = [
            self._drip_one(view, reducer, PartFrame(number, 0, parts[number]).encode(), seconds_per_byte)
            for reducer, number in first.items()
            if reducer != self.peer
        ]
        await asyncio.gather(*sending)

    async def _drip_one(self, view: View, reducer: str, frame: bytes, seconds_per_byte: float) -> None:
        with suppress(NetworkError):
            stream = await self.network.dial(reducer, self.rules.parts_protocol, timeout_seconds=SECONDS)
            try:
                await stream.send(Hello(view.round, 0, view.prev).encode(), timeout_seconds=SECONDS)
                for place in range(len(frame)):
                    send_bytes(stream, frame, place, place + 1)
                    await asyncio.sleep(seconds_per_byte)
            finally:
                await stream.close()


def send_bytes(stream: SimulatedStream, frame: bytes, start: int, end: int) -> None:
    """A piece of a frame, as no `send` of an honest peer leaves it."""
    stream._has_room(end - start)  # raises if the stream has ended
    piece = frame[start:end]
    stream._carry(Chunk(piece, None if start else len(frame), len(piece) + (0 if start else HEADER_BYTES)))


class Conversation:
    """Her stream to a ballot's candidate."""

    def __init__(self, me: HostilePeer, view: View, ballot: int, stream: Stream) -> None:
        self.stream = stream
        self._me, self._view, self._ballot = me, view, ballot

    async def say(self, message: Message) -> None:
        with suppress(NetworkError):
            await self.stream.send(self._me.frame(self._view, self._ballot, message), timeout_seconds=SECONDS)

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(self._me.rules.rounds.heartbeat_seconds)
            await self.say(Beat())

    async def heard(self, kind: type[M]) -> M | None:
        """The next message of this kind; None if the stream ends before."""
        with suppress(NetworkError, RecordError):
            while True:
                frame = await self.stream.receive(timeout_seconds=self._me.rules.rounds.silence_seconds)
                message = read_signed(frame, run=self._me.rules.run_id).message
                if isinstance(message, kind):
                    return message
                if isinstance(message, Promised):
                    return None
        return None
