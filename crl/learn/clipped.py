"""GRPO with two clip bounds and a penalty for leaving the base model: the objective of Experiential RL.

Shapes as in `objectives.py`. The penalty compares with the **base model**, which the update reads beside the weights
that it trains (`scoring.Reference`): `reference_BT` are its log-probabilities of the same tokens at one temperature.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from crl.config.mechanisms import ClippedObjective
from crl.learn.batches import MicroBatch
from crl.learn.mismatch import corrected, log_ratio
from crl.learn.objectives import Statistics, Term, statistics_of


def divergence(logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """k3 [B, T] of every token: r - 1 - log r with r = reference / policy; 0 outside the mask.

    Its mean over tokens that the policy sampled estimates KL(policy || reference) without bias, and no term of it is
    negative (Schulman 2020, "Approximating KL Divergence"): the low-variance estimator of the ERL paper. Its derivative
    in log policy is 1 - r.
    """
    log_BT = log_ratio(reference_BT, logprobs_BT, mask_BT)
    return log_BT.expm1() - log_BT


def clipped_objective(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    reference_BT: torch.Tensor | None,
    mask_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    weights_B: torch.Tensor,
    config: ClippedObjective,
) -> tuple[torch.Tensor, Statistics]:
    """- sum_k w_k agg_t [min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) - beta k3].

    `agg` is the sum or mean over trained tokens. `reference_BT` may be None where `beta` is 0. A token counts as
    clipped where a bound takes its gradient away. With an `importance_sampling_correction` the ratio is against another
    policy, the first term has a weight, and a token counts where that was bounded (`mismatch`); the penalty has no
    weight. Raises ValueError where there is a penalty and nothing to compare with.
    """
    if config.beta and reference_BT is None:
        raise ValueError("the objective has a penalty, and nobody gave the base model's log-probabilities")
    by = corrected(logprobs_BT, behavior_BT, mask_BT, config.importance_sampling_correction)
    ratio_BT = log_ratio(logprobs_BT, by.old_BT, mask_BT).exp()
    clipped_BT = ratio_BT.clamp(1 - config.epsilon, 1 + config.epsilon_high)
    objective_BT = torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT) * by.factor_BT
    penalty_sum = 0.0
    if reference_BT is not None:
        penalty_BT = divergence(logprobs_BT, reference_BT, mask_BT)
        objective_BT = objective_BT - config.beta * penalty_BT
        penalty_sum = float(penalty_BT.detach().sum())
    objective_B = (objective_BT * mask_BT).sum(1)
    if config.aggregation == "token_mean":
        objective_B = objective_B / mask_BT.sum(1).clamp(min=1)
    low_BT = (ratio_BT < 1 - config.epsilon) & (advantages_BT < 0)
    high_BT = (ratio_BT > 1 + config.epsilon_high) & (advantages_BT > 0)
    counted = statistics_of(logprobs_BT, behavior_BT, mask_BT, ratio_BT, low_BT, high_BT, by)
    return -(weights_B * objective_B).sum(), replace(counted, reference_sum=penalty_sum)


def clipped_term(batch: MicroBatch, logprobs_BT: torch.Tensor, config: ClippedObjective, normalizer: float) -> Term:
    """:func:`clipped_objective` of a micro-batch; its weights hold all that it divides by."""
    tensors = (batch.behavior_BT, batch.reference_BT, batch.mask_BT, batch.advantages_BT, batch.weights_B)
    return clipped_objective(logprobs_BT, *tensors, config)
