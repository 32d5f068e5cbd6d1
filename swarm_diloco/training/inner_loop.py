"""Inner steps: AdamW on this worker's own batches, with a learning rate that follows the whole swarm's token count."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swarm_diloco.errors import ModelError
from swarm_diloco.training.device import Device
from swarm_diloco.training.model import next_token_nats, trainable_parameters
from swarm_diloco.training.settings import InnerSettings as InnerSettings

OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)  # a CPU that has none left is killed, or raises a RuntimeError


def learning_rate_at(settings: InnerSettings, global_tokens: int) -> float:
    """The learning rate of a batch that starts when the swarm has trained `global_tokens`.

    A pure function of the run's settings and the log, so that all peers agree. Linear warm-up (seen from the batch's
    end: no step with rate 0); then "wsd": constant, and linear to final_fraction over the last decay_fraction of
    total_tokens; or "cosine" to final_fraction at total_tokens. Afterwards constant.
    """
    if global_tokens + settings.batch_tokens < settings.warmup_tokens:
        return settings.learning_rate * (global_tokens + settings.batch_tokens) / settings.warmup_tokens
    decay_begins_at = (
        settings.total_tokens * (1 - settings.decay_fraction) if settings.schedule == "wsd" else settings.warmup_tokens
    )
    decay_tokens = max(1.0, settings.total_tokens - decay_begins_at)
    progress = min(1.0, max(0.0, (global_tokens - decay_begins_at) / decay_tokens))
    height = 1 - progress if settings.schedule == "wsd" else (1 + math.cos(math.pi * progress)) / 2
    return settings.learning_rate * (settings.final_fraction + (1 - settings.final_fraction) * height)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One inner step. A *refused* one (loss or gradient not finite) changed neither weights nor optimizer."""

    loss: float  # nats a predicted token, mean over the batch
    tokens: int  # of the batch; 0 when refused
    learning_rate: float
    grad_norm: float  # before clipping
    seconds: float
    micro_batch: int

    @property
    def refused(self) -> bool:
        return self.tokens == 0


@dataclass(frozen=True, slots=True)
class AdamState:
    """AdamW's memory, by parameter name: moments shaped like the parameter on its device, and steps done."""

    first_moments: Mapping[str, Tensor]
    second_moments: Mapping[str, Tensor]
    steps: Mapping[str, int]


class InnerLoop:
    """Trains `model` in place. The optimizer stays with this worker; it is never averaged, and survives rounds."""

    def __init__(self, model: PreTrainedModel, settings: InnerSettings, device: Device, micro_batch: int) -> None:
        if micro_batch < 1:
            raise ValueError(f"a micro-batch has at least one sequence, not {micro_batch}")
        self.model = model
        self.settings = settings
        self.device = device
        self.micro_batch = micro_batch
        self._optimizer = self._new_optimizer()

    def _new_optimizer(self) -> torch.optim.AdamW:
        parameters = list(trainable_parameters(self.model).values())
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": self.settings.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.settings.learning_rate,
            betas=(self.settings.beta1, self.settings.beta2),
            fused=self.device.device.type in ("cpu", "cuda"),
        )

    def step(self, batch: Tensor, global_tokens: int) -> StepResult:
        """Train on `batch` (int64 [n, L], any device) once. Raises ModelError if no sequence fits into memory."""
        started_at = time.perf_counter()
        learning_rate = learning_rate_at(self.settings, global_tokens)
        loss = self._gradient(batch.to(self.device.device))
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self._parameters(), self.settings.clip))
        finite = math.isfinite(loss) and math.isfinite(grad_norm)
        if finite:
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return StepResult(
            loss=loss,
            tokens=batch.numel() if finite else 0,
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            seconds=time.perf_counter() - started_at,
            micro_batch=self.micro_batch,
        )

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _gradient(self, batch: Tensor) -> float:
        """Accumulate the gradient of the batch's mean loss; return the loss. Halves the micro-batch while it must."""
        while True:
            try:
                return self._accumulate(batch)
            except OUT_OF_MEMORY as error:
                if self.micro_batch == 1:
                    raise ModelError(
                        f"one sequence of {batch.shape[1]} tokens does not fit into the memory of {self.device.name}"
                    ) from error
            self._optimizer.zero_grad(set_to_none=True)  # here the error no longer holds the activations
            self.device.forget()
            self.micro_batch = (self.micro_batch + 1) // 2

    def _accumulate(self, batch: Tensor) -> float:
        num_predictions = batch.shape[0] * (batch.shape[1] - 1)
        total = torch.zeros((), device=batch.device)
        for blocks in torch.split(batch, self.micro_batch):
            with self.device.autocast():
                loss = next_token_nats(self.model, blocks) / num_predictions
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own annotation is missing
            total += loss.detach()
        return float(total)

    def reset(self) -> None:
        """Forget the optimizer's memory: after numbers that were not finite."""
        self._optimizer = self._new_optimizer()

    def state(self) -> AdamState:
        """The optimizer's memory; tensors are its own, not copies. A parameter not yet stepped has none."""
        stepped = {
            name: self._optimizer.state[parameter]
            for name, parameter in trainable_parameters(self.model).items()
            if parameter in self._optimizer.state
        }
        return AdamState(
            {name: state["exp_avg"] for name, state in stepped.items()},
            {name: state["exp_avg_sq"] for name, state in stepped.items()},
            {name: int(state["step"]) for name, state in stepped.items()},
        )

    def restore(self, state: AdamState) -> None:
        """Go on as the optimizer that gave `state`, to the bit. Tensors are copied."""
        names = {id(parameter): name for name, parameter in trainable_parameters(self.model).items()}
        order = [names[id(parameter)] for parameter in self._parameters()]
        self._optimizer = self._new_optimizer()
        empty = self._optimizer.state_dict()
        empty["state"] = {
            index: {
                "step": torch.tensor(float(state.steps[name])),
                "exp_avg": state.first_moments[name].clone(),
                "exp_avg_sq": state.second_moments[name].clone(),
            }
            for index, name in enumerate(order)
            if name in state.steps
        }
        self._optimizer.load_state_dict(empty)
