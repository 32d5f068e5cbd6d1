"""The network over hivemind: streams through p2pd, discovery through its DHT, all in one asyncio program.

Only this module and p2p_daemon import hivemind; that takes seconds, so import them late.
"""

import asyncio
import contextlib
import random
import re
import statistics
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hivemind.dht.node import DHTNode
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.timed_storage import MAX_DHT_TIME_DISCREPANCY_SECONDS, TimedStorage

from swarm_diloco.errors import NetworkError, PeerUnreachable, SwarmDilocoError
from swarm_diloco.network.addresses import Address, parse, parse_announced, usable
from swarm_diloco.network.discovery import MAX_RECORD_BYTES, OwnersOnly, record_key, record_keys
from swarm_diloco.network.framed_stream import FramedStream
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Handler
from swarm_diloco.network.p2p_daemon import Daemon, DaemonSettings, read_stream_info
from swarm_diloco.network.probing import check_free, why_silent
from swarm_diloco.network.reachability import REACH_PROTOCOL, answer_as_judge, ask_judge
from swarm_diloco.network.runtime_folder import RuntimeFolder

T = TypeVar("T")

ADDRESS_SECONDS = 5.0  # for one address to take a connection, and again to answer as a peer
DHT_SECONDS = 15.0  # for one store or look-up: a few round trips, each given up after 3 s
FIRST_MESSAGE_SECONDS = 10.0  # for p2pd to say whose incoming stream it is
CLOSE_SECONDS = 5.0
LEAST_STEP_SECONDS = 0.001  # between the expiries of two announcements
MAX_INCOMING_STREAMS = 1024
MAX_REMEMBERED_PEERS = 4096
NUM_THREADS = 4  # for run_blocking
RETRY_SECONDS = 0.2  # two peers that dial each other at once may both fail (measured); then one is first
ED25519_PEER = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")


