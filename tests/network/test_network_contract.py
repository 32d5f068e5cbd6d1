"""What both networks promise (network/interface.py), tried over each."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from swarm_diloco.errors import PeerUnreachable, RecordError, StreamLost, StreamTimeout
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import MAX_FRAME_BYTES, Stream

Run = Callable[[Callable[..., Any]], Any]
FRAME_BYTES = [0, 1, 3, 2**16, 2**16 + 1, 2**20 - 4, 4 * 2**20]
SHORT_SECONDS = 0.05  # for waits that must end by their timeout
LONG_SECONDS = 60.0  # for waits that must not


def frame_of(num_bytes: int) -> bytes:
    return bytes(index % 251 for index in range(min(num_bytes, 1009))) * (num_bytes // 1009 + 1)


async def echo(stream: Stream) -> None:
    while True:
        await stream.send(await stream.receive(timeout_seconds=LONG_SECONDS), timeout_seconds=LONG_SECONDS)


async def mute(stream: Stream) -> None:
    await asyncio.sleep(LONG_SECONDS)  # cancelled or ended with the loop, never waited for


def test_frames_of_all_sizes_come_back_whole_and_in_order(run: Run) -> None:
    frames = [frame_of(size)[:size] for size in FRAME_BYTES]

    async def scenario(swarm: Any) -> None:
        await swarm.bob.serve(swarm.protocol, echo)
        stream = await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)

        async def send_all() -> None:
            for frame in frames:
                await stream.send(frame, timeout_seconds=LONG_SECONDS)

        sending = asyncio.create_task(send_all())
        received = [await stream.receive(timeout_seconds=LONG_SECONDS) for _ in frames]
        await sending
        await stream.close()
        assert received == frames

    run(scenario)


def test_a_frame_may_be_any_buffer_and_is_taken_as_it_was_at_the_call(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        await swarm.bob.serve(swarm.protocol, echo)
        stream = await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)
        buffer = bytearray(b"a" * 3 * 2**18)
        await stream.send(memoryview(buffer), timeout_seconds=LONG_SECONDS)
        buffer[:] = b"b" * len(buffer)
        await stream.send(buffer, timeout_seconds=LONG_SECONDS)
        assert set(await stream.receive(timeout_seconds=LONG_SECONDS)) == {ord("a")}
        assert set(await stream.receive(timeout_seconds=LONG_SECONDS)) == {ord("b")}
        await stream.close()

    run(scenario)


def test_each_side_knows_who_the_other_is(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        async def name_caller(stream: Stream) -> None:
            await stream.send(stream.peer.encode(), timeout_seconds=LONG_SECONDS)
            await stream.receive(timeout_seconds=LONG_SECONDS)

        await swarm.carol.serve(swarm.protocol, name_caller)
        for caller in (swarm.alice, swarm.bob):
            stream = await caller.dial(swarm.carol.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)
            assert stream.peer == swarm.carol.peer
            assert (await stream.receive(timeout_seconds=LONG_SECONDS)).decode() == caller.peer
            await stream.close()

    run(scenario)


def test_64_streams_into_one_peer_at_once_all_arrive(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        await swarm.carol.serve(swarm.protocol, echo)

        async def ask(caller: Any, number: int) -> bytes:
            stream = await caller.dial(swarm.carol.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)
            await stream.send(b"%d" % number, timeout_seconds=LONG_SECONDS)
            answer: bytes = await stream.receive(timeout_seconds=LONG_SECONDS)
            await stream.close()
            return answer

        callers = [swarm.alice, swarm.bob] * 32
        answers = await asyncio.gather(*(ask(caller, number) for number, caller in enumerate(callers)))
        assert answers == [b"%d" % number for number in range(64)]

    run(scenario)


def test_an_end_after_the_last_frame_is_stream_lost_on_both_calls(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        async def one_frame(stream: Stream) -> None:
            await stream.send(b"only", timeout_seconds=LONG_SECONDS)
            await stream.receive(timeout_seconds=LONG_SECONDS)

        await swarm.bob.serve(swarm.protocol, one_frame)
        stream = await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)
        assert await stream.receive(timeout_seconds=LONG_SECONDS) == b"only"
        await stream.send(b"enough", timeout_seconds=LONG_SECONDS)
        with pytest.raises(StreamLost):
            await stream.receive(timeout_seconds=LONG_SECONDS)
        with pytest.raises(StreamLost):
            await stream.send(b"more", timeout_seconds=LONG_SECONDS)
        await stream.close()

    run(scenario)


@pytest.mark.parametrize("error", [RecordError("not a record"), StreamLost("gone")])
def test_a_handler_that_raises_ends_its_stream_and_serves_the_next(run: Run, error: Exception) -> None:
    async def scenario(swarm: Any) -> None:
        async def fail(stream: Stream) -> None:
            if await stream.receive(timeout_seconds=LONG_SECONDS) == b"fail":
                raise error
            await stream.send(b"fine", timeout_seconds=LONG_SECONDS)
            await stream.receive(timeout_seconds=LONG_SECONDS)

        await swarm.bob.serve(swarm.protocol, fail)
        first = await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)
        await first.send(b"fail", timeout_seconds=LONG_SECONDS)
        with pytest.raises(StreamLost):
            await first.receive(timeout_seconds=LONG_SECONDS)
        second = await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)
        await second.send(b"work", timeout_seconds=LONG_SECONDS)
        assert await second.receive(timeout_seconds=LONG_SECONDS) == b"fine"
        await first.close()
        await second.close()

    run(scenario)


def test_after_a_silence_the_stream_still_works(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        await swarm.bob.serve(swarm.protocol, echo)
        stream = await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)
        with pytest.raises(StreamTimeout):
            await stream.receive(timeout_seconds=SHORT_SECONDS)
        await stream.send(b"still there?", timeout_seconds=LONG_SECONDS)
        assert await stream.receive(timeout_seconds=LONG_SECONDS) == b"still there?"
        await stream.close()

    run(scenario)


def test_a_cancelled_receive_loses_nothing(run: Run) -> None:
    frame = frame_of(2**21)

    async def scenario(swarm: Any) -> None:
        await swarm.bob.serve(swarm.protocol, echo)
        stream = await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)
        sending = asyncio.create_task(stream.send(frame, timeout_seconds=LONG_SECONDS))
        for turns in range(40):
            receiving = asyncio.create_task(stream.receive(timeout_seconds=LONG_SECONDS))
            for _ in range(turns):
                await asyncio.sleep(0)
            receiving.cancel()
            done = await asyncio.gather(receiving, return_exceptions=True)
            if isinstance(done[0], bytes):
                break
        else:
            done = [await stream.receive(timeout_seconds=LONG_SECONDS)]
        assert done[0] == frame
        await sending
        await stream.close()

    run(scenario)


def test_a_receiver_that_never_reads_stops_its_sender_in_time_and_no_one_else(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        await swarm.bob.serve(swarm.protocol, mute)
        await swarm.bob.serve(f"{swarm.protocol}.echo", echo)
        stream = await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)

        async def send_for_ever() -> None:
            for _ in range(100):  # 100 MB: more than any buffer between the two
                await stream.send(bytes(2**20), timeout_seconds=1.0)

        with pytest.raises(StreamTimeout):
            await send_for_ever()
        with pytest.raises(StreamLost):
            await stream.send(b"", timeout_seconds=LONG_SECONDS)
        other = await swarm.alice.dial(swarm.bob.peer, f"{swarm.protocol}.echo", timeout_seconds=LONG_SECONDS)
        await other.send(b"hello", timeout_seconds=LONG_SECONDS)
        assert await other.receive(timeout_seconds=LONG_SECONDS) == b"hello"
        await stream.close()
        await other.close()

    run(scenario)


def test_a_frame_over_the_readers_limit_is_refused_before_it_is_read(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        await swarm.bob.serve(swarm.protocol, echo)
        stream = await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)
        await stream.send(bytes(1001), timeout_seconds=LONG_SECONDS)
        with pytest.raises(RecordError, match="1001 bytes"):
            await stream.receive(timeout_seconds=LONG_SECONDS, limit_bytes=1000)
        with pytest.raises(StreamLost):
            await stream.receive(timeout_seconds=LONG_SECONDS)
        await stream.close()

    run(scenario)


def test_a_frame_over_the_general_limit_is_the_senders_mistake(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        await swarm.bob.serve(swarm.protocol, echo)
        stream = await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)
        with pytest.raises(ValueError, match="at most"):
            await stream.send(bytes(MAX_FRAME_BYTES + 1), timeout_seconds=LONG_SECONDS)
        await stream.send(b"and on", timeout_seconds=LONG_SECONDS)
        assert await stream.receive(timeout_seconds=LONG_SECONDS) == b"and on"
        await stream.close()

    run(scenario)


def test_a_protocol_that_nobody_serves_is_peer_unreachable(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        with pytest.raises(PeerUnreachable):
            await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)

    run(scenario)


def test_a_protocol_is_served_once(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        await swarm.alice.serve(swarm.protocol, echo)
        with pytest.raises(ValueError, match="served already"):
            await swarm.alice.serve(swarm.protocol, mute)

    run(scenario)


def test_a_peer_that_is_nowhere_is_peer_unreachable_within_the_timeout(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        with pytest.raises(PeerUnreachable):
            await swarm.alice.dial(Identity.generate().peer, swarm.protocol, timeout_seconds=2.0)

    run(scenario)


def test_a_peer_does_not_dial_itself(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        with pytest.raises(ValueError, match="itself"):
            await swarm.alice.dial(swarm.alice.peer, swarm.protocol, timeout_seconds=1.0)

    run(scenario)


def test_records_are_found_by_others_and_the_newer_one_wins(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        await swarm.alice.announce(b"old", lifetime_seconds=60)
        await swarm.bob.announce(b"bob", lifetime_seconds=60)
        await swarm.alice.announce(b"new", lifetime_seconds=30)
        for reader in (swarm.alice, swarm.bob, swarm.carol):
            found = await reader.discover()
            assert dict(found) == {swarm.alice.peer: b"new", swarm.bob.peer: b"bob"}
        with pytest.raises(ValueError, match="at most"):
            await swarm.carol.announce(bytes(2049), lifetime_seconds=60)

    run(scenario)


def test_streams_close_twice_and_at_either_end(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        ended = asyncio.Event()

        async def close_twice(stream: Stream) -> None:
            try:
                await stream.receive(timeout_seconds=LONG_SECONDS)
            except StreamLost:
                ended.set()
            await stream.close()
            await stream.close()

        await swarm.bob.serve(swarm.protocol, close_twice)
        stream = await swarm.alice.dial(swarm.bob.peer, swarm.protocol, timeout_seconds=LONG_SECONDS)
        await stream.close()
        await stream.close()
        async with asyncio.timeout(LONG_SECONDS):
            await ended.wait()
        with pytest.raises(StreamLost):
            await stream.receive(timeout_seconds=LONG_SECONDS)
        with pytest.raises(StreamLost):
            await stream.send(b"", timeout_seconds=LONG_SECONDS)

    run(scenario)


def test_a_listening_peer_is_reachable_and_an_unknown_judge_says_no(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        assert await swarm.alice.is_reachable(swarm.bob.peer, timeout_seconds=10.0)
        assert not await swarm.alice.is_reachable(Identity.generate().peer, timeout_seconds=2.0)

    run(scenario)


def test_blocking_work_gives_its_result_or_its_error(run: Run) -> None:
    async def scenario(swarm: Any) -> None:
        assert await swarm.alice.run_blocking(divmod, 17, 5) == (3, 2)
        with pytest.raises(ZeroDivisionError):
            await swarm.alice.run_blocking(divmod, 1, 0)

    run(scenario)
