"""Held-out loss."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swarm_diloco.training.model import next_token_nats


class HeldOutLoss(NamedTuple):
    """Mean over all predictions of a set."""

    loss: float  # nats a token
    tokens: int  # predicted


def evaluate(model: PreTrainedModel, blocks: Tensor, *, device: torch.device, micro_batch: int) -> HeldOutLoss:
    """The model's loss on `blocks` (whole numbers [n, L], n ≥ 1), without dropout and in float32: as with any worker.

    The model is on `device` already and in training mode afterwards if it was before.
    """
    if blocks.shape[0] < 1:
        raise ValueError("no block to evaluate on")
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            parts = torch.split(blocks, micro_batch)
            nats = math.fsum(float(next_token_nats(model, part.to(device, torch.int64))) for part in parts)
    finally:
        model.train(was_training)
    tokens = blocks.shape[0] * (blocks.shape[1] - 1)
    return HeldOutLoss(nats / tokens, tokens)
