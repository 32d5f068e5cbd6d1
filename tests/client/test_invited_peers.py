"""Where the peers that an invite names can be dialled."""

from swarm_diloco.invite import Invite
from swarm_diloco.network.identity import Identity
from swarm_diloco_client.run_fetching import bootstrap_peers, bootstrap_places


def test_every_address_of_a_peer_is_kept() -> None:
    """Who is told one address after the other remembers the last alone: the LAN's, say, and not the public one."""
    first, second = (Identity.from_seed(bytes([number] * 32)).peer for number in (1, 2))
    addresses = (
        f"/ip4/203.0.113.5/tcp/4001/p2p/{first}",
        f"/ip4/192.168.0.7/tcp/4001/p2p/{first}",
        f"/dns4/example.org/tcp/443/p2p/{second}",
        f"/ip6/2001:db8::1/tcp/4001/p2p/{first}",
    )
    invite = Invite(bytes(32), bytes(32), addresses)
    assert bootstrap_peers(invite) == [first, second]
    assert bootstrap_places(invite) == {
        first: ["/ip4/203.0.113.5/tcp/4001", "/ip4/192.168.0.7/tcp/4001", "/ip6/2001:db8::1/tcp/4001"],
        second: ["/dns4/example.org/tcp/443"],
    }
