"""A peer of another version or run is told which of the two it is, and what both sides have."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from swarm_diloco.errors import NetworkError, RecordError, RunRefused, SwarmDilocoError
from swarm_diloco.network.handshake import HANDSHAKE_PROTOCOL, PROTOCOL_VERSION, Handshake, shake_hands, show
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.simulated_network import SimulatedWorld, run_virtual

OWN = Handshake(run_id=bytes(range(32)), client_version="0.1.0")
OTHER_RUN = replace(OWN, run_id=bytes(32))
OTHER_VERSION = replace(OWN, protocol_version=PROTOCOL_VERSION + 1, client_version="9.8.7\x1b[31m")
VERSIONS = rf"another protocol version: it speaks {PROTOCOL_VERSION + 1} .*this program {PROTOCOL_VERSION} "


def asked(serve: Any) -> Any:
    """What a peer learns of one that answers by `serve`."""

    async def scenario(world: SimulatedWorld) -> Any:
        alice, bob = world.network(Identity.generate()), world.network(Identity.generate())
        if serve is not None:
            await bob.serve(HANDSHAKE_PROTOCOL, serve)
        return await shake_hands(alice, bob.peer, OWN, timeout_seconds=5.0)

    return run_virtual(scenario, seed=1)


def test_a_peer_of_the_same_run_and_version_is_known_as_such() -> None:
    newer_program = replace(OWN, client_version="0.2.0")
    assert asked(partial(show, own=newer_program)) == newer_program


def test_another_run_is_named_with_both_values() -> None:
    with pytest.raises(RunRefused, match="another manifest") as refused:
        asked(partial(show, own=OTHER_RUN))
    assert "0" * 16 in str(refused.value)
    assert OWN.run_id.hex()[:16] in str(refused.value)


def test_another_version_is_named_with_both_values_in_one_printable_line() -> None:
    """Of a run of another version nothing more is said: its manifest may well differ too."""
    with pytest.raises(RunRefused, match=VERSIONS) as refused:
        asked(partial(show, own=replace(OTHER_VERSION, run_id=bytes(32))))
    assert "9.8.7" in str(refused.value)
    assert "0.1.0" in str(refused.value)
    assert str(refused.value).isprintable()


def test_being_refused_has_an_exit_status_of_its_own() -> None:
    kinds = [RunRefused, *(kind for kind in SwarmDilocoError.__subclasses__() if kind is not RunRefused)]
    assert [kind.exit_status for kind in kinds].count(RunRefused.exit_status) == 1


async def send_junk(stream: Stream) -> None:
    await stream.send(b"\x93junk", timeout_seconds=1.0)
    await stream.receive(timeout_seconds=1.0)


async def send_much(stream: Stream) -> None:
    await stream.send(bytes(2**20), timeout_seconds=1.0)
    await stream.receive(timeout_seconds=1.0)


async def send_nothing(_stream: Stream) -> None:
    await asyncio.sleep(1e6)


@pytest.mark.parametrize(
    ("serve", "error"),
    [(send_junk, RecordError), (send_much, RecordError), (send_nothing, NetworkError), (None, NetworkError)],
)
def test_who_does_not_say_what_it_is_is_no_peer_of_the_run(serve: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        asked(serve)


def test_who_asks_and_does_not_listen_holds_nobody_up() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        alice, bob = world.network(Identity.generate()), world.network(Identity.generate())
        await bob.serve(HANDSHAKE_PROTOCOL, partial(show, own=OWN))
        streams = [await alice.dial(bob.peer, HANDSHAKE_PROTOCOL, timeout_seconds=5.0) for _ in range(20)]
        assert await shake_hands(alice, bob.peer, OWN, timeout_seconds=5.0) == OWN
        await asyncio.sleep(60.0)
        assert not bob.streams()
        for stream in streams:
            await stream.close()

    run_virtual(scenario, seed=1)
