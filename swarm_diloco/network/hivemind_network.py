"""The network over hivemind: streams through p2pd, discovery through its DHT, all in one asyncio program.

This module, p2p_daemon, directory and record_storage import hivemind; that takes seconds, so import them late.
"""

import asyncio
import contextlib
import re
import statistics
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from swarm_diloco.errors import NetworkError, PeerUnreachable, RecordError, RunRefused, SwarmDilocoError
from swarm_diloco.network.addresses import Address, parse, parse_announced, usable
from swarm_diloco.network.dialling import Dialler
from swarm_diloco.network.directory import Directory
from swarm_diloco.network.discovery import MAX_LIFETIME_SECONDS, MAX_RECORD_BYTES, OwnersOnly
from swarm_diloco.network.framed_stream import FramedStream
from swarm_diloco.network.handshake import HANDSHAKE_PROTOCOL, Handshake, shake_hands, show
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Handler
from swarm_diloco.network.p2p_daemon import Daemon, DaemonSettings, read_stream_info
from swarm_diloco.network.probing import check_free, why_silent
from swarm_diloco.network.reachability import REACH_PROTOCOL, answer_as_judge, ask_judge
from swarm_diloco.network.runtime_folder import RuntimeFolder
from swarm_diloco.network.upkeep import UPKEEP_SECONDS, Upkeep

T = TypeVar("T")

ADDRESS_SECONDS = 5.0  # for one address to take a connection, and again to answer as a peer
DHT_SECONDS = 15.0  # for one store or look-up: a few round trips, each given up after 3 s
FIRST_MESSAGE_SECONDS = 10.0  # for p2pd to say whose incoming stream it is
CLOSE_SECONDS = 5.0
LEAST_STEP_SECONDS = 0.001  # between the expiries of two announcements
MAX_CLOCK_SECONDS = 3.0  # that clocks may differ: hivemind's nodes refuse more
MAX_INCOMING_STREAMS = 1024
NUM_THREADS = 4  # for run_blocking
RETRY_SECONDS = 0.2  # two peers that dial each other at once may both fail (measured); then one is first
ED25519_PEER = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")


