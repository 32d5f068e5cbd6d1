"""What the rest of the program needs of a network. Two things implement it: hivemind_network and simulated_network.

Everything is a *stream*: authenticated (the other side's peer id is proven), ordered, two-way, framed. A stream that
ends early is a failure; who needs to know that all has arrived asks for an acknowledgement.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")

MAX_FRAME_BYTES = 16 * 2**20  # one part at float32 of the largest part size, with room


class Stream(Protocol):
    """One two-way stream of frames. Not for use by two senders or two receivers at once."""

    @property
    def peer(self) -> str:
        """The other side's peer id, proven by the transport."""
        ...

    async def send(self, frame: bytes | bytearray | memoryview, *, timeout_seconds: float) -> None:
        """Hand one frame (at most MAX_FRAME_BYTES) to the network; the wait for room in its buffers is bounded.

        Raises StreamLost, StreamTimeout. After either the stream is of no more use.
        """
        ...

    async def receive(self, *, timeout_seconds: float, limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
        """The next frame. Raises StreamLost at the end, StreamTimeout, RecordError for a frame over the limit.

        After StreamTimeout with nothing of a frame received, the stream can still be used.
        """
        ...

    async def close(self) -> None:
        """End both directions. Bounded; may be called twice."""
        ...


Handler = Callable[[Stream], Awaitable[None]]


class Network(Protocol):
    """One peer's access to the others."""

    @property
    def peer(self) -> str:
        """Our own peer id."""
        ...

    async def serve(self, protocol: str, handler: Handler) -> None:
        """Give each incoming stream of `protocol` to `handler`; the stream is closed when it returns or raises."""
        ...

    async def dial(self, peer: str, protocol: str, *, timeout_seconds: float) -> Stream:
        """Open a stream. Raises PeerUnreachable. A peer never dials itself."""
        ...

    def remember(self, peer: str, addresses: Sequence[str]) -> None:
        """Addresses (multiaddrs without the /p2p/ part) at which `peer` may be dialled, besides what the DHT knows."""
        ...

    def addresses(self) -> Sequence[str]:
        """Where we listen, as multiaddrs without the /p2p/ part."""
        ...

    async def announce(self, record: bytes, *, lifetime_seconds: float) -> None:
        """Publish our record (at most 2 kB, signed by its author) for others to discover. Best effort."""
        ...

    async def discover(self) -> Mapping[str, bytes]:
        """The records published now, by claimed peer id. Nothing in them is trusted: the reader verifies."""
        ...

    async def run_blocking(self, function: Callable[..., T], *args: object) -> T:
        """Run numeric or disk work without holding up the network (a thread; inline where time is virtual)."""
        ...

    async def is_reachable(self, judge: str, *, timeout_seconds: float) -> bool:
        """Whether `judge`, asked over the network, can open a new connection to us. False when it cannot be asked."""
        ...

    def wall_milliseconds(self) -> int:
        """The wall clock, for information only; durations come from the event loop's clock."""
        ...
