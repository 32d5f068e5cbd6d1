"""Who decides a round, taken from the log alone (protocol rule 1)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swarm_diloco.diloco.ledger import Member
from swarm_diloco.diloco.records import hash_of, pack

MAX_COUNCIL = 9


@dataclass(frozen=True, slots=True)
class Council:
    """Up to nine peers, reachable ones first; the first candidate is the tie-breaker."""

    members: tuple[str, ...]
    candidates: tuple[str, ...]

    def candidate(self, ballot: int) -> str:
        """The only peer that may coordinate this ballot."""
        return self.candidates[ballot % len(self.candidates)]

    def is_majority(self, peers: Collection[str]) -> bool:
        """More than half of the council, or exactly half with the tie-breaker."""
        present = sum(member in peers for member in self.members)
        return 2 * present > len(self.members) or (2 * present == len(self.members) and self.candidates[0] in peers)


def rendezvous(run_id: bytes, round_: int, peer: str) -> bytes:
    """Sort key: the same order for all, another order each round."""
    return hash_of(pack([run_id, round_, peer]))


def council_of(run_id: bytes, round_: int, members: Sequence[Member]) -> Council:
    """The council of `round_`, from the members that commit round_ − W (or the last one with any) lists."""
    ordered = sorted(members, key=lambda member: (not member.reachable, rendezvous(run_id, round_, member.peer)))
    council = ordered[:MAX_COUNCIL]
    peers = tuple(member.peer for member in council)
    reachable = tuple(member.peer for member in council if member.reachable)
    return Council(peers, reachable or peers)