class HivemindNetwork:
    """Implements interface.Network. Once `died` is set nothing works any more."""

    def __init__(self, identity: Identity, run_id: bytes, settings: DaemonSettings) -> None:
        self._identity, self._run_id, self._settings = identity, run_id, settings
        self._handshake = Handshake(run_id=run_id, client_version=version("swarm-diloco"))
        self._daemon = Daemon(settings, self._accept)
        self._dialler = Dialler(self._daemon, identity.peer)
        self._directory: Directory | None = None
        self._upkeep: Upkeep | None = None
        self._upkeep_task: asyncio.Task[None] | None = None
        self._handlers: dict[str, Handler] = {}
        self._addresses: tuple[str, ...] = ()
        self._expires_at = 0.0  # of the last announcement, on the wall clock
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
        upkeep_seconds: float = UPKEEP_SECONDS,
    ) -> AsyncIterator["HivemindNetwork"]:
        """Join, and leave at the end of the block; nothing is left behind however it ends.

        Raises ValueError for an address of a wrong form, RunRefused naming what differs when the only initial peers
        that answer are of another protocol version or run, and NetworkError: a port in use, no initial peer that
        answers (one line an address), a clock that is off, a start that takes too long.
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
                await network._join(initial, start_timeout_seconds, upkeep_seconds)
                yield network
            finally:
                await _to_the_end(network._close())
        finally:
            folder.remove()

    async def _join(self, initial: Sequence[Address], timeout_seconds: float, upkeep_seconds: float) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._daemon.start()
                if self._daemon.peer_id.to_base58() != self.peer:
                    raise NetworkError("p2pd runs with another identity than ours")
                self._addresses = tuple(self._settings.announce or await self._listening())
                await self.serve(REACH_PROTOCOL, answer_as_judge)  # type: ignore[arg-type]  # ours are FramedStreams
                await self.serve(HANDSHAKE_PROTOCOL, partial(show, own=self._handshake))
                self._directory = await Directory.start(
                    self._daemon,
                    self._run_id,
                    OwnersOnly(self._identity, self._run_id),
                    client_mode=self._settings.client_mode,
                )
                others = [address for address in initial if address.peer not in (None, self.peer)]
                answering = await self._connect_initial(others)
                await self._check_clock(self._directory, answering)
                await asyncio.gather(*map(self._directory.meet, answering))
                await self._directory.refresh()
                self._upkeep = Upkeep(self._dialler, self._directory, _peers_of(others), upkeep_seconds)
                self._upkeep_task = asyncio.create_task(self._upkeep.run())
        except TimeoutError as error:
            raise NetworkError(f"the network did not start in {timeout_seconds:g} s") from error

    async def _listening(self) -> Sequence[str]:
        return () if self._settings.client_mode else [str(at) for at in usable(await self._daemon.addresses())]

    async def _connect_initial(self, others: Sequence[Address]) -> list[str]:
        """Those that answer. Raises RunRefused or PeerUnreachable, one line an address, when none of some does."""
        for peer in _peers_of(others):
            self._dialler.remember(peer, [address.place for address in others if address.peer == peer])
        errors = await asyncio.gather(*(self._why_no_peer(address) for address in others))
        good = _peers_of([address for address, error in zip(others, errors, strict=True) if error is None])
        if others and not good:
            lines = [f"  {address}: {error}" for address, error in zip(others, errors, strict=True)]
            kind = RunRefused if any(isinstance(error, RunRefused) for error in errors) else PeerUnreachable
            raise kind("no peer of this run answers:\n" + "\n".join(lines))
        return good

    async def _why_no_peer(self, address: Address) -> SwarmDilocoError | None:
        assert address.peer is not None
        silence = await why_silent(address, timeout_seconds=ADDRESS_SECONDS)
        if silence is not None:
            return PeerUnreachable(silence)
        try:
            async with asyncio.timeout(ADDRESS_SECONDS):
                await self._daemon.connect(address.peer, [address.place])
        except TimeoutError:
            return PeerUnreachable(f"takes connections, but did not answer as a peer in {ADDRESS_SECONDS:g} s")
        except PeerUnreachable as error:
            for found in ED25519_PEER.findall(str(error)):  # p2pd has no code for it, only words; else the words
                if found not in (address.peer, self.peer):
                    return PeerUnreachable(
                        f"reached the host, but it is a different peer, {found}: ask for a new invite"
                    )
            return PeerUnreachable(f"takes connections, but is not that peer ({error})")
        try:
            await shake_hands(self, address.peer, self._handshake, timeout_seconds=ADDRESS_SECONDS)
        except RunRefused as error:
            return error
        except (NetworkError, RecordError) as error:
            return PeerUnreachable(f"is a peer that does not say which run it is in ({error})")
        return None

    async def _check_clock(self, directory: Directory, peers: Sequence[str]) -> None:
        """Raises NetworkError if all of the peers that tell the time tell another than ours."""
        answers = await asyncio.gather(*map(directory.clock_offset, peers))
        offsets = [offset for offset in answers if offset is not None]
        if offsets and all(abs(offset) > MAX_CLOCK_SECONDS for offset in offsets):
            offset = statistics.median(offsets)
            raise NetworkError(
                f"this computer's clock is {abs(offset):.0f} s {'behind' if offset > 0 else 'ahead of'} the swarm's, "
                f"and at most {MAX_CLOCK_SECONDS:g} s are allowed. Set it, on Linux with: "
                "sudo timedatectl set-ntp true"
            )

    async def _close(self) -> None:
        tasks = list(self._incoming)
        for writer in self._incoming.values():
            writer.transport.abort()
        for stream in list(self._dialled):
            stream.break_("this network is closed")
        for task in tasks:
            task.cancel()
        if self._upkeep_task is not None:
            self._upkeep_task.cancel()
        if self._upkeep is not None:
            self._upkeep.close()
        if self._directory is not None:
            self._directory.close()
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
        self._note(peer, protocol)
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
                with contextlib.suppress(PeerUnreachable, TimeoutError):
                    async with asyncio.timeout(timeout_seconds / 2):
                        await self._dialler.connect(peer)
                reader, writer = await self._open_stream(peer, protocol)
        except TimeoutError as error:
            raise PeerUnreachable(f"{peer} did not answer in {timeout_seconds:g} s") from error
        self._note(peer, protocol)
        stream = FramedStream(peer, reader, writer)
        self._dialled.add(stream)
        return stream

    def _note(self, peer: str, protocol: str) -> None:
        """Whoever speaks a protocol of the run belongs into its DHT; before the handshake it may be of another."""
        if self._upkeep is not None and protocol != HANDSHAKE_PROTOCOL:
            self._upkeep.spoke_with(peer)

    async def _open_stream(self, peer: str, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await self._daemon.open_stream(peer, protocol)
        except PeerUnreachable:
            await asyncio.sleep(RETRY_SECONDS)
            return await self._daemon.open_stream(peer, protocol)

    def remember(self, peer: str, addresses: Sequence[str]) -> None:
        """Addresses that cannot be parsed are left out; of too many peers the longest known is forgotten."""
        self._dialler.remember(peer, addresses)

    def addresses(self) -> Sequence[str]:
        return self._addresses

    async def announce(self, record: bytes, *, lifetime_seconds: float) -> None:
        """Raises ValueError for a record or a lifetime that nobody would take, NetworkError once p2pd is gone."""
        if len(record) > MAX_RECORD_BYTES:
            raise ValueError(f"a record has at most {MAX_RECORD_BYTES} bytes, not {len(record)}")
        if not 0 < lifetime_seconds < MAX_LIFETIME_SECONDS:
            raise ValueError(f"a record lives for less than {MAX_LIFETIME_SECONDS:g} s, not {lifetime_seconds:g}")
        directory, upkeep = self._running()
        if directory.num_known == 0:
            await upkeep.once()
        # The DHT takes a value only if it expires later than the one before.
        self._expires_at = max(time.time() + lifetime_seconds, self._expires_at + LEAST_STEP_SECONDS)
        with contextlib.suppress(TimeoutError):  # the next announcement tries again
            async with asyncio.timeout(DHT_SECONDS):
                await directory.publish(self.peer, record, self._expires_at)
        self._running()

    async def discover(self) -> Mapping[str, bytes]:
        directory, _ = self._running()
        return await directory.look_up(DHT_SECONDS)

    def _running(self) -> tuple[Directory, Upkeep]:
        if self.died.is_set():
            raise NetworkError("p2pd, the network's own process, has ended")
        assert self._directory is not None
        assert self._upkeep is not None
        return self._directory, self._upkeep

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


def _peers_of(addresses: Sequence[Address]) -> list[str]:
    """Whom they lead to, each once, in order."""
    return list(dict.fromkeys(address.peer for address in addresses if address.peer is not None))
