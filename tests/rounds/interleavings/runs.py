"""Runs by the number: what they add up to, and how soon a broken rule shows."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from interleavings.mutants import Mutant
from interleavings.scenario import EVERYTHING, Focus, scenario_of
from interleavings.witness import ALL, Violation, Witness
from interleavings.world import World


@dataclass(frozen=True, slots=True)
class Caught:
    seed: int
    kind: str
    text: str


@dataclass(slots=True)
class Sum:
    num_runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    caught: list[Caught] = field(default_factory=list)

    def add(self, other: "Sum") -> None:
        self.num_runs += other.num_runs
        self.counts.update(other.counts)
        self.caught += other.caught


def run_all(seeds: Iterable[int], focus: Focus = EVERYTHING) -> Sum:
    """Of the rules as they are."""
    total = Sum()
    for seed in seeds:
        witness = Witness()
        try:
            World(scenario_of(seed, focus), witness=witness).run()
        except Violation as violation:
            total.caught.append(Caught(seed, violation.kind, str(violation)))
        total.num_runs += 1
        total.counts.update(witness.counts)
    return total


def first_caught(mutant: Mutant, seeds: Iterable[int], watched: Collection[str] = ALL) -> Caught | None:
    """The first seed at which a broken rule shows, in what is watched alone."""
    with mutant.broken():
        for seed in seeds:
            try:
                World(scenario_of(seed, mutant.focus), conduct=mutant.conduct, witness=Witness(watched=watched)).run()
            except Violation as violation:
                return Caught(seed, violation.kind, str(violation))
    return None
