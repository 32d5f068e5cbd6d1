"""One run: a bag of messages, peers that wait, and a scheduler that does anything at any time."""

import random
from bisect import bisect
from collections import Counter
from functools import lru_cache
from itertools import accumulate

from interleavings.liar import Liar
from interleavings.memory_log import genesis_of, rules_of
from interleavings.peer import Peer
from interleavings.scenario import Scenario
from interleavings.settling import settle
from interleavings.surroundings import LOCKED_OUT, Conduct, Waiting
from interleavings.witness import Witness
from small_swarm import identity
from swarm_diloco.network.identity import Identity
from swarm_diloco.network.messages import FIRST_DEGRADED, CastVote, Decided, Propose
from swarm_diloco.network.wire import Signed, read_signed
from swarm_diloco.rounds.settings import RunRules

MAX_BAG = 400  # messages; past it any are lost
LATE_STEPS = (30, 300)  # how much later a late message may come
Letter = tuple[str, str, Signed]  # from whom, to whom


@lru_cache
def rules_for(fragments: int) -> RunRules:
    return rules_of(fragments)


@lru_cache
def identity_of(number: int) -> Identity:
    return identity(f"interleaved {number}")


class World:
    def __init__(self, scenario: Scenario, *, conduct: Conduct | None = None, witness: Witness | None = None) -> None:
        self.scenario = scenario
        self.weather = scenario.weather
        self.rules = rules_for(scenario.fragments)
        self.conduct = conduct or Conduct()
        self.witness = witness or Witness()
        self.witness.may_pass_over = scenario.may_pass_over
        self.chance = random.Random(scenario.seed)
        self.steps = 0
        self.is_quiet = False
        self.bag: list[Letter] = []
        self._late: list[tuple[int, Letter]] = []
        self._read: dict[bytes, Signed] = {}
        self._side: dict[str, int] = {}  # of a cut through the network; none: nothing is cut
        self.peers = self._people()
        self._names = list(self.peers)
        w = self.weather
        self._haste = {name: self.chance.choice(w.hastes) for name in self._names}
        self._lateness = {Propose: w.late_proposals, CastVote: w.late_votes, Decided: w.late_decisions}
        kinds = {
            self.deliver: w.deliver,
            self.resume: w.resume,
            self.knock: w.knock,
            self.wake: w.wake,
            self.crash: w.crash,
            self.stop: w.stop,
            self.start_again: w.start,
            self.gossip: w.tell,
            self.cut: w.cut,
            self.join: w.join,
        }
        self._kinds = list(kinds)
        self._bounds = list(accumulate(kinds.values()))

    def _people(self) -> dict[str, Peer]:
        scenario = self.scenario
        founders = [
            (identity_of(number).peer, number not in scenario.client_mode) for number in range(scenario.founders)
        ]
        genesis = genesis_of(self.rules, founders)
        peers = {}
        for number in range(scenario.num_peers):
            kind = Liar if number == scenario.liar else Peer
            peers[identity_of(number).peer] = kind(
                self,
                identity_of(number),
                genesis,
                is_reachable=number not in scenario.client_mode,
                trains=number not in scenario.archives,
            )
        return peers

    @property
    def counts(self) -> Counter[str]:
        return self.witness.counts

    @property
    def part_loss(self) -> float:
        return 0.0 if self.is_quiet else self.weather.lost_part

    def run(self) -> None:
        """Raises Violation."""
        for self.steps in range(self.scenario.steps):  # noqa: B020 - the step is part of the world
            self._kinds[bisect(self._bounds, self.chance.random() * self._bounds[-1])]()
        self.is_quiet = True
        self._side = {}
        settle(self)
        self.witness.finish()
        for peer in self.peers.values():
            self.witness.holds(peer.name, [header.digest for header in peer.disk.headers])
            self.witness.holds(peer.name, [header.digest for header in peer.log.headers])

    # --- what a peer needs of it

    def everybody(self) -> list[str]:
        return self._names

    def post(self, sender: str, to: str, signed: Signed) -> None:
        self.counts["messages"] += 1
        lateness = self._lateness.get(type(signed.message), 0.0)
        if lateness and not self.is_quiet and self.chance.random() < lateness:
            self._late.append((self.steps + self.chance.randint(*LATE_STEPS), (sender, to, signed)))
        else:
            self.bag.append((sender, to, signed))

    def read(self, frame: bytes) -> Signed:
        """Reading depends on the frame's bytes alone, so that each is read, and its signature checked, once."""
        if frame not in self._read:
            self._read[frame] = read_signed(frame, run=self.rules.run_id)
        return self._read[frame]

    def give_part(self, peer: Peer, part_hash: bytes) -> bool:
        """From its own memory or disk, or from whoever is up and holds it."""
        if part_hash in peer.held or part_hash in peer.disk.parts:
            return True
        holders = (other for other in self.peers.values() if other.is_up and not self.is_cut(peer.name, other.name))
        if not any(part_hash in other.held or part_hash in other.disk.parts for other in holders):
            return False
        if not self.is_quiet and self.chance.random() < 0.1:
            return False
        peer.held.add(part_hash)
        return True

    def is_cut(self, one: str, other: str) -> bool:
        return self._side.get(one) != self._side.get(other)

    def is_alone(self, peer: Peer) -> bool:
        others = (other for other in self.peers.values() if other is not peer)
        return not any(other.is_up and not self.is_cut(peer.name, other.name) for other in others)

    def may_pass_over(self) -> bool:
        return self.scenario.may_pass_over

    def start(self, peer: Peer, round_: int, waiting: Waiting) -> None:
        while True:
            try:
                state = next(waiting)
            except StopIteration:
                return
            if state is LOCKED_OUT or self.is_quiet or self.chance.random() > self._haste[peer.name]:
                peer.tasks.append((round_, waiting, state))
                return

    def go_on(self, peer: Peer) -> None:
        round_, waiting, _ = peer.tasks.pop(self.chance.choice(peer.ready_tasks()))
        self.start(peer, round_, waiting)

    # --- what may happen

    def _any_up(self) -> Peer | None:
        peer = self.peers[self.chance.choice(self._names)]
        return peer if peer.is_up else None

    def deliver(self) -> None:
        chance, bag = self.chance, self.bag
        if self._late and chance.random() < 0.2:
            self.release_late(self.steps)
        if not bag:
            self.knock()
            return
        if len(bag) > MAX_BAG:
            del bag[chance.randrange(len(bag))]
        newest = chance.random() < self.weather.newest_first
        index = len(bag) - 1 if newest else chance.randrange(len(bag))
        sender, to, signed = bag[index]
        if self.is_cut(sender, to) and chance.random() < 0.7:
            return  # it waits
        if chance.random() < self.weather.double:
            self.counts["messages doubled"] += 1
        else:
            bag[index] = bag[-1]
            bag.pop()
        if chance.random() < self.weather.loss or not self.peers[to].is_up or self.is_cut(sender, to):
            self.counts["messages lost"] += 1
            return
        self.peers[to].hear(self.read(signed.frame))

    def release_late(self, step: float) -> None:
        self.bag += [letter for due, letter in self._late if due <= step]
        self._late = [item for item in self._late if item[0] > step]

    def resume(self) -> None:
        peer = self._any_up()
        if peer is None or not peer.tasks:
            self.deliver()
        elif self.chance.random() < self.weather.crash_at_wait:
            self._crash(peer)
        else:
            self.go_on(peer)

    def knock(self) -> None:
        peer = self._any_up()
        if peer is None:
            return
        chance, window = self.chance, self.rules.window
        round_ = peer.next_round
        if window > 1 and chance.random() < 0.15:
            round_ += chance.randrange(1, window)
            self.counts["knocks at rounds further on"] += 1
        view = peer.log.view_of(round_)
        ballot = max(peer.voter.promised(view), peer.told[round_])
        if chance.random() < self.weather.impatience:
            ballot += chance.randint(1, 3)
        if round_ == peer.next_round and chance.random() < self.scenario.degrading:
            ballot = max(ballot, FIRST_DEGRADED)
        self.start(peer, round_, peer.knock(round_, ballot))

    def wake(self) -> None:
        """Its clock runs on: patience ends, or a reducer's time."""
        peer = self._any_up()
        if peer is None or not peer.candidate.ballots:
            return
        key = self.chance.choice(list(peer.candidate.ballots))
        wakes_at = peer.candidate.ballots[key].wakes_at()
        if wakes_at is not None:
            peer.now = max(peer.now, wakes_at)
            peer.candidate.advance(key)

    def crash(self) -> None:
        peer = self._any_up()
        if peer is not None:
            self._crash(peer)

    def _crash(self, peer: Peer) -> None:
        self.counts["crashes"] += 1
        if self.chance.random() < self.weather.damage and peer.next_round > 1:
            self.counts["headers damaged"] += 1
            peer.damage()
        peer.crash()
        for other in self.peers.values():
            if other.is_up and self.chance.random() < 0.3:
                other.candidate.lost(peer.name)

    def stop(self) -> None:
        peer = self._any_up()
        if peer is not None:
            self._crash(peer)
            self.counts["peers that went away"] += 1
            peer.is_up = False

    def start_again(self) -> None:
        down = [peer for peer in self.peers.values() if not peer.is_up]
        if down:
            self.chance.choice(down).is_up = True

    def gossip(self) -> None:
        teller, hearer = self._any_up(), self._any_up()
        if teller is None or hearer is None or self.is_cut(teller.name, hearer.name):
            return
        if teller.next_round > hearer.next_round:
            teller.tell(hearer.name, hearer.next_round)

    def cut(self) -> None:
        """The network falls into two halves."""
        self.counts["cuts of the network"] += 1
        self._side = {name: self.chance.randrange(2) for name in self._names}

    def join(self) -> None:
        self._side = {}
