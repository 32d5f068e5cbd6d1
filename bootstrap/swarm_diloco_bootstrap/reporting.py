"""After each round: a line for whoever watches, and the status file for every other program."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from swarm_diloco.diloco.ledger import Commit
from swarm_diloco.errors import DiskError
from swarm_diloco.manifest import Manifest
from swarm_diloco.network.peer_record import Role
from swarm_diloco.rounds.engine import Engine
from swarm_diloco.rounds.follower import Applied, Follower
from swarm_diloco.run_folder import RunFolder
from swarm_diloco_bootstrap.status_file import PeerStatus, round_line

Say = Callable[[str], None]

FIRST_WORD_SECONDS = 20.0  # that a round may be overdue before it is said; then twice as long each time


class Reporter:
    """Tells of every round that is applied after it was made."""

    def __init__(
        self,
        folder: RunFolder,
        manifest: Manifest,
        follower: Follower,
        engine: Engine,
        *,
        role: Role,
        say: Say,
        own_loss: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`own_loss` is asked once a round: the mean training loss since it was asked last."""
        self._folder, self._manifest, self._follower, self._engine = folder, manifest, follower, engine
        self._role, self._say, self._own_loss = role, say, own_loss
        self._applied: asyncio.Queue[tuple[Applied, float]] = asyncio.Queue()
        self._last_at: float | None = None
        self._forks_told = set(engine.status().forks)
        self._repairs_told = 0
        follower.subscribe(self._on_applied)

    def _on_applied(self, applied: Applied) -> None:
        self._applied.put_nowait((applied, asyncio.get_running_loop().time()))

    async def run(self, max_rounds: int | None) -> None:
        """Report until cancelled, or until `max_rounds` rounds have been reported."""
        if self._applied.empty():
            await self._write(self._status_at_start())
        reported = 0
        while max_rounds is None or reported < max_rounds:
            applied, at = await self._next()
            seconds = None if self._last_at is None else at - self._last_at
            self._last_at = at
            status = self._status(applied.commit, applied.digest, applied.state_hash, seconds)
            await self._write(status)
            self._say(round_line(status))
            self._tell_news()
            reported += 1

    def _tell_news(self) -> None:
        """Forks and repairs, each once."""
        status = self._engine.status()
        for fork in set(status.forks) - self._forks_told:
            self._say(
                f"FORK: another branch of this run's log since round {fork.since_round}, its head is round "
                f"{fork.head_round}, {fork.head_digest[:16]}. Nothing is lost: both branches are kept; this peer stays "
                "on its own"
            )
        self._forks_told |= set(status.forks)
        if status.num_repairs > self._repairs_told:
            self._say(
                "this peer's state was not the swarm's, and was replaced by one that the log names. If that happens "
                "again, check this machine's memory"
            )
        self._repairs_told = status.num_repairs

    async def _next(self) -> tuple[Applied, float]:
        """The next round; while it is overdue, say at growing intervals what it waits for."""
        pause_seconds = FIRST_WORD_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    return await self._applied.get()
            self._tell_news()
            if (waiting := self._waiting()) is not None:
                self._say(waiting)
                pause_seconds *= 2

    def _waiting(self) -> str | None:
        """Why there is no round, or None while it is not due or nobody trains."""
        status, overdue_seconds = self._engine.status(), self._follower.overdue_seconds()
        if status.phase == "idle" or overdue_seconds < FIRST_WORD_SECONDS or self._role != "worker":
            return None
        whom = (
            "this peer" if status.coordinator == self._follower.network.peer else f"…{(status.coordinator or '')[-8:]}"
        )
        here = f"; {status.waiting_for[0]} of {status.waiting_for[1]} workers are here" if status.waiting_for else ""
        council = ", ".join(f"…{peer[-8:]}" for peer in status.council)
        rules, next_due_ms = self._follower.rules, self._follower.next_due_ms
        takes = (
            "Its council has no majority, so that it goes on with those who are left; a worker that nobody answers "
            f"goes on alone {rules.alone_seconds(next_due_ms):.0f} s after it was due at the latest"
            if status.is_degraded
            else f"It takes a majority of its council: {council}; without one, those who are left go on "
            f"{rules.degraded_seconds(next_due_ms):.0f} s after it was due"
        )
        return (
            f"round {status.open_round} has been due for {overdue_seconds:.0f} s: {status.phase} at ballot "
            f"{status.ballot}, whose coordinator is {whom}{here}. {takes}"
        )

    def leaving(self) -> None:
        self._say("leaving: telling the others, keeping what was trained (again to leave at once)")

    def left(self) -> None:
        self._say(f"left at round {self._follower.replica.round}")

    async def _write(self, status: PeerStatus) -> None:
        try:
            await self._follower.network.run_blocking(status.write, self._folder.path)
        except DiskError as error:
            self._say(f"no status on disk: {error}")

    def _status_at_start(self) -> PeerStatus:
        log, replica = self._follower.log, self._follower.replica
        return self._status(log.commit(replica.round), log.digest(replica.round), replica.state_hash(), None)

    def _status(self, commit: Commit, digest: bytes, state_hash: bytes, seconds: float | None) -> PeerStatus:
        """`state_hash`: of the commit's fragment, which in this version is all of the state."""
        follower, traffic = self._follower, self._engine.status()
        totals, peer = follower.log.totals, follower.network.peer
        return PeerStatus(
            pid=os.getpid(),
            peer=peer,
            role=self._role,
            run_id=follower.rules.run_id.hex(),
            name=self._manifest.run.name,
            round=commit.round,
            digest=digest.hex(),
            state_hash=state_hash.hex(),
            members=[member.peer for member in commit.members],
            workers=list(commit.workers),
            tokens=totals.tokens,
            own_tokens=totals.tokens_by_peer[peer],
            round_tokens=commit.tokens,
            round_seconds=seconds,
            losses={
                found.set_name: [found.round, found.loss_micronats / 1e6]
                for found in sorted(totals.evaluations, key=lambda found: found.round)
                if found.set_name in self._manifest.evaluation.sets  # a name of a peer's own may be anything
            },
            own_loss=self._own_loss(),
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
            updated_at_ms=follower.network.wall_milliseconds(),
        )
