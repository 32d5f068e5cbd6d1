"""Plays a schedule with a seed and judges it. The same schedule and seed give the same events, in any process."""

import asyncio
import hashlib
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from how_decided import how_decided
from schedules.properties import Tokens, equal_bases, every_token_once, one_log
from schedules.schedule import Bound, Schedule, Trial
from swarm_diloco.network.simulated_network import SimulatedWorld, run_virtual
from swarm_diloco.network.simulated_peer import SimulatedNetwork
from swarm_diloco.network.simulated_stream import SimulatedStream

PROPERTIES = ("one log", "equal bases", "every token once", "no wait past its bound")
ALSO = ("no survivor's step lost", "it ended")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one run."""

    id: str
    seed: int
    happened: str  # how the struck round was decided
    seconds: float  # from the fault to the next decision at the last survivor
    longest_wait: float  # of a survivor's contribution for its round's decision
    bound: Bound
    steps_lost: float  # by those who were there all the time
    dropped: int  # tokens of a Δ that S commits did not list, by those who were away
    brought_again: int  # contributions that a commit did not list
    num_rounds: int
    wrong: dict[str, list[str]]  # property -> what breaks it
    notes: tuple[str, ...]
    events: str  # a hash over all that went over the network, and when
    num_events: int
    virtual_seconds: float

    @property
    def command(self) -> str:
        """Plays it again."""
        return f"python benchmarks/schedules.py --only {self.id!r} --seed {self.seed}"

    @property
    def is_right(self) -> bool:
        return not any(self.wrong.values())

    def __str__(self) -> str:
        broken = "; ".join(f"{name}: {', '.join(found)}" for name, found in self.wrong.items() if found)
        return f"{self.id} seed {self.seed}: {broken or 'all properties hold'}"


class Events:
    """Which bytes left whom for whom, and when."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self.number = 0
        self.is_over = False

    def carried(self, network: SimulatedNetwork, stream: SimulatedStream, line_bytes: int, now: float) -> None:
        if self.is_over:
            return
        self.number += 1
        self._hash.update(f"{now!r} {network.peer} {stream.peer} {line_bytes}\n".encode())

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


@contextmanager
def watched(events: Events) -> Iterator[None]:
    """Note what peers send; and fsync nothing: in this world no machine loses what its processes have written."""
    carry = SimulatedNetwork.carry

    def noted(network: SimulatedNetwork, stream: SimulatedStream, line_bytes: int, arrive: Callable[[], None]) -> None:
        events.carried(network, stream, line_bytes, asyncio.get_running_loop().time())
        carry(network, stream, line_bytes, arrive)

    with patch.object(SimulatedNetwork, "carry", noted), patch("os.fsync", lambda _descriptor: None):
        yield


def run(schedule: Schedule, seed: int, folder: Path | None = None, *, is_short: bool = False) -> Result:
    """Raises nothing that a swarm can do wrong: that is in the result."""
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return run(schedule, seed, Path(made), is_short=is_short)
    events = Events()
    trials: list[Trial] = []
    failure: list[str] = []
    ended_at = 0.0

    async def scenario(world: SimulatedWorld) -> None:
        nonlocal ended_at
        trial = Trial(schedule, world, folder, seed, is_short)
        trials.append(trial)
        try:
            await schedule.play(trial)
        finally:
            ended_at, events.is_over = trial.now, True
            await trial.end()

    with watched(events):
        try:
            run_virtual(scenario, seed=seed, limit_seconds=schedule.limit_seconds)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            failure.append(f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})")
    assert any(peer.follower for peer in trials[0].peers.values()), failure
    return _judged(trials[0], events, failure, ended_at)


def _judged(trial: Trial, events: Events, failure: list[str], ended_at: float) -> Result:
    schedule = trial.schedule
    peers = [peer for peer in trial.peers.values() if peer.follower is not None]
    for peer in peers:
        peer.away_at_the_end = peer.name in trial.dead
    wrong_tokens, tokens = every_token_once(peers)
    waits = {peer.name: peer.longest_wait(ended_at) for peer in peers if peer.trains}
    longest = max(waits.values(), default=0.0)
    seconds = _seconds_to_decision(trial, ended_at) if trial.seconds is None else trial.seconds
    limit = schedule.bound.seconds
    late = [f"{name} waited {wait:.1f} s" for name, wait in waits.items() if wait > limit + trial.usual_seconds]
    if seconds > limit:
        late.append(f"{seconds:.1f} s from {schedule.measured}")
    wrong = dict(zip(PROPERTIES, (one_log(peers), equal_bases(peers), wrong_tokens, late), strict=True))
    steps_lost = _steps_lost(trial, tokens)
    wrong |= dict(zip(ALSO, ([f"{steps_lost:g} steps"] if steps_lost else [], failure), strict=True))
    return Result(
        id=schedule.id,
        seed=trial.seed,
        happened=happened(trial),
        seconds=seconds,
        longest_wait=longest,
        bound=schedule.bound,
        steps_lost=steps_lost,
        dropped=sum(row.dropped for row in tokens if trial.peers[row.name].away),
        brought_again=sum(peer.brought_again for peer in peers),
        num_rounds=trial.head,
        wrong=wrong,
        notes=tuple(trial.notes),
        events=events.digest,
        num_events=events.number,
        virtual_seconds=ended_at,
    )


def _steps_lost(trial: Trial, tokens: list[Tokens]) -> float:
    rows = [(row, trial.peers[row.name]) for row in tokens]
    return sum((row.lost + row.dropped) / peer.weight for row, peer in rows if not peer.away)


def _seconds_to_decision(trial: Trial, ended_at: float) -> float:
    """At the last peer that was there all the time; 0 if nothing was struck."""
    if trial.struck_at is None:
        return 0.0
    struck_at = trial.struck_at
    there = [
        peer
        for peer in trial.peers.values()
        if not peer.away and peer.started_at is not None and peer.started_at <= struck_at
    ]
    at = [peer.applied_at.get(trial.struck_round, ended_at) for peer in there]
    return max((moment - struck_at for moment in at), default=0.0)


def happened(trial: Trial) -> str:
    """How the struck round was decided, in words."""
    if not trial.struck_round:
        return ""
    try:
        header = trial.header(trial.struck_round)
    except IndexError:
        return "not decided"
    return how_decided(header)
