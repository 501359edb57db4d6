"""Plain REINFORCE: - scale / N sum_i w_i A_i sum_t log pi(y_it), N the trained tokens of all its samples."""

from __future__ import annotations

import torch

from crl.learn.batches import MicroBatch
from crl.learn.objectives import Statistics


def reinforce(
    batch: MicroBatch, logprobs_BT: torch.Tensor, scale: float, normalizer: float
) -> tuple[torch.Tensor, Statistics]:
    """The loss of one micro-batch, and what is counted of it."""
    weights_BT = batch.weights_B[:, None] * batch.advantages_BT
    loss = -scale * (weights_BT * logprobs_BT * batch.mask_BT).sum() / normalizer
    return loss, Statistics(tokens=float(batch.mask_BT.sum()))
