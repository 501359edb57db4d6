"""Sampler and trainer: two programs that compute one policy, and differ a little. How much, and what corrects it.

Three policies meet in an update. The **sampler** drew the tokens; its log-probabilities were stored then
(`behavior_BT`). The **proximal** policy is the trainer's own before the first step of the update: where it takes one
step, what its forward pass computes; where it takes several, a pass of its own before them (`Trainer.proximal`). The
**current** policy is the one that is differentiated. All three are over the same ids, those that are tokens
(`crl.config.vocabulary`): a ratio is that of one id's probability among them.

Without a correction the ratio of an objective is current / sampler, and the clip bounds drift and mismatch together.
With one, the ratio is current / proximal, and each token's term of the objective is multiplied by a constant weight
made of w = proximal / sampler:

- `token_truncate`: w held within [clip_min, clip_max], truncated importance sampling (Yao et al. 2025, "Your Efficient
  RL Framework Secretly Brings You Off-Policy RL Training");
- `token_mask`: w where clip_min <= w <= clip_max, else 0: IcePop (Ling Team 2025, arXiv 2510.18855).

So the clip takes no gradient away for what is rounding: it bounds how far the steps of this update move, and w holds
all that is between the sampler and the first step; for tokens of earlier rounds that is their age too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from crl.config import ImportanceSamplingCorrection
from crl.learn.batches import MicroBatch

LARGEST_LOG_RATIO = 20.0
"""Log-ratios are held within this bound so that exp stays finite; a clip is far inside it."""


@dataclass(frozen=True)
class Corrected:
    """What an objective goes by, all [B, T]."""

    old_BT: torch.Tensor
    """Log-probabilities that its ratio is taken against."""
    factor_BT: torch.Tensor
    """Constant factor of each token's term; 0 outside the mask."""
    low_BT: torch.Tensor | None = None
    """Tokens whose weight was below the least; None where there is no correction."""
    high_BT: torch.Tensor | None = None
    """Tokens whose weight was above the largest."""


def log_ratio(logprobs_BT: torch.Tensor, old_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Bounded log-ratio of two policies [B, T]; 0 outside the mask."""
    return ((logprobs_BT - old_BT) * mask_BT).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def corrected(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    config: ImportanceSamplingCorrection | None,
    proximal_BT: torch.Tensor | None = None,
) -> Corrected:
    """What an objective goes by: the sampler's log-probabilities, or the proximal ones (None: those of this pass) and
    weights."""
    if config is None:
        return Corrected(behavior_BT, mask_BT)
    proximal_BT = logprobs_BT.detach() if proximal_BT is None else proximal_BT
    weight_BT = log_ratio(proximal_BT, behavior_BT, mask_BT).exp()
    low_BT, high_BT = weight_BT < (config.clip_min or 0.0), weight_BT > config.clip_max
    if config.mode == "token_truncate":
        weight_BT = weight_BT.clamp(config.clip_min, config.clip_max)
    else:
        weight_BT = weight_BT.masked_fill(low_BT | high_BT, 0.0)
    return Corrected(proximal_BT, weight_BT * mask_BT, low_BT, high_BT)


def mismatch(logprobs_BT: torch.Tensor, batch: MicroBatch) -> tuple[float, float]:
    """Tokens that the weights before this step sampled, and the sum over them of r - 1 - log r, r = trainer / sampler.

    Its mean estimates KL(sampler || trainer) without bias and is never negative (k3 of Schulman 2020, "Approximating
    KL Divergence"). Tokens of earlier rounds or steps are left out: there the difference is what was learned since.
    """
    with torch.no_grad():
        mask_BT = batch.mask_BT * batch.fresh_B[:, None]
        log_BT = log_ratio(logprobs_BT, batch.behavior_BT, mask_BT)
        return float(mask_BT.sum()), float((log_BT.expm1() - log_BT).sum())
