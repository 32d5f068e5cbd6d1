"""p2pd, hivemind's libp2p daemon, as our child: started so that it cannot outlive us, asked so that no wait is endless.

hivemind's own start and shutdown are not used: they leave the daemon behind when we are killed or cancelled, in a
terminal Ctrl-C ends the daemon first, and requests that fail leave sockets open.
"""

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from hivemind.p2p.p2p_daemon import P2P
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient, DaemonConnector
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID
from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr

from swarm_diloco.errors import NetworkError, PeerUnreachable
from swarm_diloco.network.framed_stream import READ_BUFFER_BYTES

use_hivemind_log_handler("nowhere")  # the library sets up no logging

LISTEN_BACKLOG = 2048  # asyncio's 100 fails at about 100 streams at once (measured)
TERMINATE_SECONDS = 3.0  # p2pd ends within 0.1 s of SIGTERM, unless it is stopped
IDLE_SECONDS = 30  # where there is no parent-death signal, p2pd ends so long after us
LAUNCHER = Path(__file__).with_name("launcher.py")

Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class DaemonSettings:
    identity_path: Path
    folder: Path  # for the sockets; see RuntimeFolder
    listen: Sequence[str]  # multiaddrs
    announce: Sequence[str]  # multiaddrs; empty: those that p2pd finds out
    client_mode: bool  # dial only

    def arguments(self) -> list[str]:
        """p2pd's command line, without its name."""
        switches = {
            "listen": f"/unix{self.folder}/d.sock",
            "id": str(self.identity_path),
            "idleTimeout": f"{IDLE_SECONDS}s",
            "tls": "1",
            "connManager": "1",
            "natPortMap": "0",  # opens the user's router unasked
            "autoRelay": "0",
            "autonat": "0" if self.client_mode else "1",
            "relay": "1",
            "relayService": "0",  # a volunteer's line carries no strangers' circuits
            "dhtClient" if self.client_mode else "dhtServer": "1",
            "b": "0",  # dials initial peers itself and ends when none answers, without a reason: we dial them
        }
        lists = {"announceAddrs": self.announce, "hostAddrs": self.listen}
        if self.client_mode:
            switches["noListenAddrs"] = "1"
            del lists["hostAddrs"], lists["announceAddrs"]
        switches |= {name: ",".join(addresses) for name, addresses in lists.items() if addresses}
        return [f"-{name}={value}" for name, value in switches.items()]


class ControlConnector(DaemonConnector):  # type: ignore[misc]  # hivemind is untyped
    """Keeps the connection that hivemind's control client opens, which that forgets when it fails or is cancelled."""

    writer: asyncio.StreamWriter | None = None

    async def open_connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, self.writer = await super().open_connection()
        return reader, self.writer


