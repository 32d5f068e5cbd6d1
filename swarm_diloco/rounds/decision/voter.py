"""What a peer knows of a round, and what it must remember to be trusted: its promises and votes."""

from collections.abc import Mapping
from dataclasses import dataclass

from swarm_diloco.diloco.records import Field, pack, unpack
from swarm_diloco.network.messages import VoteCast
from swarm_diloco.rounds.council import Council
from swarm_diloco.rounds.settings import RunRules

VOTE_FILE_VERSION = 1
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


class Voter:
    """A peer's promises and votes. The caller makes `encode()` durable before a knock or a vote leaves."""

    def __init__(self) -> None:
        self._promises: dict[tuple[int, bytes], int] = {}
        self._votes: dict[tuple[int, bytes], VoteCast] = {}

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

    def forget_before(self, round_: int) -> None:
        """Drop what belongs to rounds that are decided and applied."""
        self._promises = {key: ballot for key, ballot in self._promises.items() if key[0] >= round_}
        self._votes = {key: cast for key, cast in self._votes.items() if key[0] >= round_}

    def encode(self) -> bytes:
        promises: list[Field] = [[*key, ballot] for key, ballot in sorted(self._promises.items())]
        votes: list[Field] = [
            [*key, cast.ballot, cast.commit_bytes]
            for key, cast in sorted(self._votes.items(), key=lambda item: item[0])
        ]
        return pack([VOTE_FILE_VERSION, promises, votes])

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
        for round_, prev, cast in fields.list_of(
            lambda entry: (entry.integer(), entry.hash_(), VoteCast.read(entry)), limit=4096
        ):
            voter._votes[round_, prev] = cast
        fields.end()
        return voter