class HivemindNetwork:
    """Implements interface.Network. Once `died` is set nothing works any more."""

    def __init__(self, identity: Identity, run_id: bytes, settings: DaemonSettings) -> None:
        self._identity, self._run_id, self._settings = identity, run_id, settings
        self._daemon = Daemon(settings, self._accept)
        self._dht: Any = None  # a DHTNode
        self._handlers: dict[str, Handler] = {}
        self._addresses: tuple[str, ...] = ()
        self._expires_at = 0.0  # of the last announcement, on the wall clock
        self._initial: list[Address] = []
        self._remembered: dict[str, tuple[str, ...]] = {}
        self._incoming: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._dialled: weakref.WeakSet[FramedStream] = weakref.WeakSet()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="blocking")

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        identity: Identity,
        identity_path: Path,  # where `identity` was read from: p2pd reads it too
        *,
        run_id: bytes,
        runtime_folder: Path,
        listen: Sequence[str],  # multiaddrs, e.g. /ip4/0.0.0.0/tcp/31337; port 0: any
        announce: Sequence[str] = (),  # multiaddrs that others dial instead of those that p2pd finds out
        initial_peers: Sequence[str] = (),  # multiaddrs with /p2p/
        client_mode: bool,  # cannot be dialled: listens nowhere and serves no DHT
        start_timeout_seconds: float = 30.0,
    ) -> AsyncIterator["HivemindNetwork"]:
        """Join, and leave at the end of the block; nothing is left behind however it ends.

        Raises ValueError for an address of a wrong form, and NetworkError: a port in use, no initial peer that answers
        (one line an address), a clock that is off, a start that takes too long.
        """
        for address in map(parse, () if client_mode else listen):
            check_free(address)
        announced = tuple(parse_announced(text).place for text in announce)
        initial = [parse(text) for text in initial_peers]
        if any(address.peer is None for address in initial):
            raise ValueError("an initial peer's address ends with /p2p/PEER-ID")
        folder = RuntimeFolder.create(runtime_folder)
        try:
            settings = DaemonSettings(
                identity_path=identity_path,
                folder=folder.path,
                listen=tuple(listen),
                announce=announced,
                client_mode=client_mode,
            )
            network = cls(identity, run_id, settings)
            try:
                await network._join(initial, start_timeout_seconds)
                yield network
            finally:
                await _to_the_end(network._close())
        finally:
            folder.remove()

    async def _join(self, initial: Sequence[Address], timeout_seconds: float) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._daemon.start()
                if self._daemon.peer_id.to_base58() != self.peer:
                    raise NetworkError("p2pd runs with another identity than ours")
                self._addresses = tuple(self._settings.announce or await self._listening())
                await self.serve(REACH_PROTOCOL, answer_as_judge)  # type: ignore[arg-type]  # ours are FramedStreams
                self._initial = await self._connect_initial(initial)
                self._dht = await self._start_dht()
                await self._check_clock()
        except TimeoutError as error:
            raise NetworkError(f"the network did not start in {timeout_seconds:g} s") from error

    async def _listening(self) -> Sequence[str]:
        return () if self._settings.client_mode else [str(at) for at in usable(await self._daemon.addresses())]

    async def _connect_initial(self, initial: Sequence[Address]) -> list[Address]:
        """Those that answer. Raises NetworkError, one line an address, when there are some and none does."""
        others = [address for address in initial if address.peer != self.peer]
        reasons = await asyncio.gather(*(self._why_no_peer(address) for address in others))
        good = [address for address, reason in zip(others, reasons, strict=True) if reason is None]
        if others and not good:
            lines = [f"  {address}: {reason}" for address, reason in zip(others, reasons, strict=True)]
            raise PeerUnreachable("no peer of this run answers:\n" + "\n".join(lines))
        return good

    async def _why_no_peer(self, address: Address) -> str | None:
        assert address.peer is not None
        reason = await why_silent(address, timeout_seconds=ADDRESS_SECONDS)
        if reason is not None:
            return reason
        try:
            async with asyncio.timeout(ADDRESS_SECONDS):
                await self._daemon.connect(address.peer, [address.place])
        except TimeoutError:
            return f"takes connections, but did not answer as a peer in {ADDRESS_SECONDS:g} s"
        except PeerUnreachable as error:
            for found in ED25519_PEER.findall(str(error)):  # p2pd has no code for it, only words; else the words
                if found not in (address.peer, self.peer):
                    return f"reached the host, but it is a different peer, {found}: ask for a new invite"
            return f"takes connections, but is not that peer ({error})"
        return None

    async def _start_dht(self) -> Any:
        return await DHTNode.create(
            self._daemon,
            initial_peers=[str(address) for address in self._initial],
            client_mode=self._settings.client_mode,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            record_validator=OwnersOnly(self._identity),
            ensure_bootstrap_success=False,  # its checks come with a traceback; ours are _connect_initial, _check_clock
            strict=False,
        )

    async def _check_clock(self) -> None:
        """Raises NetworkError if all initial peers that tell the time tell another than ours."""
        answers = await asyncio.gather(*map(self._clock_offset, self._initial))
        offsets = [offset for offset in answers if offset is not None]
        if offsets and all(abs(offset) > MAX_DHT_TIME_DISCREPANCY_SECONDS for offset in offsets):
            offset = statistics.median(offsets)
            raise NetworkError(
                f"this computer's clock is {abs(offset):.0f} s {'behind' if offset > 0 else 'ahead of'} the swarm's, "
                f"and at most {MAX_DHT_TIME_DISCREPANCY_SECONDS} s are allowed. Set it, on Linux with: "
                "sudo timedatectl set-ntp true"
            )

    async def _clock_offset(self, address: Address) -> float | None:
        """The peer's clock minus ours, in seconds, less what the way there may explain."""
        asked_at = time.time()
        try:
            async with asyncio.timeout(ADDRESS_SECONDS):
                stub = self._dht.protocol.get_stub(PeerID.from_base58(address.peer))
                answer = await stub.rpc_ping(dht_pb2.PingRequest(validate=False))
        except Exception:  # hivemind gives whatever the peer's handler raised; who does not tell the time is not asked
            return None
        told: float = answer.dht_time
        return told - min(max(told, asked_at), time.time()) if told else None

    async def _close(self) -> None:
        tasks = list(self._incoming)
        for writer in self._incoming.values():
            writer.transport.abort()
        for stream in list(self._dialled):
            stream.break_("this network is closed")
        for task in tasks:
            task.cancel()
        if self._dht is not None:
            self._dht.is_alive = False  # its shutdown asks p2pd, which we end anyhow, and may wait for ever
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._daemon.stop()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

    @property
    def peer(self) -> str:
        return self._identity.peer

    @property
    def died(self) -> asyncio.Event:
        """Set once p2pd is gone, by whatever hand."""
        return self._daemon.ended

    async def serve(self, protocol: str, handler: Handler) -> None:
        if protocol in self._handlers:
            raise ValueError(f"{protocol} is served already")
        self._handlers[protocol] = handler
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._daemon.serve(protocol)
        except TimeoutError as error:
            raise NetworkError(f"p2pd did not answer in {CLOSE_SECONDS:g} s") from error

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._incoming) >= MAX_INCOMING_STREAMS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._handle(reader, writer))
        self._incoming[task] = writer
        task.add_done_callback(self._incoming.pop)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
                peer, protocol, address = await read_stream_info(reader)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
            return
        stream = FramedStream(peer, reader, writer, address)
        try:
            await self._handlers[protocol](stream)
        except SwarmDilocoError:
            pass  # the stream's end tells the other side
        except Exception as error:
            context = {"message": f"the handler of {protocol} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        finally:
            await stream.close()

    async def dial(self, peer: str, protocol: str, *, timeout_seconds: float) -> FramedStream:
        if peer == self.peer:
            raise ValueError("a peer does not dial itself")
        try:
            async with asyncio.timeout(timeout_seconds):
                addresses = self._remembered.get(peer, ())
                if addresses:
                    with contextlib.suppress(PeerUnreachable, TimeoutError):
                        async with asyncio.timeout(timeout_seconds / 2):
                            await self._daemon.connect(peer, addresses)
                reader, writer = await self._open_stream(peer, protocol)
        except TimeoutError as error:
            raise PeerUnreachable(f"{peer} did not answer in {timeout_seconds:g} s") from error
        stream = FramedStream(peer, reader, writer)
        self._dialled.add(stream)
        return stream

    async def _open_stream(self, peer: str, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await self._daemon.open_stream(peer, protocol)
        except PeerUnreachable:
            await asyncio.sleep(RETRY_SECONDS)
            return await self._daemon.open_stream(peer, protocol)

    def remember(self, peer: str, addresses: Sequence[str]) -> None:
        """Addresses that cannot be parsed are left out; of too many peers the longest known is forgotten."""
        self._remembered.pop(peer, None)
        places = tuple(address.place for address in usable(addresses))
        if places and peer != self.peer:
            self._remembered[peer] = places
        if len(self._remembered) > MAX_REMEMBERED_PEERS:
            del self._remembered[next(iter(self._remembered))]

    def addresses(self) -> Sequence[str]:
        return self._addresses

    async def announce(self, record: bytes, *, lifetime_seconds: float) -> None:
        """Also greets an initial and two remembered peers, so that a DHT that fell apart grows together again."""
        if len(record) > MAX_RECORD_BYTES:
            raise ValueError(f"a record has at most {MAX_RECORD_BYTES} bytes, not {len(record)}")
        self._check_alive()
        await self._greet()
        # The DHT takes a value only if it expires later than the one before.
        self._expires_at = max(time.time() + lifetime_seconds, self._expires_at + LEAST_STEP_SECONDS)
        with contextlib.suppress(TimeoutError):  # the next announcement tries again
            async with asyncio.timeout(DHT_SECONDS):
                key = record_key(self._run_id, self.peer)
                await self._dht.store(key, record, self._expires_at, subkey=self.peer)

    def _check_alive(self) -> None:
        if self.died.is_set():
            raise NetworkError("p2pd, the network's own process, has ended")

    async def _greet(self) -> None:
        known = {address.peer: [address.place] for address in self._initial if address.peer is not None}
        chosen = random.sample(sorted(known), min(1, len(known)))
        chosen += random.sample(sorted(self._remembered), min(2, len(self._remembered)))
        places = {**self._remembered, **known}

        async def greet(peer: str) -> None:
            with contextlib.suppress(TimeoutError, PeerUnreachable):
                async with asyncio.timeout(ADDRESS_SECONDS):
                    await self._daemon.connect(peer, places[peer])
                    await self._dht.protocol.call_ping(PeerID.from_base58(peer))

        await asyncio.gather(*map(greet, chosen))

    async def discover(self) -> Mapping[str, bytes]:
        self._check_alive()
        futures = await self._dht.get_many(
            record_keys(self._run_id), sufficient_expiration_time=float("inf"), return_futures=True
        )
        await asyncio.wait(futures.values(), timeout=DHT_SECONDS)
        found: dict[str, bytes] = {}
        for future in futures.values():
            answer = future.result() if future.done() and not future.cancelled() else None
            future.cancel()
            if answer is not None and isinstance(answer.value, dict):
                found |= {peer: entry.value for peer, entry in answer.value.items()}  # OwnersOnly has checked the types
        return found

    async def run_blocking(self, function: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args))

    async def is_reachable(self, judge: str, *, timeout_seconds: float) -> bool:
        ports = [address.port for address in usable(self._addresses)]
        return bool(ports) and await ask_judge(self, judge, ports[0], timeout_seconds=timeout_seconds)

    def wall_milliseconds(self) -> int:
        return time.time_ns() // 1_000_000


async def _to_the_end(closing: Coroutine[Any, Any, None]) -> None:
    """Run `closing` until it is done, although we may be cancelled meanwhile; it bounds itself."""
    task = asyncio.create_task(closing)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _keep_newer_values() -> None:
    """Mend hivemind's storage, which on being offered an older value forgets the newer one at the older's expiry."""
    store = TimedStorage.store

    def store_if_newer(storage: Any, key: Any, value: Any, expiration_time: float) -> bool:
        held = storage.data.get(key)
        if held is not None and held.expiration_time >= expiration_time:
            return False
        return bool(store(storage, key, value, expiration_time))

    TimedStorage.store = store_if_newer


_keep_newer_values()
