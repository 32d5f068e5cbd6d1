"""What a peer needs of the world around it, and the rules that it keeps outside of the deciding module."""

import random
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from interleavings.witness import Witness
from swarm_diloco.network.wire import Signed
from swarm_diloco.rounds.settings import RunRules

if TYPE_CHECKING:
    from interleavings.peer import Peer

READY, LOCKED_OUT = True, False  # what a task yields: it may go on at any time, or when nobody else writes
Waiting = Generator[bool, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """Of coordinator.py and participant.py; a mutant breaks one."""

    votes_before_it_proposes: bool = True
    saves_before_it_sends: bool = True
    resumes_its_proposal: bool = True
    waits_for_lost_rounds: bool = True
    takes_this_ballots_knocks_alone: bool = True
    takes_this_ballots_votes_alone: bool = True


class Surroundings(Protocol):
    rules: RunRules
    conduct: Conduct
    witness: Witness
    chance: random.Random
    steps: int
    is_quiet: bool  # no more faults, and nobody lies any more

    @property
    def part_loss(self) -> float: ...
    @property
    def counts(self) -> Counter[str]: ...
    def everybody(self) -> list[str]: ...
    def post(self, sender: str, to: str, signed: Signed) -> None: ...
    def start(self, peer: "Peer", round_: int, waiting: Waiting) -> None: ...
    def read(self, frame: bytes) -> Signed: ...
    def give_part(self, peer: "Peer", part_hash: bytes) -> bool: ...
    def is_alone(self, peer: "Peer") -> bool: ...
    def may_pass_over(self) -> bool: ...
