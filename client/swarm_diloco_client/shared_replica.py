"""The global state of a worker: θ in memory that the trainer reads too."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from swarm_diloco.rounds.replica import Replica
from swarm_diloco.rounds.settings import RunRules
from swarm_diloco.training.shared_memory import SharedModel


def shared_replica(rules: RunRules) -> tuple[SharedModel, Replica]:
    """A replica whose θ lies in new shared memory; nothing is loaded yet. Raises DiskError if there is no room.

    Each change of a fragment names the round that it belongs to, together with the values.
    """
    shared = SharedModel.create(rules.layout.num_values, rules.num_fragments)

    @contextmanager
    def guard(fragment: int) -> Iterator[None]:
        with shared.writing(fragment):
            yield
            shared.set_round(fragment, replica.round + 1)

    replica = Replica(rules, shared.theta, torch.zeros(rules.layout.num_values), guard)
    return shared, replica


def name_round(shared: SharedModel, replica: Replica) -> None:
    """After a snapshot was loaded, which may be of any round: say which."""
    for fragment in range(shared.num_fragments):
        with shared.writing(fragment):
            shared.set_round(fragment, replica.round)
