"""Addresses: what is taken, what is refused and why, and which are worth handing on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.network.addresses import invite_addresses, parse, parse_announced, scope, usable
from swarm_diloco.network.identity import Identity

PEER = Identity.from_seed(bytes(32)).peer


@pytest.mark.parametrize(
    "text",
    [
        "/ip4/203.0.113.7/tcp/31337",
        f"/ip4/203.0.113.7/tcp/31337/p2p/{PEER}",
        f"/ip6/2001:db8::1/tcp/1/p2p/{PEER}",
        f"/dns4/swarm.example.org/tcp/443/p2p/{PEER}",
        "/dns/swarm.example.org/tcp/443",
    ],
)
def test_an_address_comes_back_as_it_was(text: str) -> None:
    assert str(parse(text)) == text
    assert str(parse(f"  {text}\n")) == text
    assert parse(text).place == text.split("/p2p/")[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not an address"),
        ("203.0.113.7:31337", "looks like /ip4/"),
        ("/ip4/203.0.113.7", "not an address"),
        ("/ip4/203.0.113.7/udp/1", "only tcp"),
        ("/ip4/203.0.113.7/udp/1/quic-v1", "not an address"),
        ("/ip5/203.0.113.7/tcp/1", "starts with one of"),
        ("/ip4/swarm.example.org/tcp/1", "no IP address"),
        ("/ip4/2001:db8::1/tcp/1", "/ip6/"),
        ("/ip6/203.0.113.7/tcp/1", "/ip4/"),
        ("/dns4//tcp/1", "no host name"),
        ("/ip4/203.0.113.7/tcp/65536", "up to 65535"),
        ("/ip4/203.0.113.7/tcp/-1", "up to 65535"),
        ("/ip4/203.0.113.7/tcp/²", "up to 65535"),
        ("/ip4/203.0.113.7/tcp/1/p2p/", "not the id"),
        ("/ip4/203.0.113.7/tcp/1/p2p/QmStranger", "not the id"),
        ("/ip4/203.0.113.7/tcp/1/p2p/0OIl", "(?i)invalid"),
        (f"/ip4/203.0.113.7/tcp/1/ipfs/{PEER}", "/p2p/PEER-ID"),
        ("/dns/" + "a" * 1000 + "/tcp/1", "characters"),
    ],
)
def test_a_wrong_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text)


@given(st.text(max_size=100) | st.from_regex(r"/(ip4|ip6|dns)/[^/]{0,20}/tcp/[^/]{0,6}(/p2p/[^/]{0,60})?"))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = parse(text)
    except ValueError:
        assert usable([text]) == []
    else:
        assert parse(str(address)) == address


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/ip4/8.8.8.8/tcp/1", "public"),
        ("/ip6/2606:4700::1111/tcp/1", "public"),
        ("/dns4/swarm.example.org/tcp/1", "public"),
        ("/ip4/192.168.1.2/tcp/1", "lan"),
        ("/ip4/10.0.0.1/tcp/1", "lan"),
        ("/ip4/172.17.0.1/tcp/1", "lan"),
        ("/ip4/100.64.0.1/tcp/1", "lan"),
        ("/ip6/fd00::1/tcp/1", "lan"),
        ("/ip4/127.0.0.1/tcp/1", "loopback"),
        ("/ip6/::1/tcp/1", "loopback"),
        ("/dns/localhost/tcp/1", "loopback"),
    ],
)
def test_scope_says_who_can_dial(address: str, expected: str) -> None:
    assert scope(address) == expected


def test_an_invite_holds_public_then_lan_addresses_and_loopback_only_alone() -> None:
    public, lan, loopback = "/ip4/8.8.8.8/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/1"
    assert invite_addresses([loopback, lan, public, lan]) == [public, lan]
    assert invite_addresses([loopback, lan]) == [lan]
    assert invite_addresses([loopback]) == [loopback]
    assert invite_addresses([]) == []


@pytest.mark.parametrize("text", ["/ip4/8.8.8.8/tcp/0", "/ip4/0.0.0.0/tcp/1", "/ip6/::/tcp/1"])
def test_what_nobody_can_dial_is_not_announced(text: str) -> None:
    parse(text)
    with pytest.raises(ValueError, match="cannot dial"):
        parse_announced(text)
