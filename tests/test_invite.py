"""invite: what is pasted is read whole or refused with what to do."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.diloco.records import hash_of, pack
from swarm_diloco.errors import InviteError, ManifestError
from swarm_diloco.invite import MAX_ADDRESSES, PREFIX, Invite
from swarm_diloco.network.identity import Identity, peer_id_of

KEY = Identity.from_seed(bytes(32)).public_key
PEER = peer_id_of(KEY)
OTHER = Identity.from_seed(bytes([1] * 32)).peer
RUN = bytes(range(32))

keys = st.binary(min_size=32, max_size=32)
wheres = st.sampled_from(
    ["/ip4/203.0.113.5/tcp/4000", "/ip6/2001:db8::1/tcp/1", "/dns4/a-very.long.example/tcp/65535", "/future/x~y/z"]
)
addresses = st.tuples(wheres, st.sampled_from([PEER, OTHER])).map("/p2p/".join)
invites = st.builds(Invite, keys, keys, st.lists(addresses, min_size=1, max_size=MAX_ADDRESSES).map(tuple))


def invite_of(record: bytes) -> str:
    data = record + hash_of(record)[:4]
    return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


@given(invites)
def test_an_invite_reads_back(invite: Invite) -> None:
    assert Invite.decode(invite.encode()) == invite


@given(invites, st.data())
def test_line_breaks_blanks_and_quotes_of_a_paste_do_no_harm(invite: Invite, data: st.DataObject) -> None:
    text = invite.encode()
    at = data.draw(st.integers(0, len(text)))
    assert Invite.decode(f" '{text[:at]}\r\n   {text[at:]}'\n") == invite


@given(invites, st.data())
def test_one_wrong_or_missing_character_is_noticed(invite: Invite, data: st.DataObject) -> None:
    text = invite.encode()
    at = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.sampled_from("ABCabc019-_").filter(lambda letter: letter != text[at]))
    for damaged in (text[:at] + letter + text[at + 1 :], text[:at] + text[at + 1 :], text[:at]):
        with pytest.raises(InviteError):
            Invite.decode(damaged)


@pytest.mark.parametrize("where", ["/ip4/1.2.3.4/tcp/1", "/ip4/1.2.3.4/tcp/10", "/ip4/1.2.3.4/tcp/100"])
def test_the_last_character_holds_no_slack(where: str) -> None:
    text = Invite(RUN, KEY, (f"{where}/p2p/{PEER}",)).encode()
    for letter in set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") - {text[-1]}:
        with pytest.raises(InviteError):
            Invite.decode(text[:-1] + letter)


@given(st.text() | st.text("sd1ABC-_= \n", max_size=60).map(PREFIX.__add__) | st.binary().map(invite_of))
def test_any_text_is_refused_in_one_printable_line(text: str) -> None:
    with pytest.raises(InviteError) as raised:
        Invite.decode(text)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [RUN, KEY],
        [RUN, KEY, []],
        [RUN[:31], KEY, [[KEY, [[b"/ip4/1.2.3.4/tcp/1"]]]]],
        [RUN, KEY, [[KEY, [[b"/ip4/1.2.3.4/tcp/1"]]]], 0],
        [RUN, KEY, [[KEY, [[b"/ip4/1.2.3.4/tcp/1"]] * 17]]],
        [RUN, KEY, [[KEY, [[b"/ip4/1.2.3.4/tcp/1"]] * 9]] * 2],
        [RUN, KEY, [[KEY, [[b"/ip4/1.2.3.4\n/tcp/1"]]]]],
        [RUN, KEY, [[KEY, [[b"/ip4/\x1b[31m/tcp/1"]]]]],
        [RUN, KEY, [[KEY, [[b"\xff"]]]]],
        [RUN, KEY, [[KEY, [[b"1.2.3.4:80"]]]]],
        [RUN, KEY, [[KEY, [[b"/" + b"a" * 200]]]]],
        [RUN, KEY, [[KEY[:5], [[b"/ip4/1.2.3.4/tcp/1"]]]]],
        [RUN, KEY, "x"],
    ],
)
def test_a_well_packed_invite_with_hostile_fields_is_refused(fields: list[object]) -> None:
    with pytest.raises(InviteError):
        Invite.decode(invite_of(pack(fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an invite begins with sd1"),
        (f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}", "an invite begins with sd1, this begins with '/ip4/1.2.3.4/tcp/1/p'"),
        ("sd2AAAA", "of another version"),
        ("sd1" + "A" * 10_000, "over 6000 characters"),
    ],
)
def test_what_is_no_invite_is_said(text: str, message: str) -> None:
    with pytest.raises(InviteError, match=message):
        Invite.decode(text)


@pytest.mark.parametrize(
    "address", ["/ip4/1.2.3.4/tcp/1", f"/p2p/{PEER}", f"/ip4/1.2.3.4/tcp/1/p2p/{PEER} ", "/a/p2p/Qm"]
)
def test_an_address_without_place_or_peer_makes_no_invite(address: str) -> None:
    with pytest.raises(ValueError, match=r"address|peer"):
        Invite(RUN, KEY, (address,))


def test_an_invite_stays_short() -> None:
    three = tuple(f"/ip4/{host}/tcp/40000/p2p/{PEER}" for host in ("203.0.113.50", "192.168.100.20", "10.100.200.30"))
    assert len(Invite(RUN, KEY, three).encode()) < 300


def test_another_manifest_than_the_invites_is_refused() -> None:
    with pytest.raises(InviteError, match="not the one that the invite names"):
        Invite(RUN, KEY, (f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}",)).check(b"x = 1")
    with pytest.raises(ManifestError):
        Invite(hash_of(b"x = 1"), KEY, (f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}",)).check(b"x = 1")
