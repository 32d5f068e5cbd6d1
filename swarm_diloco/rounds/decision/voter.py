"""What a peer knows of a round, and what it must remember to be trusted: its promises and votes."""

from collections.abc import Mapping
from dataclasses import dataclass

from swarm_diloco.diloco.ledger import Member
from swarm_diloco.diloco.records import Field, pack, unpack
from swarm_diloco.errors import RecordError
from swarm_diloco.network.messages import FIRST_DEGRADED, VoteCast
from swarm_diloco.rounds.council import Council, rendezvous
from swarm_diloco.rounds.settings import RunRules

RECENT_COMMITS = 3  # their members may go on without the council's majority
VOTE_FILE_VERSION = 2
MAX_VOTE_FILE_BYTES = 2**26


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a peer knows of a round from its log and state: all that a decision may rest on."""

    rules: RunRules
    round: int
    fragment: int
    prev: bytes  # D_{r−1}
    anchor: bytes  # D_{r−W}, which names the council
    base: bytes  # of my own state
    council: Council
    tokens_credited: Mapping[str, int]  # a member's counter as of its last commit on this chain
    recent: tuple[Member, ...] = ()  # of the chain's last RECENT_COMMITS, each as it was listed last

    def candidate(self, ballot: int) -> str | None:
        """The only peer that may coordinate this ballot; None if nobody whom others can dial may."""
        if ballot < FIRST_DEGRADED:
            return self.council.candidate(ballot)
        peers = sorted(
            (member.peer for member in self.recent if member.reachable),
            key=lambda peer: rendezvous(self.rules.run_id, self.round, peer),
        )
        turn = (ballot - FIRST_DEGRADED) % (len(peers) + 1)  # the last turn is for who cannot be dialled: for itself
        return peers[turn] if turn < len(peers) else None

    def is_last_turn(self, ballot: int) -> bool:
        """Whether all candidates have had their turn once more by this ballot."""
        if ballot < FIRST_DEGRADED:
            return (ballot + 1) % len(self.council.candidates) == 0
        return self.candidate(ballot) is None


class Voter:
    """A peer's promises and votes. The caller makes `encode()` durable before a knock or a vote leaves."""

    def __init__(self) -> None:
        self._promises: dict[tuple[int, bytes], int] = {}
        self._votes: dict[tuple[int, bytes], VoteCast] = {}
        self._degraded_votes: dict[tuple[int, bytes], VoteCast] = {}

    def promised(self, view: View) -> int:
        """The lowest ballot in which this peer may still vote."""
        return self._promises.get((view.round, view.anchor), 0)

    def promise(self, view: View, ballot: int) -> bool:
        """Give up all ballots below this one. False if a higher one was promised."""
        if ballot < self.promised(view):
            return False
        self._promises[view.round, view.anchor] = ballot
        return True

    def vote_cast(self, view: View) -> VoteCast | None:
        return self._votes.get((view.round, view.prev))

    def vote(self, view: View, ballot: int, commit_bytes: bytes) -> bool:
        """Vote, unless a higher ballot was promised or another commit has this ballot's vote."""
        cast = self.vote_cast(view)
        if ballot < self.promised(view) or (cast and cast.ballot == ballot and cast.commit_bytes != commit_bytes):
            return False
        self._promises[view.round, view.anchor] = ballot
        self._votes[view.round, view.prev] = VoteCast(ballot, commit_bytes)
        return True

    def reported(self, view: View) -> VoteCast | None:
        """The vote that a knock tells of: a degraded one counts for nothing beside another."""
        return self.vote_cast(view) or self.degraded_vote_cast(view)

    def degraded_vote_cast(self, view: View) -> VoteCast | None:
        return self._degraded_votes.get((view.round, view.prev))

    def vote_degraded(self, view: View, ballot: int, commit_bytes: bytes, *, is_adopted: bool) -> bool:
        """Vote without the council's majority: once in a round, but for what must be adopted."""
        cast = self.degraded_vote_cast(view)
        if ballot < self.promised(view) or (cast and cast.commit_bytes != commit_bytes and not is_adopted):
            return False
        self._promises[view.round, view.anchor] = ballot
        self._degraded_votes[view.round, view.prev] = VoteCast(ballot, commit_bytes)
        return True

    def forget_before(self, round_: int) -> None:
        """Drop what belongs to rounds that are decided and applied."""
        self._promises = {key: ballot for key, ballot in self._promises.items() if key[0] >= round_}
        self._votes = {key: cast for key, cast in self._votes.items() if key[0] >= round_}
        self._degraded_votes = {key: cast for key, cast in self._degraded_votes.items() if key[0] >= round_}

    def encode(self) -> bytes:
        promises: list[Field] = [[*key, ballot] for key, ballot in sorted(self._promises.items())]
        return pack([VOTE_FILE_VERSION, promises, _vote_fields(self._votes), _vote_fields(self._degraded_votes)])

    @classmethod
    def decode(cls, data: bytes) -> "Voter":
        """Raises RecordError."""
        fields = unpack(data, "vote file", limit_bytes=MAX_VOTE_FILE_BYTES)
        fields.version(VOTE_FILE_VERSION)
        voter = cls()
        for round_, anchor, ballot in fields.list_of(
            lambda entry: (entry.integer(), entry.hash_(), entry.integer()), limit=4096
        ):
            voter._promises[round_, anchor] = ballot
        for votes in (voter._votes, voter._degraded_votes):
            for round_, prev, cast in fields.list_of(
                lambda entry: (entry.integer(), entry.hash_(), VoteCast.read(entry)), limit=4096
            ):
                votes[round_, prev] = cast
        fields.end()
        if voter.encode() != data:
            raise RecordError("vote file: not in canonical form")
        return voter


def _vote_fields(votes: Mapping[tuple[int, bytes], VoteCast]) -> list[Field]:
    return [[*key, cast.ballot, cast.commit_bytes] for key, cast in sorted(votes.items(), key=lambda item: item[0])]
