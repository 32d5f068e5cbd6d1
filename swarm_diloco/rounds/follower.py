"""Follows the swarm's log: checks, keeps and applies what was decided. Workers, archives, joiners and views all do.

Two steps, in this order always. *Record*: the certificate is right and all parts are on disk. *Apply*: the outer step,
on a state whose base the commit names. A joiner records the live feed while it fetches a snapshot, then applies.
"""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from swarm_diloco.diloco.ledger import Commit, Head, Header
from swarm_diloco.diloco.records import HASH_BYTES
from swarm_diloco.errors import DataError, DiskError, NetworkError, RecordError, StateError, SwarmDilocoError
from swarm_diloco.network.interface import Network
from swarm_diloco.rounds.decision.checks import check_certificate
from swarm_diloco.rounds.forks import MAX_SHOWN, Fork, Forks, find_fork, proven_fork
from swarm_diloco.rounds.library import Donor, Library, RunFiles, library_protocol
from swarm_diloco.rounds.log import Log
from swarm_diloco.rounds.replica import Replica
from swarm_diloco.rounds.settings import RunRules
from swarm_diloco.rounds.snapshot import (
    certify,
    load_snapshot,
    prune_snapshots,
    stored_rounds,
    write_snapshot,
)
from swarm_diloco.rounds.tasks import end, to_the_end
from swarm_diloco.rounds.transfer import fetch_parts, fetch_snapshot

MAX_REPAIRS = 3  # within so many rounds: then this machine computes something else, or forgets
REPAIRS_REMEMBERED_ROUNDS = 64
TOLERANCE = 0.5  # peers learn a decision at unlike moments: who is called to a degraded ballot may think it early
FEED_RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)  # between two donors that failed


@dataclass(frozen=True, slots=True)
class Applied:
    """A round is part of this replica now."""

    commit: Commit
    digest: bytes
    state_hash: bytes  # H(θ_f ‖ m_f) of the round's fragment after it


