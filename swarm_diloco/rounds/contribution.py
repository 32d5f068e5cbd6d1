"""What a worker brings to a round, and how it is encoded: once, whatever becomes of the round's attempts."""

from dataclasses import dataclass

from torch import Tensor

from swarm_diloco.diloco.ledger import DataRange, Evaluation
from swarm_diloco.rounds.settings import RunRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What a worker brings to a round. `delta` is read until the parts are encoded, then no more."""

    delta: Tensor  # float32 [values of the fragment], θ(global) − θ(local)
    base_round: int  # the round after which that θ was global
    weight: int  # tokens
    tokens: int  # since the last commit that lists this worker
    ranges: tuple[DataRange, ...]
    norm: float
    step_seconds: float
    evaluation: tuple[Evaluation, ...] = ()


def encode_parts(rules: RunRules, fragment: int, delta: Tensor) -> list[bytes]:
    """Δ of one fragment, float32 [its values], as encoded parts in order."""
    return [rules.upload.encode(delta[where]) for where in rules.part_slices(fragment)]
