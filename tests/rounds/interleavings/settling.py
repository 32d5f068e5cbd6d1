"""The quiet end of a run: no more faults, and enough peers are there. The next round must be decided."""

from collections import defaultdict
from typing import TYPE_CHECKING

from interleavings.peer import Peer
from interleavings.witness import STUCK, UNNOTICED, is_majority
from swarm_diloco.network.messages import FIRST_DEGRADED
from swarm_diloco.rounds.decision.degraded import is_degraded
from swarm_diloco.rounds.decision.voter import View

if TYPE_CHECKING:
    from interleavings.world import World

BALLOTS = 12  # within so many
CLOCKS = 8  # a coordinator's waits in one ballot: patience, three attempts, fetching


def settle(world: "World") -> None:
    present = _those_who_stay(world)
    _gather(world, present)
    if not _can_decide(present):  # with what they have heard last, another council is asked
        present = list(world.peers.values())
        _gather(world, present)
    _compare_logs(world, present)
    chain = _largest_branch(present)
    if not _can_go_on(chain, is_alone=len(world.peers) == 1):
        world.counts["runs without a quiet end"] += 1  # no branch has a candidate and a worker, or all lost a round
        return
    target = chain[0].next_round
    for _ in range(BALLOTS):
        _one_ballot(world, chain)
        if any(peer.next_round > target for peer in chain):
            world.counts["quiet ends with a decision"] += 1
            return
    world.witness.violated(STUCK, f"round {target} with {len(chain)} of {len(world.peers)} peers")


def _those_who_stay(world: "World") -> list[Peer]:
    present = list(world.peers.values())
    if world.scenario.majority_tail and not world.scenario.degrading:
        for peer in world.chance.sample(present, len(present)):
            others = [other for other in present if other is not peer]
            if _can_decide(others):
                present = others
    return present


def _can_decide(peers: list[Peer]) -> bool:
    """By the council that the newest log among them names."""
    peers = [peer for peer in peers if not peer.has_lost(peer.next_round)]
    if not any(peer.trains for peer in peers):
        return False  # nor if nobody is left
    newest = max(peers, key=lambda peer: peer.next_round)
    council, names = newest.log.council(newest.next_round), {peer.name for peer in peers}
    return is_majority(council, names) and bool(names & set(council.candidates))


def _gather(world: "World", present: list[Peer]) -> None:
    """The others stop; these hear all that is under way, and who is behind on one chain comes up."""
    for peer in world.peers.values():
        if peer not in present and peer.is_up:
            peer.crash()
        peer.is_up = peer in present
    drain(world)
    for _ in range(2):
        for teller in sorted(present, key=lambda peer: -peer.next_round):
            for hearer in present:
                for round_ in range(1, teller.next_round):
                    if round_ >= hearer.next_round or teller.log.digest(round_) != hearer.log.digest(round_):
                        teller.tell(hearer.name, round_)
                        drain(world)


def _compare_logs(world: "World", present: list[Peer]) -> None:
    """Who is behind on one chain has come up; who is on another knows of the fork."""
    for one in present:
        for other in present:
            rounds = range(1, min(one.next_round, other.next_round))
            fork = next((round_ for round_ in rounds if one.log.digest(round_) != other.log.digest(round_)), None)
            if fork is None and one.next_round < other.next_round:
                world.witness.violated(STUCK, f"{one.name[-6:]} cannot follow past round {one.next_round - 1}")
            if fork is not None and fork not in one.forks:
                world.witness.violated(UNNOTICED, f"{one.name[-6:]} does not know that round {fork} was decided twice")


def _largest_branch(present: list[Peer]) -> list[Peer]:
    branches: defaultdict[bytes, list[Peer]] = defaultdict(list)
    for peer in present:
        branches[peer.log.head.digest].append(peer)
    return max(branches.values(), key=len)


def _still_in_council(chain: list[Peer]) -> list[Peer]:
    """Who has promised a degraded ballot has left the council's vote."""
    return [peer for peer in chain if not is_degraded(peer.voter.promised(_view(peer)))]


def _can_go_on(chain: list[Peer], *, is_alone: bool) -> bool:
    if _can_decide(_still_in_council(chain)):
        return True
    chain = [peer for peer in chain if not peer.has_lost(peer.next_round)]
    if not chain:
        return False
    reachable = {member.peer for member in _view(chain[0]).recent if member.reachable}
    can_degrade = len(chain) > 1 and bool(reachable & {peer.name for peer in chain})
    return (can_degrade or is_alone) and any(peer.trains for peer in chain)


def _view(peer: Peer) -> View:
    return peer.log.view_of(peer.next_round)


def _one_ballot(world: "World", chain: list[Peer]) -> None:
    """All knock at the lowest ballot that is open to them and whose candidate is there."""
    normal = _still_in_council(chain)
    is_normal = _can_decide(normal)
    chain = [peer for peer in (normal if is_normal else chain) if not peer.has_lost(peer.next_round)]
    view, names = _view(chain[0]), {peer.name for peer in chain}
    ballot = 1 + max(peer.voter.promised(view) for peer in chain)
    if not is_normal:
        ballot = max(ballot, FIRST_DEGRADED)
    while chain[0].candidate_of(view, ballot) not in names:
        ballot += 1
    for peer in chain:
        world.start(peer, view.round, peer.knock(view.round, ballot))
    drain(world)
    coordinator = world.peers[chain[0].candidate_of(view, ballot) or ""]
    for _ in range(CLOCKS):
        found = coordinator.candidate.ballots.get((view.round, ballot))
        wakes_at = found.wakes_at() if found else None
        if wakes_at is None:
            return
        coordinator.now = max(coordinator.now, wakes_at)
        coordinator.candidate.advance((view.round, ballot))
        drain(world)


def drain(world: "World") -> None:
    """Deliver and finish everything, in any order."""
    world.release_late(float("inf"))
    busy = True
    while busy:
        busy = False
        while world.bag:
            busy = True
            index = world.chance.randrange(len(world.bag))
            _, to, signed = world.bag[index]
            world.bag[index] = world.bag[-1]
            world.bag.pop()
            if world.peers[to].is_up:
                world.peers[to].hear(world.read(signed.frame))
        for peer in world.peers.values():
            while peer.tasks:
                busy = True
                world.go_on(peer)