class Follower:
    """One run's log and replica on this peer, kept up to date from its neighbours."""

    def __init__(
        self,
        network: Network,
        rules: RunRules,
        published: RunFiles,
        folder: Path,
        replica: Replica,
        *,
        keeps_all: bool = False,
    ) -> None:
        self.network = network
        self.rules = rules
        self.log = Log(folder, rules, published.genesis)
        self.replica = replica
        self.published = published
        self.forks = Forks(folder / "forks")
        self._snapshots = folder / "snapshots"
        self._keeps_all = keeps_all
        self._lock = asyncio.Lock()
        self._catching_up = asyncio.Lock()  # two at once would fetch one snapshot into one folder
        self._moved = asyncio.Event()
        self._subscribers: list[Callable[[Applied], None]] = []
        self._head_at = asyncio.get_running_loop().time()  # when the log's head was decided
        self._saw_head_decided = False  # else it may have been long ago
        self.repairs: list[int] = []  # the log's head at each repair of late
        self._told_round = -1  # newest of which subscribers were told

    # --- what others ask

    async def serve(self) -> None:
        """Answer other peers' requests from now on."""
        library = Library(
            self.published,
            self.log,
            self._snapshots,
            wait_past=self.wait_past,
            head_age_seconds=self.head_age_seconds,
            forks=self.forks.shown,
        )
        await self.network.serve(library_protocol(self.rules.run_id), library.serve)

    async def wait_past(self, round_: int) -> None:
        """Until the log's head is past `round_`."""
        while self.log.head.round <= round_:
            await self._moved.wait()

    def subscribe(self, callback: Callable[[Applied], None]) -> None:
        """Be told of each round after it is applied. The callback must be quick and must not raise."""
        self._subscribers.append(callback)

    def head_age_seconds(self) -> float:
        """How long ago the newest round was decided, as far as this peer or its donor knows."""
        return asyncio.get_running_loop().time() - self._head_at

    @property
    def next_due_ms(self) -> int:
        """Of the log's newest commit."""
        return self.log.commit(self.log.head.round).next_due_ms

    def overdue_seconds(self) -> float:
        """How long the next round has been due; negative before it is."""
        return self.head_age_seconds() - self.next_due_ms / 1000

    def seconds_until_due(self) -> float:
        """0 when it is."""
        return max(0.0, -self.overdue_seconds())

    def is_overdue(self, seconds: float) -> bool:
        """Whether the next round is overdue for so long, as far as this peer knows."""
        return not self._saw_head_decided or self.overdue_seconds() >= seconds

    def may_degrade(self) -> bool:
        """Whether it is overdue for so long that it may be decided without its council.

        Else one member could decide, for all who listen, a round that the others are deciding just now.
        """
        return self.is_overdue(self.rules.degraded_seconds(self.next_due_ms) * TOLERANCE)

    @property
    def is_current(self) -> bool:
        """Whether the replica has all that the log has."""
        return self.replica.round == self.log.head.round

    # --- from disk, from donors

    async def load(self, *, strictly: bool = False) -> bool:
        """Take the newest own snapshot that is whole and not past the log. False if there is none.

        `strictly`: one that the log names in all fragments.
        """
        for round_ in reversed(stored_rounds(self._snapshots)):
            if round_ > self.log.head.round:
                continue
            try:
                await self._load(round_, strictly=strictly)
            except (DiskError, RecordError, StateError):
                continue  # damaged or not the swarm's: an older one, or another peer's, will do
            return True
        return False

    async def _load(self, round_: int, *, strictly: bool = False) -> None:
        async with self._lock:
            folder = self._snapshots / str(round_)
            check = partial(certify, self.log, round_, strictly=strictly)
            await to_the_end(self.network.run_blocking(load_snapshot, folder, self.replica, check))

    async def catch_up(self, donors: Sequence[str]) -> None:
        """Headers, state and parts up to the donors' heads, from whoever can give them.

        Raises the last donor's error when none could bring this replica to its log's head.
        """
        async with self._catching_up:
            await self._catch_up(donors)

    async def _catch_up(self, donors: Sequence[str]) -> None:
        failures: list[str] = []
        may_replay = True  # else a donor lets parts go faster than they are replayed: a snapshot is past them
        for peer in [*donors, *donors, *donors]:  # parts, and then a snapshot, may have gone while they were fetched
            try:
                async with Donor(self.network, peer, self.rules.run_id) as donor:
                    await self.catch_up_headers(donor)
                    if self.replica.round < 0 or not (may_replay and await self._can_replay(donor)):
                        await self._state_from(donor)
                await self.apply_recorded([peer, *(other for other in donors if other != peer)])
            except (NetworkError, RecordError, DataError, StateError) as error:
                failures.append(f"{peer[-8:]}: {error}")
                may_replay = may_replay and not isinstance(error, DataError)
                continue
            return
        if failures and not self.is_current:
            raise DataError("nobody could give the run's state: " + "; ".join(failures))

    async def catch_up_headers(self, donor: Donor) -> None:
        """The log up to the donor's head, without parts or state. Raises NetworkError, RecordError, DiskError."""
        takes_degraded = self.may_degrade()
        while headers := await donor.headers(first := self.log.head.round + 1):
            async with self._lock:
                before = self.log.head.round
                for data in headers:
                    header = Header.decode(data)
                    if header.commit().round == self.log.head.round + 1:
                        self._check(header, takes_degraded)
                        self.log.append(header)
            if self.log.head.round < first:
                raise RecordError(f"{donor.peer} gives headers that do not follow the log")
            if self.log.head.round > before:  # else the feed has brought them meanwhile
                self._move()
        head, age_seconds = await donor.head()
        if head == self.log.head:
            self._head_at = asyncio.get_running_loop().time() - min(age_seconds, self.next_due_ms / 1000)

    async def _can_replay(self, donor: Donor) -> bool:
        """Whether the parts of the next round to apply can still be had."""
        if self.is_current:
            return True
        parts = [part.result_hash for part in self.log.commit(self.replica.round + 1).parts]
        missing = [part_hash for part_hash in parts if self.log.parts.get(part_hash) is None]
        return not missing or bool([part async for part in donor.parts(missing[:1])])

    async def _state_from(self, donor: Donor) -> None:
        """The newest certified snapshot: one that the log has gone past, or θ_0."""
        offered = [round_ for round_ in await donor.snapshots() if round_ < self.log.head.round or round_ == 0]
        rounds = [round_ for round_ in offered if round_ > self.replica.round]
        if not rounds:
            raise DataError("it has no newer snapshot that the log has gone past")
        round_ = max(rounds)
        folder = self._snapshots / str(round_)
        for later in range(round_ + 1, self.log.head.round + 1):  # before anybody drops them
            await self._store_parts(self.log.commit(later), [donor.peer])
        feed = asyncio.create_task(self._record_feed(donor.peer))
        try:
            await fetch_snapshot(donor, round_, folder, self.rules)
            await self._load(round_)
        except (RecordError, StateError):
            shutil.rmtree(folder, ignore_errors=True)  # nobody else should get it from here
            raise
        finally:
            await end([feed])

    async def _record_feed(self, peer: str) -> None:
        """Keep what is decided while a snapshot comes, which may take many rounds."""
        with suppress(NetworkError, RecordError, DataError):
            async with (
                Donor(self.network, peer, self.rules.run_id) as donor,
                aclosing(donor.follow(self.log.head.round + 1)) as feed,
            ):
                async for data in feed:
                    await self._record(Header.decode(data), [peer])

    async def follow(self, donors: Callable[[], Sequence[str]]) -> None:
        """Keep one live feed open for ever, to the first of `donors()` that answers."""
        failures = 0
        while True:
            for peer in donors():
                try:
                    async with Donor(self.network, peer, self.rules.run_id) as donor:
                        await self.catch_up_headers(donor)
                        async with aclosing(donor.follow(self.log.head.round + 1)) as feed:
                            async for data in feed:
                                failures = 0
                                await self.learn(Header.decode(data), [peer])
                except DataError:  # parts that nobody keeps any more: a snapshot is past them
                    with suppress(NetworkError, RecordError, DataError):
                        await self.catch_up([peer])
                except NetworkError:
                    continue
                except RecordError:
                    await self.compare(peer)
                    continue
            await asyncio.sleep(FEED_RETRY_SECONDS[min(failures, len(FEED_RETRY_SECONDS) - 1)])
            failures += 1

    async def learn(self, header: Header, holders: Sequence[str]) -> None:
        """Record and apply a decided commit that follows the log; an old one is nothing new, a later one is a gap.

        `holders` are asked for parts that are not here. Raises RecordError, DataError, StateError, DiskError.
        """
        if header.commit().round > self.log.head.round + 1:
            await self.catch_up(holders)
            return
        await self._record(header, holders)
        await self.apply_recorded(holders)

    async def compare(self, peer: str) -> bool:
        """Whether this peer's log is another branch than mine; that fork, and those it has seen, are recorded.

        Bounded, and a peer's faults raise nothing.
        """
        with suppress(NetworkError, RecordError, DataError):
            async with Donor(self.network, peer, self.rules.run_id) as donor:
                if (fork := await find_fork(donor, self.log)) is not None:
                    self.forks.record(fork)
                    return True
                for data in (await donor.forks())[:MAX_SHOWN]:
                    if (told := proven_fork(data, self.log)) is not None:
                        self.forks.record(told)
        return False

    def _note_fork(self, round_: int, header: Header) -> None:
        """Another decided commit for a round of mine: only a certificate proves it."""
        if round_ and header.digest != self.log.digest(round_):
            with suppress(RecordError):
                check_certificate(self.log.view(round_, bytes(HASH_BYTES), {}), header)
                self.forks.record(Fork(round_ - 1, Head(round_, header.digest), header.encode()))

    def _check(self, header: Header, takes_degraded: bool) -> None:
        check_certificate(self.log.next_view(bytes(HASH_BYTES)), header)
        if header.degraded and not takes_degraded:
            raise RecordError("a degraded commit, though the round is not overdue here")

    async def _record(self, header: Header, holders: Sequence[str]) -> None:
        """Make the next header durable, its parts first."""
        commit, received_at = header.commit(), asyncio.get_running_loop().time()
        async with self._lock:
            if commit.round <= self.log.head.round:
                self._note_fork(commit.round, header)
                return
            self._check(header, self.may_degrade())
            await self._store_parts(commit, holders)
            self.log.append(header)
            self._move(received_at)  # not when its parts were here: a slow line is no reason to be late again
            self._saw_head_decided = True

    async def _store_parts(self, commit: Commit, holders: Sequence[str]) -> None:
        hashes = [part.result_hash for part in commit.parts]
        await self.fetch_parts(hashes, holders)
        await self.network.run_blocking(self.log.parts.make_durable, hashes)
        self.log.parts.drop(hashes)

    async def fetch_parts(self, hashes: Sequence[bytes], holders: Sequence[str]) -> None:
        """Hold all these parts, from whoever gives them. Raises DataError: how many are missing."""
        await fetch_parts(self.network, self.rules, self.log.parts, hashes, holders)

    async def apply_recorded(self, holders: Sequence[str]) -> None:
        """Apply what the log has and the replica has not, in order."""
        async with self._lock:
            while 0 <= self.replica.round < self.log.head.round:
                commit = self.log.commit(self.replica.round + 1)
                hashes = [part.result_hash for part in commit.parts]
                await self.fetch_parts(hashes, holders)
                try:
                    await to_the_end(self._apply(commit, hashes))
                except StateError as error:
                    self.condemn_state(error)

    def condemn_state(self, error: StateError) -> None:
        """This replica is not the swarm's: drop it; `repair` brings another. Raises `error` if that does not help."""
        head = self.log.head.round
        self.repairs = [round_ for round_ in self.repairs if round_ > head - REPAIRS_REMEMBERED_ROUNDS]
        if len(self.repairs) >= MAX_REPAIRS:
            raise StateError(
                f"{error}. Its state was replaced {MAX_REPAIRS} times within {REPAIRS_REMEMBERED_ROUNDS} rounds and is "
                "wrong again: this machine computes something else than the others. Check its memory and the "
                "program's version"
            ) from error
        self.repairs.append(head)
        self.replica.round = -1

    async def repair(self, donors: Sequence[str]) -> None:
        """A state that the log names, and the replay from there (protocol rule 10). Raises DataError, StateError."""
        if self.replica.round < 0 and not await self.load(strictly=True):
            await self.catch_up(donors)
        await self.apply_recorded(donors)

    async def _apply(self, commit: Commit, hashes: Sequence[bytes]) -> None:
        """One commit, whole: were it cut short, a thread would still be at θ when the next task comes to apply."""
        await self.network.run_blocking(self.log.parts.make_durable, hashes)
        parts = [self.log.parts.get(part_hash) for part_hash in hashes]
        await self.network.run_blocking(self.replica.apply, commit, [part for part in parts if part])
        self.log.parts.drop_held()
        if commit.round % self.rules.rounds.snapshot_interval == 0:
            await self.network.run_blocking(self.keep_snapshot)
        if commit.round <= self._told_round:
            return  # replayed in a repair
        self._told_round = commit.round
        applied = Applied(commit, self.log.digest(commit.round), self.replica.base(commit.fragment))
        for callback in self._subscribers:
            callback(applied)

    def keep_snapshot(self) -> None:
        """Write the replica as a snapshot, then drop what only older ones need. A full disk costs only the snapshot."""
        folder = self._snapshots / str(self.replica.round)
        try:
            write_snapshot(
                folder,
                run=self.rules.run_id,
                round_=self.replica.round,
                digest=self.log.digest(self.replica.round),
                theta=self.replica.theta,
                momentum=self.replica.momentum,
                applied=self.replica.applied,
            )
        except SwarmDilocoError:
            return
        prune_snapshots(self._snapshots)
        if not self._keeps_all:
            kept = stored_rounds(self._snapshots)[-2:]
            self.log.prune_parts(kept[0] + 1)

    def _move(self, decided_at: float | None = None) -> None:
        self._head_at = asyncio.get_running_loop().time() if decided_at is None else decided_at
        self._moved.set()
        self._moved = asyncio.Event()
