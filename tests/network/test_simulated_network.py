"""The simulated network's own promises: virtual time, lines, crashes, freezes, cuts, and the same again by the seed."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from swarm_diloco.errors import NetworkError, PeerUnreachable, StreamLost, StreamTimeout
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.simulated_network import LinkSettings, SimulatedNetwork, SimulatedWorld, run_virtual

HOUR = 3600.0
IDENTITIES = [Identity.from_seed(bytes([number] * 32)) for number in range(4)]


def now() -> float:
    return asyncio.get_running_loop().time()


async def echo(stream: Stream) -> None:
    while True:
        await stream.send(await stream.receive(timeout_seconds=HOUR), timeout_seconds=HOUR)


async def sink(stream: Stream) -> None:
    while True:
        await stream.receive(timeout_seconds=HOUR)


async def mute(stream: Stream) -> None:
    await asyncio.sleep(HOUR)


async def pair(
    world: SimulatedWorld,
    handler: Callable[[Stream], Any],
    here: LinkSettings | None = None,
    there: LinkSettings | None = None,
) -> tuple[SimulatedNetwork, SimulatedNetwork, Any]:
    """Two peers, and a stream from the first to the handler at the second."""
    alice = world.network(IDENTITIES[0], here or LinkSettings())
    bob = world.network(IDENTITIES[1], there or LinkSettings())
    await bob.serve("test", handler)
    return alice, bob, await alice.dial(bob.peer, "test", timeout_seconds=10.0)


def test_time_jumps_and_timeouts_last_exactly_so_long() -> None:
    async def scenario(world: SimulatedWorld) -> float:
        *_, stream = await pair(world, mute)
        began = now()
        with pytest.raises(StreamTimeout):
            await stream.receive(timeout_seconds=1000.0)
        return now() - began

    assert run_virtual(scenario, seed=1) == pytest.approx(1000.0)


def test_waiting_for_what_no_timer_brings_is_an_error_at_once() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="stands still"):
        run_virtual(scenario, seed=1)


def test_a_scenario_that_never_ends_meets_its_limit() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        for _ in range(1000):
            await asyncio.sleep(HOUR)

    with pytest.raises(TimeoutError):
        run_virtual(scenario, seed=1, limit_seconds=100 * HOUR)


def test_a_mistake_in_a_handler_fails_the_scenario() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        async def wrong(stream: Stream) -> None:
            raise ZeroDivisionError("a mistake of ours")

        *_, stream = await pair(world, wrong)
        with pytest.raises(StreamLost):
            await stream.receive(timeout_seconds=1.0)

    with pytest.raises(ZeroDivisionError, match="a mistake of ours"):
        run_virtual(scenario, seed=1)


def test_a_round_trip_takes_two_latencies_of_both_lines() -> None:
    async def scenario(world: SimulatedWorld) -> float:
        *_, stream = await pair(world, echo, LinkSettings(latency_seconds=0.01), LinkSettings(latency_seconds=0.03))
        began = now()
        await stream.send(b"x", timeout_seconds=1.0)
        await stream.receive(timeout_seconds=1.0)
        return now() - began

    assert run_virtual(scenario, seed=1) == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (LinkSettings(up_bytes_per_second=1e6), LinkSettings()),
        (LinkSettings(), LinkSettings(down_bytes_per_second=1e6)),
        (LinkSettings(up_bytes_per_second=1e6), LinkSettings(down_bytes_per_second=4e6)),
    ],
)
def test_the_slower_line_sets_the_pace(here: LinkSettings, there: LinkSettings) -> None:
    async def scenario(world: SimulatedWorld) -> float:
        async def confirm(stream: Stream) -> None:
            await stream.receive(timeout_seconds=HOUR)
            await stream.send(b"", timeout_seconds=HOUR)

        *_, stream = await pair(world, confirm, here, there)
        began = now()
        await stream.send(bytes(10_000_000), timeout_seconds=HOUR)
        await stream.receive(timeout_seconds=HOUR)
        return now() - began

    # 10 MB at 1 MB/s, two latencies of 40 ms, at most two chunks of 131 kB that pass one line after the other
    assert 10.0 <= run_virtual(scenario, seed=1) <= 10.0 + 0.08 + 2 * 0.132


def test_streams_of_one_peer_share_its_line_evenly() -> None:
    async def scenario(world: SimulatedWorld) -> list[float]:
        alice, bob, first = await pair(world, sink, LinkSettings(up_bytes_per_second=1e6))
        second = await alice.dial(bob.peer, "test", timeout_seconds=10.0)
        began = now()

        async def send(stream: Any) -> float:
            await stream.send(bytes(6 * 2**20), timeout_seconds=HOUR)
            return now() - began

        return list(await asyncio.gather(send(first), send(second)))

    one, other = run_virtual(scenario, seed=1)
    assert one == pytest.approx(other, rel=0.1)
    assert max(one, other) == pytest.approx(12 * 2**20 / 1e6, rel=0.2)


def test_loss_and_jitter_cost_time_and_keep_bytes_and_order() -> None:
    frames = [bytes([number]) * (number * 5000) for number in range(100)]

    async def scenario(world: SimulatedWorld, loss_fraction: float) -> float:
        link = LinkSettings(jitter_seconds=0.5, loss_fraction=loss_fraction)
        *_, stream = await pair(world, echo, link, LinkSettings())

        async def send_all() -> None:
            for frame in frames:
                await stream.send(frame, timeout_seconds=HOUR)

        sending = asyncio.create_task(send_all())
        assert [await stream.receive(timeout_seconds=HOUR) for _ in frames] == frames
        await sending
        return now()

    clean = run_virtual(lambda world: scenario(world, 0.0), seed=3)
    lossy = run_virtual(lambda world: scenario(world, 0.3), seed=3)
    assert lossy > clean


def test_a_seed_gives_the_same_run_again_and_another_seed_another() -> None:
    async def scenario(world: SimulatedWorld) -> tuple[float, int]:
        link = LinkSettings(jitter_seconds=0.1, loss_fraction=0.1, dial_failure_fraction=0.3)
        alice, bob = world.network(IDENTITIES[0], link), world.network(IDENTITIES[1], link)
        await bob.serve("test", echo)
        failures = 0
        for _ in range(50):
            try:
                stream = await alice.dial(bob.peer, "test", timeout_seconds=10.0)
            except PeerUnreachable:
                failures += 1
                continue
            await stream.send(bytes(300_000), timeout_seconds=HOUR)
            await stream.receive(timeout_seconds=HOUR)
            await stream.close()
        return now(), failures

    first, again, other = (run_virtual(scenario, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    assert 5 <= first[1] <= 25


def test_a_peer_in_client_mode_is_dialled_only_over_a_connection_of_its_own() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        alice, bob, stream = await pair(world, echo, LinkSettings(client_mode=True))
        await stream.send(b"hello", timeout_seconds=1.0)
        assert await stream.receive(timeout_seconds=1.0) == b"hello"
        await alice.serve("test", echo)
        carol = world.network(IDENTITIES[2])
        with pytest.raises(PeerUnreachable, match="NAT"):
            await carol.dial(alice.peer, "test", timeout_seconds=1.0)
        back = await bob.dial(alice.peer, "test", timeout_seconds=1.0)
        await back.send(b"hello", timeout_seconds=1.0)
        assert await back.receive(timeout_seconds=1.0) == b"hello"
        world.crash(bob.peer)
        with pytest.raises(PeerUnreachable, match="NAT"):
            await world.restart(bob.peer).dial(alice.peer, "test", timeout_seconds=1.0)
        bob = carol
        assert not await alice.is_reachable(bob.peer, timeout_seconds=10.0)
        assert await bob.is_reachable(alice.peer, timeout_seconds=10.0)
        assert list(alice.addresses()) == []

    run_virtual(scenario, seed=1)


def test_a_crash_breaks_streams_loses_what_was_under_way_and_refuses_dials() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        async def answer(stream: Stream) -> None:
            await stream.send(b"arrives", timeout_seconds=1.0)
            await stream.receive(timeout_seconds=1.0)
            await stream.send(b"is under way at the crash", timeout_seconds=1.0)
            world.crash(IDENTITIES[1].peer)

        alice, bob, stream = await pair(world, answer)
        assert await stream.receive(timeout_seconds=1.0) == b"arrives"
        await stream.send(b"go", timeout_seconds=1.0)
        began = now()
        with pytest.raises(StreamLost):
            await stream.receive(timeout_seconds=HOUR)
        assert now() - began == pytest.approx(0.08)
        with pytest.raises(PeerUnreachable, match="refused"):
            await alice.dial(bob.peer, "test", timeout_seconds=HOUR)
        with pytest.raises(NetworkError, match="closed"):
            await bob.dial(alice.peer, "test", timeout_seconds=1.0)
        again = world.restart(bob.peer)
        await again.serve("test", echo)
        stream = await alice.dial(bob.peer, "test", timeout_seconds=1.0)
        await stream.send(b"back", timeout_seconds=1.0)
        assert await stream.receive(timeout_seconds=1.0) == b"back"

    run_virtual(scenario, seed=1)


def test_a_silent_crash_ends_nothing_and_answers_nothing_until_the_restart() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        alice, bob, stream = await pair(world, echo)
        world.crash(bob.peer, silently=True)
        with pytest.raises(StreamTimeout):
            await stream.receive(timeout_seconds=HOUR)
        began = now()
        with pytest.raises(PeerUnreachable, match="did not answer"):
            await alice.dial(bob.peer, "test", timeout_seconds=30.0)
        assert now() - began == pytest.approx(30.0)
        await world.restart(bob.peer).serve("test", echo)
        await alice.dial(bob.peer, "test", timeout_seconds=1.0)

    run_virtual(scenario, seed=1)


def test_a_frozen_peer_is_silent_and_goes_on_where_it_was() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        alice, bob, stream = await pair(world, echo)
        world.freeze(bob.peer)
        await stream.send(b"early", timeout_seconds=1.0)
        with pytest.raises(StreamTimeout):
            await stream.receive(timeout_seconds=100.0)
        with pytest.raises(PeerUnreachable):
            await alice.dial(bob.peer, "test", timeout_seconds=5.0)
        world.thaw(bob.peer)
        assert await stream.receive(timeout_seconds=1.0) == b"early"

        async def send_for_ever() -> None:
            for _ in range(100):
                await stream.send(bytes(2**18), timeout_seconds=1.0)

        world.freeze(bob.peer)
        with pytest.raises(StreamTimeout):
            await send_for_ever()
        world.thaw(bob.peer)

    run_virtual(scenario, seed=1)


def test_a_frozen_peers_own_calls_return_only_when_it_is_thawed() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        alice, bob, stream = await pair(world, echo)
        world.freeze(alice.peer)
        asyncio.get_running_loop().call_later(500.0, world.thaw, alice.peer)
        calls = [
            stream.receive(timeout_seconds=10.0),
            alice.dial(bob.peer, "test", timeout_seconds=10.0),
            alice.announce(b"", lifetime_seconds=1.0),
            alice.run_blocking(int),
        ]
        ends: list[float] = []

        async def note_end(call: Any) -> None:
            with contextlib.suppress(NetworkError):
                await call
            ends.append(now())

        await asyncio.gather(*map(note_end, calls))
        assert min(ends) >= 500.0

    run_virtual(scenario, seed=1)


def test_a_short_cut_delays_bytes_and_a_long_one_breaks_streams() -> None:
    async def scenario(world: SimulatedWorld, cut_seconds: float) -> None:
        alice, bob, stream = await pair(world, echo)
        carol = world.network(IDENTITIES[2])
        await carol.serve("test", echo)
        world.partition([alice.peer, carol.peer], [bob.peer])
        for number in range(5):
            await stream.send(bytes([number]), timeout_seconds=1.0)
        with pytest.raises(PeerUnreachable, match="did not answer"):
            await alice.dial(bob.peer, "test", timeout_seconds=5.0)
        await alice.dial(carol.peer, "test", timeout_seconds=5.0)
        await asyncio.sleep(cut_seconds - 5.0)
        world.heal()
        with contextlib.suppress(StreamLost):
            await stream.send(bytes([5]), timeout_seconds=1.0)  # does not overtake those that waited
        if cut_seconds > 60:
            with pytest.raises(StreamLost):
                await stream.receive(timeout_seconds=HOUR)
        else:
            received = [await stream.receive(timeout_seconds=10.0) for _ in range(6)]
            assert received == [bytes([number]) for number in range(6)]
        await alice.dial(bob.peer, "test", timeout_seconds=5.0)

    run_virtual(lambda world: scenario(world, 20.0), seed=1)
    run_virtual(lambda world: scenario(world, 100.0), seed=1)


def test_a_dial_that_waits_at_a_cut_comes_through_when_it_heals() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        alice, bob, _ = await pair(world, echo)
        world.partition([alice.peer], [bob.peer])
        asyncio.get_running_loop().call_later(7.0, world.heal)
        await alice.dial(bob.peer, "test", timeout_seconds=10.0)
        assert now() >= 7.0

    run_virtual(scenario, seed=1)


def test_records_expire_and_do_not_cross_a_cut() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        alice, bob, _ = await pair(world, echo)
        await alice.announce(b"alice", lifetime_seconds=100.0)
        assert await bob.discover() == {alice.peer: b"alice"}
        world.partition([alice.peer], [bob.peer])
        assert await bob.discover() == {}
        world.heal()
        assert await bob.discover() == {alice.peer: b"alice"}
        await asyncio.sleep(100.0)
        assert await bob.discover() == {}
        world.discovery_works = False
        await alice.announce(b"alice", lifetime_seconds=100.0)
        assert await bob.discover() == {}

    run_virtual(scenario, seed=1)


def test_a_close_may_lose_the_last_bytes_as_libp2p_does() -> None:
    async def scenario(world: SimulatedWorld) -> int:
        async def say_and_leave(stream: Stream) -> None:
            await stream.send(b"goodbye", timeout_seconds=1.0)

        alice, bob, stream = await pair(world, say_and_leave, there=LinkSettings(tail_loss_fraction=0.5))
        arrived = 0
        for _ in range(100):
            with contextlib.suppress(StreamLost):
                arrived += await stream.receive(timeout_seconds=1.0) == b"goodbye"
            await stream.close()
            stream = await alice.dial(bob.peer, "test", timeout_seconds=1.0)
        return arrived

    assert 30 <= run_virtual(scenario, seed=1) <= 70


@pytest.mark.parametrize("settings", [{"latency_seconds": -1.0}, {"up_bytes_per_second": 0.0}, {"loss_fraction": 0.9}])
def test_impossible_lines_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a line"):
        LinkSettings(**settings)  # type: ignore[arg-type]
