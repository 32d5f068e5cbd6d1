"""Can others dial us? One asks a peer, the judge, to try: it opens a plain TCP connection to where it sees us."""

import asyncio

from swarm_diloco.diloco.records import pack, unpack
from swarm_diloco.errors import NetworkError, RecordError
from swarm_diloco.network.addresses import Address, parse
from swarm_diloco.network.framed_stream import FramedStream
from swarm_diloco.network.interface import Network
from swarm_diloco.network.probing import why_silent

REACH_PROTOCOL = "swarm-diloco.reach.1"
FORMAT_VERSION = 1
MAX_MESSAGE_BYTES = 32
TRY_SECONDS = 3.0


async def ask_judge(network: Network, judge: str, port: int, *, timeout_seconds: float) -> bool:
    """Whether `judge` says that our `port` takes connections. False when it does not say."""
    stream = None
    try:
        async with asyncio.timeout(timeout_seconds):
            stream = await network.dial(judge, REACH_PROTOCOL, timeout_seconds=timeout_seconds)
            await stream.send(number_bytes(port), timeout_seconds=timeout_seconds)
            answer = await stream.receive(timeout_seconds=timeout_seconds, limit_bytes=MAX_MESSAGE_BYTES)
        return read_number(answer, maximum=1) == 1
    except (NetworkError, RecordError, TimeoutError):
        return False
    finally:
        if stream is not None:
            await stream.close()


async def answer_as_judge(stream: FramedStream) -> None:
    """Only ever tries the caller's own address: nobody can have us knock at a third party."""
    port = read_number(await stream.receive(timeout_seconds=TRY_SECONDS, limit_bytes=MAX_MESSAGE_BYTES), maximum=65535)
    reachable = False
    if stream.remote_address is not None:
        seen = parse(stream.remote_address)
        place = Address(seen.kind, seen.host, port, None)
        reachable = await why_silent(place, timeout_seconds=TRY_SECONDS) is None
    await stream.send(number_bytes(int(reachable)), timeout_seconds=TRY_SECONDS)
    await stream.receive(
        timeout_seconds=TRY_SECONDS, limit_bytes=MAX_MESSAGE_BYTES
    )  # the caller's end: it has read the answer


def number_bytes(number: int) -> bytes:
    """The question, a port, and the answer, 1 or 0: [version, number]."""
    return pack([FORMAT_VERSION, number])


def read_number(message: bytes, *, maximum: int) -> int:
    """Raises RecordError."""
    fields = unpack(message, "reachability message", limit_bytes=MAX_MESSAGE_BYTES)
    fields.version(FORMAT_VERSION)
    value = fields.integer(maximum=maximum)
    fields.end()
    return value
