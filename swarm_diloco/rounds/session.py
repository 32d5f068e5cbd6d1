"""One peer's way through one round: knock, plan, exchange, vote, decided. Then the next candidate, if that failed.

idle → knocked(b) → planned(b, a) → sending → holding → voted(b) → decided → applied
"""

import asyncio
from contextlib import suppress

from swarm_diloco.diloco.ledger import Commit, Header
from swarm_diloco.errors import DataError, NetworkError, RecordError, StateError, StreamTimeout
from swarm_diloco.network.interface import Stream
from swarm_diloco.network.messages import (
    FIRST_DEGRADED,
    Ahead,
    Beat,
    Behind,
    Bye,
    Coming,
    Decided,
    Message,
    NotMe,
    OtherState,
    Plan,
    Promised,
    Propose,
    Refused,
    Sealed,
    Waiting,
)
from swarm_diloco.network.wire import Signed, read_signed
from swarm_diloco.rounds.candidacy import Candidacy, next_ballot
from swarm_diloco.rounds.contribution import Contribution, encode_parts
from swarm_diloco.rounds.decision.checks import is_other_state
from swarm_diloco.rounds.decision.degraded import is_degraded
from swarm_diloco.rounds.exchange import Exchange
from swarm_diloco.rounds.local_stream import local_pair
from swarm_diloco.rounds.participant import DIAL_SECONDS, Participant
from swarm_diloco.rounds.shared_stream import SharedStream
from swarm_diloco.rounds.tasks import Tasks, end
from swarm_diloco.rounds.voting import vote_for

RETRY_SECONDS = 1.0
SAME_TRIES = 5  # a candidate that lacks a commit, or says that I do, gets so many retries
DEADLINE_GROWTH = 1.5  # each ballot waits longer than the one before


class BallotFailed(Exception):
    """This ballot will not do; try `ballot` (or the next one)."""

    def __init__(self, ballot: int | None = None) -> None:
        self.ballot = ballot