class Daemon(P2P):  # type: ignore[misc]  # hivemind is untyped
    """A running p2pd. `ended` is set when its process is gone, whoever ended it."""

    def __init__(self, settings: DaemonSettings, accept: Accept) -> None:
        super().__init__()
        self.ended = asyncio.Event()
        self._settings, self._accept = settings, accept
        self._daemon_listen_maddr = Multiaddr(f"/unix{settings.folder}/d.sock")
        self._client_listen_maddr = Multiaddr(f"/unix{settings.folder}/c.sock")
        self._last_lines: deque[str] = deque(maxlen=3)
        self._ready = asyncio.Event()
        self._connector = ControlConnector(self._daemon_listen_maddr)
        self._spawning: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._server: asyncio.Server | None = None
        self._watch_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when p2pd answers. The caller bounds the wait, and calls `stop` whatever happens."""
        self._spawning = asyncio.create_task(self._spawn())  # if we are cancelled, `stop` still finds the process
        self._child = await asyncio.shield(self._spawning)
        self._alive = True
        self._reader_task = asyncio.create_task(self._read_lines())
        self._watch_task = asyncio.create_task(self._watch())
        waits = [asyncio.create_task(self._ready.wait()), asyncio.create_task(self.ended.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.ended.is_set():
            await self._reader_task
            raise NetworkError(f"p2pd did not start: {' / '.join(self._last_lines) or 'it said nothing'}")
        client = Client(_initialized_with_create=True)
        client.control = await ControlClient.create(self._connector, self._client_listen_maddr)
        self._client = client
        self._server = await asyncio.start_unix_server(
            self._accept, f"{self._settings.folder}/c.sock", backlog=LISTEN_BACKLOG, limit=READ_BUFFER_BYTES
        )
        answer = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        self.peer_id = PeerID(answer.identify.id)

    async def _spawn(self) -> asyncio.subprocess.Process:
        program = str(files("hivemind.hivemind_cli") / "p2pd")
        return await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), program, *self._settings.arguments(),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C is for us, not for it
        )  # fmt: skip

    async def _read_lines(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        while line := await self._child.stdout.readline():
            text = line.decode(errors="replace").strip()
            self._last_lines.append(text[:300])
            if text.startswith("Peer ID:"):
                self._ready.set()

    async def _watch(self) -> None:
        await self._child.wait()
        self._alive = False
        self.ended.set()

    async def _ask(self, request: p2pd_pb2.Request) -> p2pd_pb2.Response:
        """One request on a connection of its own. Raises NetworkError, PeerUnreachable with p2pd's words."""
        response, _, writer = await self._converse(request)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return response

    async def _converse(
        self, request: p2pd_pb2.Request
    ) -> tuple[p2pd_pb2.Response, asyncio.StreamReader, asyncio.StreamWriter]:
        writer = None
        try:
            reader, writer = await asyncio.open_unix_connection(
                f"{self._settings.folder}/d.sock", limit=READ_BUFFER_BYTES
            )
            await write_pbmsg(writer, request)
            response = p2pd_pb2.Response()
            await read_pbmsg_safe(reader, response)
            if response.type == p2pd_pb2.Response.ERROR:
                raise PeerUnreachable(response.error.msg)
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, OSError | asyncio.IncompleteReadError):
                raise NetworkError("p2pd, the network's own process, has ended") from error
            raise
        return response, reader, writer

    async def addresses(self) -> list[str]:
        """Where it listens, or what it was told to announce: multiaddrs without /p2p/, unparsable ones left out."""
        answer = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        return multiaddr_texts(answer.identify.addrs)

    async def connect(self, peer: str, addresses: Sequence[str]) -> None:
        """Open a connection, if there is none. Raises PeerUnreachable."""
        binary = [Multiaddr(address).to_bytes() for address in addresses]
        connect = p2pd_pb2.ConnectRequest(peer=PeerID.from_base58(peer).to_bytes(), addrs=binary)
        await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=connect))

    async def connections(self, peer: str) -> list[str]:
        """The other ends of the open connections to a peer, as multiaddrs."""
        answer = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
        peer_id = PeerID.from_base58(peer).to_bytes()
        return [text for found in answer.peers if found.id == peer_id for text in multiaddr_texts(found.addrs)]

    async def open_stream(self, peer: str, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises PeerUnreachable."""
        stream_open = p2pd_pb2.StreamOpenRequest(peer=PeerID.from_base58(peer).to_bytes(), proto=[protocol])
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=stream_open)
        _, reader, writer = await self._converse(request)
        return reader, writer

    async def serve(self, protocol: str) -> None:
        """From now on incoming streams of `protocol` come to `accept`, a StreamInfo message before their bytes."""
        handler = p2pd_pb2.StreamHandlerRequest(
            addr=self._client_listen_maddr.to_bytes(), proto=[protocol], balanced=False
        )
        await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=handler))

    async def stop(self) -> None:
        """End the process and everything of ours around it, in at most TERMINATE_SECONDS and a little."""
        if self._server is not None:
            self._server.close()
        tasks = self._close_control()
        try:
            if self._child is None and self._spawning is not None:
                self._child = await self._spawning
                self._reader_task = asyncio.create_task(self._read_lines())
            if self._child is not None and self._child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._child.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TERMINATE_SECONDS):
                        await self._child.wait()
        finally:
            self.kill()
        tasks += [task for task in (self._watch_task, self._reader_task) if task is not None]
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=TERMINATE_SECONDS)
            for task in done:
                if not task.cancelled():
                    task.exception()  # hivemind's own fail with p2pd; nothing more to say about it

    def kill(self) -> None:
        """At once; for when there is no time to wait."""
        self._alive = False
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()

    def _close_control(self) -> list["asyncio.Task[None]"]:
        """Cancel the calls and tasks of hivemind's control connection; gives the tasks to wait for."""
        if self._connector.writer is not None:
            self._connector.writer.transport.abort()
        if self._client is None:
            return []
        control = self._client.control
        for call in list(control._pending_calls.values()):
            call.cancel()
        tasks = [task for task in (control._read_task, control._write_task) if task is not None]
        tasks += list(control._handler_tasks.values())
        for task in tasks:
            task.cancel()
        return tasks


async def read_stream_info(reader: asyncio.StreamReader) -> tuple[str, str, str | None]:
    """What p2pd sends before an incoming stream: the proven peer id, the protocol, the caller's multiaddr or None."""
    info = p2pd_pb2.StreamInfo()
    await read_pbmsg_safe(reader, info)
    texts = multiaddr_texts([info.addr])
    return PeerID(info.peer).to_base58(), info.proto, texts[0] if texts else None


def multiaddr_texts(binaries: Sequence[bytes]) -> list[str]:
    """The texts of those that this program can read; a peer may state kinds that are newer than we."""
    texts = []
    for binary in binaries:
        with contextlib.suppress(Exception):  # hivemind's parser raises whatever its tables raise
            texts.append(str(Multiaddr(binary)))
    return texts
