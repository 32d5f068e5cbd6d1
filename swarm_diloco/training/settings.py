"""What all members of a run must agree on about the model and the inner steps. Knows neither torch nor transformers."""

from dataclasses import dataclass
from typing import Literal

ModelSource = Literal["config", "weights"]
LearningRateSchedule = Literal["wsd", "cosine"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """The model whose config is the run's file model/config.json. Raises ValueError naming the rule.

    "config": θ_0 was drawn at random when the run was made; "weights": θ_0 is a pretrained model. Either way θ_0 is a
    snapshot, never drawn again: torch's random numbers differ between processors.
    """

    architecture: str  # transformers' model type, as shown to who joins; the config is what counts
    parameters: int  # trainable values; a config that builds another number is refused
    source: ModelSource = "config"
    licence: str = ""  # of the pretrained weights

    def __post_init__(self) -> None:
        if not self.architecture:
            raise ValueError("model.architecture is a model type of transformers, not empty")
        if self.parameters < 1:
            raise ValueError(f"model.parameters is at least 1, not {self.parameters}")
        if self.source not in ("config", "weights"):
            raise ValueError(f'model.source is "config" or "weights", not {self.source!r}')


@dataclass(frozen=True, kw_only=True, slots=True)
class InnerSettings:
    """AdamW between two rounds, and its learning rate over the run. Raises ValueError naming the rule."""

    learning_rate: float = 4e-4  # the highest
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1  # of matrices; vectors (norms, biases) have none
    clip: float = 1.0  # of the gradient's norm
    batch_sequences: int = 8
    sequence_length: int = 128  # tokens
    warmup_tokens: int  # of the whole swarm, like total_tokens
    schedule: LearningRateSchedule = "wsd"
    total_tokens: int  # after them the learning rate stays at its last value
    decay_fraction: float = 0.2  # "wsd": the last part of total_tokens, in which the learning rate falls
    final_fraction: float = 0.05  # of learning_rate, at the end

    def __post_init__(self) -> None:
        rules = (
            ("learning_rate is positive", self.learning_rate, 0 < self.learning_rate < 10),
            ("beta1 is in [0, 1)", self.beta1, 0 <= self.beta1 < 1),
            ("beta2 is in [0, 1)", self.beta2, 0 <= self.beta2 < 1),
            ("weight_decay is in [0, 1]", self.weight_decay, 0 <= self.weight_decay <= 1),
            ("clip is positive", self.clip, 0 < self.clip < float("inf")),
            ("batch_sequences is from 1 to 65536", self.batch_sequences, 1 <= self.batch_sequences <= 2**16),
            ("sequence_length is from 2 to 2^20", self.sequence_length, 2 <= self.sequence_length <= 2**20),
            ("warmup_tokens is not negative", self.warmup_tokens, self.warmup_tokens >= 0),
            ('schedule is "wsd" or "cosine"', self.schedule, self.schedule in ("wsd", "cosine")),
            ("total_tokens is positive", self.total_tokens, 1 <= self.total_tokens < 2**53),
            ("decay_fraction is in [0, 1]", self.decay_fraction, 0 <= self.decay_fraction <= 1),
            ("final_fraction is in [0, 1]", self.final_fraction, 0 <= self.final_fraction <= 1),
        )
        for rule, value, holds in rules:
            if not holds:
                raise ValueError(f"inner.{rule}, not {value!r}")
        ends_by = self.total_tokens * (1 - self.decay_fraction if self.schedule == "wsd" else 1)
        if self.warmup_tokens > ends_by:
            raise ValueError(
                f"inner.warmup_tokens is at most {ends_by:.0f}, where the decay begins, not {self.warmup_tokens}"
            )

    @property
    def batch_tokens(self) -> int:
        """Tokens of one inner step."""
        return self.batch_sequences * self.sequence_length