class Session:
    """One round at one peer. `run` returns when the log holds the round."""

    def __init__(self, participant: Participant) -> None:
        self.view = participant.view()
        self.phase = "idle"
        self.waiting_for: tuple[int, int] | None = None  # workers here, workers needed
        self.knock_hashes: set[bytes] = set()  # of what this session has knocked with
        self._participant = participant
        self._tasks = Tasks()
        self.candidacy = Candidacy(participant, self.view, on_begin=self._called)
        self.exchange = Exchange(participant, self.view, self._tasks, on_held=self.candidacy.held)
        self._ballot = participant.voter.promised(self.view)
        self._ballot_raised = asyncio.Event()
        self._contribution: Contribution | None = None
        self._encoded: list[memoryview] | None = None
        self._is_ready = asyncio.Event()
        self._own_knock: Signed | None = None
        self._member_streams: list[Stream] = []
        self._voting: list[asyncio.Task[None] | None] = []
        self._num_same = 0  # knocks at one ballot again
        self._num_turns = 0  # how often all candidates were tried
        self._plan_ends_at = 0.0  # deadline of the plan that is being followed
        self._called_to = 0  # a ballot that has begun meanwhile

    @property
    def round(self) -> int:
        return self.view.round

    @property
    def ballot(self) -> int:
        return self._ballot

    @property
    def plan_members(self) -> tuple[str, ...]:
        """Who is in the round, once a plan is known."""
        plan = self.exchange.plan
        return tuple(peer for peer, _ in plan.members) if plan else ()

    # --- what this peer brings

    async def bring(self, contribution: Contribution) -> None:
        """Encode this worker's parts and take part with them."""
        rules, fragment = self.view.rules, self.view.fragment
        self.phase = "encoding"
        self._encoded = await self._participant.network.run_blocking(encode_parts, rules, fragment, contribution.delta)
        self._contribution = contribution
        self.candidacy.stalled_from = self._now + self._participant.follower.seconds_until_due()
        self._is_ready.set()

    def take_part(self) -> None:
        """Take part without a contribution: to vote, coordinate and reduce."""
        self._is_ready.set()

    async def run(self) -> None:
        """Until the round is in the log. Raises StateError, DiskError: both end this peer's part in the run."""
        try:
            await self._tasks.run(self._until_decided())
        finally:
            self._encoded = None  # at once: it may be most of what this peer holds
        log = self._participant.follower.log
        self.candidacy.conclude(log.header_bytes(self.round))
        self._participant.voter.forget_before(log.head.round + 1)
        self._learn_from_it()

    async def _until_decided(self) -> None:
        self._tasks.start(self.candidacy.run())
        self._tasks.start(self._take_part())
        self._tasks.start(self._degrade())
        await self._participant.follower.wait_past(self.round - 1)

    def _learn_from_it(self) -> None:
        """What this round showed: how long rounds take, how fast this peer uploads."""
        if self.exchange.planned_at is not None:
            self._participant.attendance.decided(asyncio.get_running_loop().time() - self.exchange.planned_at)
        if (kilobits := self.exchange.traffic.line.kilobits()) is not None:
            self._participant.upload_rates.append(kilobits)
        self.exchange.learn_from(self._participant.follower.log.commit(self.round))

    async def leave(self) -> None:
        """Say bye to the coordinator: on the stream to it, or on one made for that."""
        self.candidacy.leave()
        streams = list(self._member_streams)
        for stream in streams:
            with suppress(NetworkError):
                await self._send(stream, Bye())
        if not streams:
            await self._tell_candidate(Bye())

    # --- as a member

    async def _take_part(self) -> None:
        await self.announce_newcomer()
        await self._is_ready.wait()
        wait = self.view.rules.rounds.deadline_seconds
        while True:
            ballot = self._ballot
            self._ballot_raised.clear()
            try:
                await self._knock_at(ballot, wait)
                return
            except BallotFailed as failed:
                self._raise_ballot(failed.ballot if failed.ballot is not None else ballot + 1)
            except (NetworkError, RecordError):
                self._num_turns += self.view.is_last_turn(ballot)
                self._raise_ballot(ballot + 1)
                await asyncio.sleep(min(RETRY_SECONDS * (1 + self._num_turns), 10.0))
            self._plan_ends_at = 0.0
            self._raise_ballot(self._called_to)
            wait = min(wait * DEADLINE_GROWTH, self.view.rules.rounds.deadline_ceiling_seconds)

    async def _degrade(self) -> None:
        """Stalled for long: leave the council's ballots, but not in the middle of a plan (protocol rule 10)."""
        await self._is_ready.wait()
        if self.candidacy.stalled_from is None:
            return  # who brings nothing comes when called
        patience = self._participant.rules.degraded_seconds(self._participant.follower.next_due_ms)
        while True:
            wakes_at = max(self.candidacy.stalled_from + patience, self._plan_ends_at)
            if wakes_at <= self._now:
                self._raise_ballot(FIRST_DEGRADED)
                return
            await asyncio.sleep(wakes_at - self._now)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def announce_newcomer(self) -> None:
        """Ask to be waited for, if the log does not: else a newcomer in step with the others comes late for ever."""
        log, me = self._participant.follower.log, self._participant.identity.peer
        is_listed = log.commit(log.head.round).member(me) is not None
        if is_listed or not self._participant.is_training or self._is_ready.is_set():
            return
        await self._tell_candidate(Coming())

    async def _tell_candidate(self, message: Message) -> None:
        """One message outside of a knock's stream, if it can be delivered."""
        candidate = self.view.candidate(self._ballot)
        if candidate is not None and candidate != self._participant.identity.peer:
            with suppress(NetworkError, RecordError):
                await self._participant.tell(candidate, self._participant.sign(self.round, self._ballot, message))

    def _called(self, ballot: int, is_majority: bool) -> None:
        """A higher ballot has begun. One slow member that lost its coordinator must not end the exchange of all others:
        without a majority of the council there, a plan goes on until it is decided or fails.
        """
        self._called_to = max(self._called_to, ballot)
        if is_majority or self._plan_ends_at <= self._now:
            self._raise_ballot(ballot)

    def _raise_ballot(self, ballot: int) -> None:
        ballot = next_ballot(self._ballot, ballot)
        if ballot > self._ballot:
            self._ballot = ballot
            self._num_same = 0
            self._ballot_raised.set()
            self.candidacy.raised(ballot)

    async def _knock_at(self, ballot: int, wait_seconds: float) -> None:
        """One ballot from knock to decided. Raises BallotFailed or NetworkError when it will not be decided here."""
        candidate = self.view.candidate(ballot)
        if candidate is None:
            if self._participant.has_a_turn(self.view):
                raise BallotFailed
            candidate = self._participant.identity.peer
        if not await self._participant.promise(self.view, ballot):
            raise BallotFailed(self._participant.voter.promised(self.view))
        stream = await self._open(candidate, ballot)
        self._member_streams.append(stream)
        beating = asyncio.create_task(self._beat(stream))
        raised = asyncio.create_task(self._ballot_raised.wait())
        following = asyncio.create_task(self._follow(stream, candidate, ballot, wait_seconds))
        try:
            self.phase = "knocked"
            await asyncio.wait({raised, following}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                raise BallotFailed(self._ballot)
            await following
        finally:
            self._member_streams.remove(stream)
            await end((beating, raised, following))
            await self._end_voting()
            await stream.close()

    async def _open(self, candidate: str, ballot: int) -> Stream:
        knock = self._participant.sign(self.round, ballot, self._participant.knock(self.view, self._contribution))
        self._own_knock = knock
        self.knock_hashes.add(knock.hash_)
        if candidate == self._participant.identity.peer:
            mine, theirs = local_pair(candidate)
            self._tasks.start(self.candidacy.coordinator(ballot).attend(knock, theirs))
            return SharedStream(mine)
        stream = await self._participant.network.dial(
            candidate, self.view.rules.control_protocol, timeout_seconds=DIAL_SECONDS
        )
        try:
            await stream.send(knock.frame, timeout_seconds=DIAL_SECONDS)
        except BaseException:
            await stream.close()
            raise
        return SharedStream(stream)

    async def _beat(self, stream: Stream) -> None:
        with suppress(NetworkError):
            while True:
                await asyncio.sleep(self.view.rules.rounds.heartbeat_seconds)
                await self._send(stream, Beat())

    async def _send(self, stream: Stream, message: Message) -> None:
        signed = self._participant.sign(self.round, self._ballot, message)
        await stream.send(signed.frame, timeout_seconds=self.view.rules.rounds.silence_seconds)

    async def _follow(self, stream: Stream, candidate: str, ballot: int, wait_seconds: float) -> None:
        """Do what the coordinator says until it says `decided`."""
        loop = asyncio.get_running_loop()
        rounds = self.view.rules.rounds
        is_due_in = self._participant.follower.seconds_until_due()  # whoever knocks early waits
        deadline = loop.time() + is_due_in + wait_seconds if self._contribution is not None else None
        has_told = False
        while True:
            limit = rounds.silence_seconds
            if deadline is not None:
                limit = min(limit, deadline - loop.time())
                if limit <= 0:
                    raise BallotFailed
            try:
                frame = await stream.receive(timeout_seconds=limit)
            except StreamTimeout:
                if deadline is not None and loop.time() >= deadline:
                    raise BallotFailed from None
                raise
            signed = read_signed(frame, run=self.view.rules.run_id, sender=candidate)
            match signed.message:
                case Plan() as plan:
                    self._follow_plan(plan, stream, ballot)
                    deadline = self._plan_ends_at = loop.time() + plan.deadline_in_ms / 1000
                case Propose() as proposal:
                    until = deadline or loop.time() + wait_seconds
                    self._voting.append(self._tasks.start(self._vote(proposal, stream, ballot, until)))
                case Waiting(have, need) if need == rounds.minimum_workers and have < need:
                    self.waiting_for = (have, need)
                    self.candidacy.stalled_from = loop.time()  # the council is here, and wants more workers
                    deadline = loop.time() + wait_seconds if self._contribution is not None else None
                case Decided(header):
                    await self._end_voting()
                    await self._learn(header, candidate)
                    return
                case Ahead() if not has_told:
                    has_told = True  # it learns of the commit before this round, and takes this knock then
                    await self._send(stream, Decided(self._participant.follower.log.header_bytes(self.round - 1)))
                case other:
                    await self._heed_refusal(other, candidate, ballot)

    async def _heed_refusal(self, message: Message, candidate: str, ballot: int) -> None:
        """The candidate will not coordinate this knock. Anything else, a beat say, is no refusal."""
        match message:
            case Behind(header):
                await self._learn(header, candidate)
                await self._knock_again(ballot)
            case Ahead():
                await self._knock_again(ballot)
            case Promised(promised):
                is_early = (
                    is_degraded(promised) and not is_degraded(ballot) and not self._participant.follower.may_degrade()
                )
                raise BallotFailed(ballot + 1 if is_early else max(promised, ballot + 1))
            case NotMe():
                raise BallotFailed
            case OtherState(knocks):
                signed = [read_signed(frame, run=self.view.rules.run_id) for frame in knocks]
                if is_other_state(self.view, ballot, signed):  # a candidate's word is not enough to stop for
                    raise StateError(f"round {self.round}: the council's state is not this peer's")
                raise BallotFailed
            case Refused(reason):
                self.phase = f"refused: {reason}"
                await self._participant.follower.compare(candidate)
                await asyncio.sleep(RETRY_SECONDS if is_degraded(ballot) else self.view.rules.rounds.deadline_seconds)
                raise BallotFailed
            case Bye():
                self._participant.attendance.left(candidate)
                raise BallotFailed

    async def _knock_again(self, ballot: int) -> None:
        """One of us lacks a commit, which will be put right soon; or the candidate lies: tries are counted."""
        self._num_same += 1
        await asyncio.sleep(RETRY_SECONDS)
        raise BallotFailed(ballot if self._num_same < SAME_TRIES else None)

    def _holders(self, candidate: str) -> list[str]:
        """Who may have the round's parts: its coordinator proposes nothing that it does not hold."""
        return [candidate, *(peer for peer in self.plan_members if peer != candidate)]

    async def _learn(self, header: bytes, candidate: str) -> None:
        try:
            await self._participant.follower.learn(Header.decode(header), self._holders(candidate))
        except (RecordError, DataError) as error:
            raise BallotFailed from error

    # --- the exchange

    def _follow_plan(self, plan: Plan, stream: Stream, ballot: int) -> None:
        assert self._own_knock is not None

        def tell(sealed: Sealed) -> None:
            self._tasks.start(self._tell(stream, sealed))

        self.exchange.follow(plan, ballot=ballot, own=self._own_knock, encoded=self._encoded, tell=tell)
        self.waiting_for = None
        self.phase = "exchanging"

    async def _tell(self, stream: Stream, message: Message) -> None:
        with suppress(NetworkError):
            await self._send(stream, message)

    # --- the vote

    async def _vote(self, proposal: Propose, stream: Stream, ballot: int, deadline: float) -> None:
        """If this peer is of the council, the proposal is right and all its parts are on this disk.

        Beside the following of the coordinator, which may decide while this peer still fetches parts.
        """
        participant = self._participant
        if participant.identity.peer not in self.view.council.members and not is_degraded(ballot):
            return
        self.phase = "voting"
        try:
            async with asyncio.timeout_at(deadline):
                await self.exchange.wait_for_parts(Commit.decode(proposal.commit_bytes))
                holders = self._holders(stream.peer) if self.plan_members else participant.donors
                own = self._own_knock
                cast = await vote_for(participant, self.view, ballot, proposal, own=own, holders=holders)
            if cast is not None:
                await self._send(stream, cast)
                return
        except (DataError, NetworkError):
            return  # the others may be enough; `decided` or the deadline comes
        except (RecordError, TimeoutError):
            pass
        self._raise_ballot(max(ballot + 1, participant.voter.promised(self.view)))

    async def _end_voting(self) -> None:
        await end([task for task in self._voting if task is not None])
        self._voting.clear()
