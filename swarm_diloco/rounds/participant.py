"""What one peer brings to every round: its key, its log and state, its promises and votes on disk."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swarm_diloco.diloco.ledger import Commit, degraded_message, digest_of, vote_message
from swarm_diloco.diloco.schedule import fragment_of_round
from swarm_diloco.disk import read_file, write_durably
from swarm_diloco.errors import DiskError, RecordError
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.interface import Network
from swarm_diloco.network.messages import CastVote, Knock, Message
from swarm_diloco.network.wire import Signed, sign
from swarm_diloco.rounds.contribution import Contribution
from swarm_diloco.rounds.decision.degraded import DegradedProposal
from swarm_diloco.rounds.decision.sharing import QUICK_SECONDS, SLOW_FACTOR
from swarm_diloco.rounds.decision.voter import MAX_VOTE_FILE_BYTES, View, Voter
from swarm_diloco.rounds.follower import Follower
from swarm_diloco.rounds.membership import Attendance
from swarm_diloco.rounds.probation import MISSES_REMEMBERED_ROUNDS
from swarm_diloco.rounds.settings import RunRules
from swarm_diloco.rounds.tasks import to_the_end

COMMITS_KNOWN = 64
RATES_REMEMBERED = 8
DIAL_SECONDS = 5.0


@dataclass(slots=True)
class Participant:
    network: Network
    identity: Identity
    rules: RunRules
    follower: Follower
    votes_path: Path
    trains: bool
    is_reachable: bool
    is_training: bool = False  # its trainer is at work: a contribution will come
    attendance: Attendance = field(default_factory=Attendance)
    # Kilobits a second in the newest rounds. A busy receiver makes a line look thinner than it is, nothing wider.
    upload_rates: deque[int] = field(default_factory=lambda: deque(maxlen=RATES_REMEMBERED))
    voter: Voter = field(default_factory=Voter)
    remembered: Callable[[], Sequence[str]] = tuple  # peers met before, beside those that the log names
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    def load_votes(self) -> None:
        """Resume promises and votes after a restart. Raises DiskError naming the file: a peer that forgot what it
        voted must not vote again under the same key.
        """
        try:
            if self.votes_path.exists():
                self.voter = Voter.decode(read_file(self.votes_path, limit_bytes=MAX_VOTE_FILE_BYTES))
                return
        except RecordError as error:
            raise self._has_forgotten(f"is damaged ({error})") from error
        if self.follower.log.totals.rounds_by_peer[self.identity.peer]:
            raise self._has_forgotten("is missing, and this peer has taken part in rounds")

    def _has_forgotten(self, what: str) -> DiskError:
        return DiskError(
            f"{self.votes_path} {what}; this peer must not vote again under its key: "
            "move the key away and join again with a new one"
        )

    def view(self) -> View:
        """Of the next round."""
        follower = self.follower
        fragment = fragment_of_round(follower.log.head.round + 1, self.rules.num_fragments)
        return follower.log.next_view(follower.replica.base(fragment))

    def knock(self, view: View, mine: Contribution | None) -> Knock:
        """What this peer says of itself and of its contribution."""
        credited = view.tokens_credited.get(self.identity.peer, 0)
        return Knock(
            fragment=view.fragment,
            base=view.base,
            weight=mine.weight if mine else 0,
            tokens_from=credited,
            tokens_to=credited + (mine.tokens if mine else 0),
            ranges=mine.ranges if mine else (),
            evaluation=mine.evaluation if mine else (),
            upload_kilobits=self.upload_kilobits,
            step_microseconds=int(mine.step_seconds * 1e6) if mine else 0,
            norm_millionths=int(mine.norm * 1e6) if mine else 0,
            reachable=self.is_reachable and not self._is_slow(view),
            vote=self.voter.reported(view),
        )

    def may_pass_over(self) -> bool:
        """Whether the open round is overdue for so long that a vote whose parts nobody has may be passed over."""
        return self.follower.is_overdue(self.rules.alone_seconds(self.follower.next_due_ms))

    def recent_commits(self) -> list[Commit]:
        """As far back as attendance looks, oldest first."""
        return self.follower.log.newest(MISSES_REMEMBERED_ROUNDS)

    def sign(self, round_: int, ballot: int, message: Message) -> Signed:
        return sign(
            self.identity,
            run=self.rules.run_id,
            round_=round_,
            ballot=ballot,
            head=self.follower.log.head,
            message=message,
        )

    async def tell(self, peer: str, signed: Signed) -> None:
        """One message on a stream of its own. Raises NetworkError, RecordError if it was not read."""
        stream = await self.network.dial(peer, self.rules.control_protocol, timeout_seconds=DIAL_SECONDS)
        try:
            await stream.send(signed.frame, timeout_seconds=DIAL_SECONDS)
            await stream.receive(timeout_seconds=DIAL_SECONDS)  # its close: it was read
        finally:
            await stream.close()

    async def promise(self, view: View, ballot: int) -> bool:
        """Make the promise durable. False if a higher ballot was promised.

        In a round that the disk has lost this peer may have voted, and it has forgotten how since the round was
        decided: it waits until the header is fetched again.
        """
        if self.follower.log.has_lost(view.round):
            await asyncio.Event().wait()
        if not self.voter.promise(view, ballot):
            return False
        await self._save_votes()
        return True

    async def vote(self, view: View, ballot: int, commit_bytes: bytes, digest: bytes) -> CastVote | None:
        """Make the vote durable (its parts are already) and sign it. None if a promise or another vote forbids it."""
        if self.follower.log.has_lost(view.round) or not self.voter.vote(view, ballot, commit_bytes):
            return None
        return await self._cast(digest, vote_message(self.rules.run_id, view.round, ballot, digest))

    async def vote_degraded(
        self, view: View, ballot: int, proposal: DegradedProposal, commit_bytes: bytes
    ) -> CastVote | None:
        """The same for a vote without the council's majority."""
        if self.follower.log.has_lost(view.round):
            return None
        if not self.voter.vote_degraded(view, ballot, commit_bytes, is_adopted=proposal.is_adopted):
            return None
        digest = digest_of(commit_bytes)
        return await self._cast(digest, degraded_message(self.rules.run_id, view.round, ballot, digest, proposal.plan))

    async def _cast(self, digest: bytes, message: bytes) -> CastVote:
        await self._save_votes()
        return CastVote(digest, self.identity.sign(message))

    async def _save_votes(self) -> None:
        """Two writes at once could leave the older on the disk, so that a write is waited for even when cancelled."""
        async with self._saving:
            await to_the_end(self.network.run_blocking(write_durably, self.votes_path, self.voter.encode()))

    def known_peers(self) -> list[str]:
        """Whom to ask whether anybody is there: the newest commits' members, the genesis', remembered ones."""
        log = self.follower.log
        commits = [*reversed(log.newest(COMMITS_KNOWN)), log.commit(0)]
        peers = [*(member.peer for commit in commits for member in commit.members), *self.remembered()]
        return [peer for peer in dict.fromkeys(peers) if peer != self.identity.peer]

    def has_a_turn(self, view: View) -> bool:
        """Whether the log lists this peer as one that can be dialled: it may be dialled, and list itself otherwise."""
        me = self.identity.peer
        return next((member.reachable for member in view.recent if member.peer == me), self.is_reachable)

    @property
    def upload_kilobits(self) -> int:
        """A second; 0 while nothing is known."""
        return max(self.upload_rates, default=0)

    def _is_slow(self, view: View) -> bool:
        """Whether this line needs for one contribution alone twice as long as a whole round usually takes.

        Such a peer says that it cannot be dialled: as coordinator or reducer it would hold up the others.
        """
        usual = self.attendance.usual_seconds
        if usual is None or not self.upload_kilobits:
            return False
        num_bytes = sum(self.rules.upload.encoded_bytes(size) for size in self.rules.part_sizes(view.fragment))
        return num_bytes * 8 / 1000 / self.upload_kilobits > SLOW_FACTOR * max(usual, QUICK_SECONDS)

    @property
    def donors(self) -> list[str]:
        """Whom to ask for log and state: the newest commit's reachable members, weight 0 first, then the genesis'."""
        log = self.follower.log
        newest = [member for member in log.commit(log.head.round).members if member.reachable]
        peers = [member.peer for member in sorted(newest, key=lambda member: member.weight > 0)]
        peers += [member.peer for member in log.commit(0).members]
        return [peer for peer in dict.fromkeys(peers) if peer != self.identity.peer]
