"""What a worker counts between commits, and what it may claim (PROTOCOL rules 5 and 9). No clock, no tensors."""

import math
from dataclasses import dataclass

from swarm_diloco.diloco.records import Field, Fields

MAX_MISSED = 8  # S: commits that a Δ may wait to be listed before it is dropped


@dataclass(slots=True)
class Progress:
    """Counters of one worker and one fragment. They survive restarts with the checkpoint.

    *Pending* is what was trained since the last commit that lists the worker. Tokens are claimed once: when a commit
    lists an Offer, both counters fall by what that Offer claimed, times the fraction of its values that are listed.
    """

    step: int = 0  # inner steps in all, refused ones too
    offers: int = 0  # the last Offer's number
    synced_round: int = 0  # whose θ the local model was last taken from
    pending_tokens: int = 0  # for credit
    pending_weight: int = 0  # tokens too, for the average: of a late Δ at most one round's
    late: bool = False  # the last Offer was not listed (yet)
    steps_since_offer: int = 0
    tokens_since_offer: int = 0
    largest_round_tokens: int = 0  # between two Offers, since the last commit that lists the worker in full

    def stepped(self, tokens: int) -> None:
        """One inner step; a refused one has no tokens."""
        self.step += 1
        self.steps_since_offer += 1
        self.tokens_since_offer += tokens
        self.pending_tokens += tokens
        self.pending_weight += tokens

    def offered(self) -> None:
        """Δ is formed: fix what it claims. Weight is capped at one round's if an earlier Offer was not listed."""
        self.largest_round_tokens = max(self.largest_round_tokens, self.tokens_since_offer)
        if self.late:
            self.pending_weight = min(self.pending_weight, self.largest_round_tokens)
        self.late = True
        self.offers += 1
        self.steps_since_offer = self.tokens_since_offer = 0

    def listed(self, *, weight: int, fraction: float, credited_tokens: int) -> None:
        """A commit lists `fraction` of the values of an Offer of `weight`, and credits so many of its tokens.

        The values that it does not list are late: the next Offer's weight is capped on their account.
        """
        self.pending_weight = max(0, self.pending_weight - math.floor(weight * fraction))
        self.pending_tokens = max(0, self.pending_tokens - credited_tokens)
        self.late = fraction < 1
        if not self.late:
            self.largest_round_tokens = 0

    def listed_unseen(self, fraction: float) -> None:
        """The log credits `fraction` of what is pending, though no Outcome came: the program was restarted between."""
        credited_tokens = math.floor(self.pending_tokens * fraction)
        self.listed(weight=self.pending_weight, fraction=fraction, credited_tokens=credited_tokens)

    def missed(self, newest: int) -> int:
        """Commits since the local model was last taken from the global one, when `newest` is the newest."""
        return newest - self.synced_round

    def restarted(self, round_: int) -> None:
        """The local model is the global one after `round_`, and nothing is pending any more."""
        self.synced_round = round_
        self.pending_tokens = self.pending_weight = 0
        self.steps_since_offer = self.tokens_since_offer = self.largest_round_tokens = 0
        self.late = False

    def fields(self) -> list[Field]:
        """For the checkpoint."""
        return [
            self.step,
            self.offers,
            self.synced_round,
            self.pending_tokens,
            self.pending_weight,
            int(self.late),
            self.steps_since_offer,
            self.tokens_since_offer,
            self.largest_round_tokens,
        ]

    @classmethod
    def read(cls, fields: Fields) -> "Progress":
        """What `fields` gave. Raises RecordError."""
        integer = fields.integer
        before = integer(), integer(), integer(), integer(), integer()
        return cls(*before, fields.flag(), integer(), integer(), integer())
