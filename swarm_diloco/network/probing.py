"""Plain TCP questions asked before and beside libp2p: is the port free, does anything listen there, and if not, why."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket

from swarm_diloco.errors import NetworkError
from swarm_diloco.network.addresses import Address


def check_free(address: Address) -> None:
    """Try to bind where we are about to listen. Raises NetworkError in one line.

    p2pd shares an occupied port silently (SO_REUSEPORT), and then a part of the joins fail.
    """
    if address.port == 0 or address.kind not in ("ip4", "ip6"):
        return
    with socket.socket(socket.AF_INET if address.kind == "ip4" else socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a just closed port counts as occupied
        if address.kind == "ip6":
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen(1)
        except OSError as error:
            raise NetworkError(f"cannot listen at {address.place}: {_bind_reason(error, address)}") from error


def _bind_reason(error: OSError, address: Address) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {address.port} is in use by another program; stop it or choose another port"
    if error.errno == errno.EACCES:
        return f"port {address.port} needs more rights; choose one from 1024 up"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine has no address {address.host}"
    return os.strerror(error.errno) if error.errno else str(error)


async def why_silent(address: Address, *, timeout_seconds: float) -> str | None:
    """None when something accepts a TCP connection there, else the reason in a few words."""
    try:
        async with asyncio.timeout(timeout_seconds):
            _, writer = await open_connection(address)
    except TimeoutError:
        return f"no answer in {timeout_seconds:g} s (machine off, or a firewall drops it)"
    except socket.gaierror:
        return f"the name {address.host} does not resolve"
    except ConnectionRefusedError:
        return "refused (nothing listens at that port)"
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return None


async def open_connection(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Plain TCP to where the address points. Raises OSError."""
    host = address.host if address.kind in ("ip4", "ip6") else await _resolve(address)
    return await asyncio.open_connection(host, address.port)


async def _resolve(address: Address) -> str:
    families = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, family=families[address.kind], type=socket.SOCK_STREAM
    )
    if not found:
        raise socket.gaierror(f"{address.host} has no address")
    host = str(found[0][4][0])
    ipaddress.ip_address(host.split("%")[0])
    return host
