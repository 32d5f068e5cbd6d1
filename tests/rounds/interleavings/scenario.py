"""What one run is made of, drawn from its seed: who there is, the window, and how bad the weather is."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How often what happens. The first fields are weights of a step's kinds, the others probabilities."""

    deliver: float = 10.0
    resume: float = 6.0
    knock: float = 1.5
    wake: float = 0.4  # a coordinator's clock runs on to when it has something to do
    crash: float = 0.03
    stop: float = 0.03  # crash and stay away
    start: float = 0.3
    tell: float = 0.5  # a peer that is behind hears of one more decided round
    cut: float = 0.01  # the network falls in two
    join: float = 0.03
    impatience: float = 0.03  # that a knock is at a ballot above the one promised
    loss: float = 0.03
    double: float = 0.05
    late_proposals: float = 0.0  # that a proposal, a vote or a decision comes much later
    late_votes: float = 0.0
    late_decisions: float = 0.0
    crash_at_wait: float = 0.003  # each time a peer waits for its disk or for parts
    damage: float = 0.05  # that a crash costs the newest header
    lost_part: float = 0.02  # that a reducer never says that it is done
    hastes: tuple[float, ...] = (0.6,)  # that a peer goes straight on after such a wait; each peer has one of these
    newest_first: float = 0.0  # that the newest message is delivered, not any


WEATHERS = {
    "calm": Weather(),
    "lost parts": Weather(lost_part=0.7, wake=2.0, late_votes=0.2, impatience=0.02),
    "races": Weather(impatience=0.25, loss=0.1, knock=3.0),
    "crashes": Weather(crash=0.5, start=1.0, crash_at_wait=0.06, hastes=(0.4,), impatience=0.06),
    "delays": Weather(late_votes=0.35, late_decisions=0.35, loss=0.1, impatience=0.1, newest_first=0.3),
    "storm": Weather(
        loss=0.2, double=0.2, crash=0.3, stop=0.2, late_votes=0.2, crash_at_wait=0.03, impatience=0.1, lost_part=0.3
    ),
    # What is decided is hardly heard of, and ballot follows ballot in one round: all must decide the same.
    "silence": Weather(late_proposals=0.5, late_votes=0.2, late_decisions=1.0, tell=0.0, impatience=0.15, knock=2.0),
    "amnesia": Weather(late_proposals=0.3, late_decisions=0.95, tell=0.02, impatience=0.1, crash=0.4, start=1.0),
    "cuts": Weather(cut=0.2, join=0.04, late_decisions=0.6, tell=0.05, impatience=0.06),
    "slow disks": Weather(
        late_decisions=1.0, tell=0.0, crash=0.1, start=1.0, crash_at_wait=0.08, hastes=(0.05, 0.95), resume=3.0
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    seed: int
    fragments: int  # P, from which the window W follows
    founders: int  # the genesis' members, the first council
    newcomers: int
    client_mode: frozenset[int]  # peers that nobody can dial
    archives: frozenset[int]  # peers that knock with weight 0
    liar: int | None  # reports votes that nobody can have cast, and decisions without a majority; never votes itself
    weather: Weather
    weather_name: str
    degrading: float  # that a knock is at a degraded ballot, as when a round is long overdue
    may_pass_over: bool  # so long that a vote whose parts nobody brings is passed over
    steps: int
    majority_tail: bool  # in the quiet end no more than a majority is there

    @property
    def num_peers(self) -> int:
        return self.founders + self.newcomers


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """From what a seed draws. The default is everything; a mutant may be looked for where it shows."""

    weathers: tuple[str, ...] = tuple(WEATHERS)
    founders: tuple[int, ...] = (1, 2, 2, 3, 3, 3, 4, 4, 9)
    newcomers: tuple[int, ...] = (0, 1, 2)
    client_shares: tuple[float, ...] = (0.0, 0.0, 0.3, 1.0)
    liar_share: float = 0.15
    degradings: tuple[float, ...] = (0.0, 0.0, 0.0, 0.05, 0.15)
    passing_over_share: float = 0.2  # of the runs with degraded ballots


EVERYTHING = Focus()


def scenario_of(seed: int, focus: Focus = EVERYTHING) -> Scenario:
    chance = random.Random(seed)
    founders = chance.choice(focus.founders)
    newcomers = chance.choice(focus.newcomers) if founders < 9 else 0
    peers = range(founders + newcomers)
    client_share = chance.choice(focus.client_shares)
    archives = frozenset(peer for peer in peers if chance.random() < 0.25)
    if len(archives) == len(peers):
        archives -= {chance.choice(peers)}
    weather_name = chance.choice(focus.weathers)
    degrading = chance.choice(focus.degradings)
    may_lie = len(peers) >= 3 and not degrading  # who may decide alone may decide for all: it must be honest
    return Scenario(
        seed=seed,
        fragments=chance.choice((1, 1, 3, 4)),
        founders=founders,
        newcomers=newcomers,
        client_mode=frozenset(peer for peer in peers if chance.random() < client_share),
        archives=archives,
        liar=chance.choice(peers) if may_lie and chance.random() < focus.liar_share else None,
        weather=WEATHERS[weather_name],
        weather_name=weather_name,
        degrading=degrading,
        may_pass_over=degrading > 0 and chance.random() < focus.passing_over_share,
        steps=150 + 90 * len(peers),
        majority_tail=chance.random() < 0.5,
    )
