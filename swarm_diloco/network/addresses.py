"""Where a peer can be dialled: multiaddrs over TCP, and which of them are worth telling to whom.

/ip4/203.0.113.7/tcp/31337/p2p/12D3Koo…      /dns4/swarm.example.org/tcp/31337/p2p/12D3Koo…
"""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from swarm_diloco.network.identity import public_key_of

Scope = Literal["public", "lan", "loopback"]

MAX_ADDRESS_CHARACTERS = 400  # a DNS name has at most 253
HOST_KINDS = ("ip4", "ip6", "dns", "dns4", "dns6")
EXAMPLE = "/ip4/203.0.113.7/tcp/31337"


@dataclass(frozen=True, slots=True)
class Address:
    """One parsed multiaddr. `str()` gives its text again."""

    kind: str  # one of HOST_KINDS
    host: str
    port: int
    peer: str | None  # the /p2p/ part

    def __str__(self) -> str:
        place = f"/{self.kind}/{self.host}/tcp/{self.port}"
        return place if self.peer is None else f"{place}/p2p/{self.peer}"

    @property
    def place(self) -> str:
        """The text without the /p2p/ part."""
        return str(Address(self.kind, self.host, self.port, None))


def parse(text: str) -> Address:
    """Raises ValueError saying what is wrong with `text`."""
    if len(text) > MAX_ADDRESS_CHARACTERS:
        raise ValueError(f"an address of {len(text)} characters")
    parts = text.strip().split("/")
    if parts[0] != "" or len(parts) not in (5, 7):
        raise ValueError(f"{text!r} is not an address; one looks like {EXAMPLE}, with /p2p/PEER-ID where it is dialled")
    _, kind, host, transport, port_text, *rest = parts
    if kind not in HOST_KINDS:
        raise ValueError(f"{text}: an address starts with one of {', '.join(HOST_KINDS)}, not {kind!r}")
    if transport != "tcp":
        raise ValueError(f"{text}: only tcp is used, not {transport!r}")
    _check_host(text, kind, host)
    if not (port_text.isascii() and port_text.isdigit() and int(port_text) <= 65535):
        raise ValueError(f"{text}: a port is a number up to 65535, not {port_text!r}")
    peer = None
    if rest:
        if rest[0] != "p2p":
            raise ValueError(f"{text}: what follows the port is /p2p/PEER-ID, not {rest[0]!r}")
        peer = rest[1]
        public_key_of(peer)
    return Address(kind, host, int(port_text), peer)


def _check_host(text: str, kind: str, host: str) -> None:
    if kind in ("ip4", "ip6"):
        try:
            version = ipaddress.ip_address(host).version
        except ValueError as error:
            raise ValueError(f"{text}: {host!r} is no IP address (a name is written /dns/NAME/tcp/PORT)") from error
        if kind != f"ip{version}":
            raise ValueError(f"{text}: {host} belongs after /ip{version}/")
    elif not host or any(character.isspace() for character in host):
        raise ValueError(f"{text}: {host!r} is no host name")


def parse_announced(text: str) -> Address:
    """An address that others are told to dial: with a real port and a real host. Raises ValueError."""
    address = parse(text)
    if address.port == 0:
        raise ValueError(f"{text}: others cannot dial port 0; give the port that is open to them")
    if address.kind in ("ip4", "ip6") and ipaddress.ip_address(address.host).is_unspecified:
        raise ValueError(f"{text}: {address.host} is an address to listen at; others cannot dial it")
    return address


def scope(address: str) -> Scope:
    """Who can dial it: everybody, the same local network, or this machine alone. Raises ValueError."""
    parsed = parse(address)
    if parsed.kind not in ("ip4", "ip6"):
        return "loopback" if parsed.host == "localhost" else "public"
    ip = ipaddress.ip_address(parsed.host)
    if ip.is_loopback:
        return "loopback"
    return "public" if ip.is_global else "lan"


def invite_addresses(addresses: Iterable[str]) -> list[str]:
    """Those worth handing on: public first, then LAN; loopback ones only if there is nothing else."""
    by_scope: dict[Scope, list[str]] = {"public": [], "lan": [], "loopback": []}
    for address in dict.fromkeys(addresses):
        by_scope[scope(address)].append(address)
    return by_scope["public"] + by_scope["lan"] or by_scope["loopback"]


def usable(texts: Iterable[str]) -> Sequence[Address]:
    """Those that can be parsed: what other programs state may hold kinds of address that we do not know."""
    addresses = []
    for text in texts:
        try:
            addresses.append(parse(text))
        except ValueError:
            continue
    return addresses
