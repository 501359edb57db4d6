"""The objectives: what an update maximizes, as losses to minimize. The heart of the project, in one sitting.

Every function takes tensors of one micro-batch, B samples of T target tokens:

- ``logprobs_BT``: log-probabilities under the weights being trained (with gradient); 0 outside the mask;
- ``behavior_BT``: log-probabilities **stored when the tokens were sampled**. They are never recomputed: recomputing
  them just before an update makes every ratio 1, and nothing is ever clipped;
- ``mask_BT``: 1 on tokens the model sampled, else 0;
- ``advantages_BT``: the advantage of each token, today that of its sample; outside the mask of no account;
- ``weights_B``: the sample's factor in the objective.

Each returns the loss and its :class:`Statistics`. Losses of micro-batches **add up** to the loss of the batch: whatever
an objective divides by is known before (a weight, or the `normalizer` passed in), so gradients do not depend on how
the batch was cut. All are sums over samples, in float32 or wider.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from crl.config import ActorObjective, ExtractorObjective
from crl.learn.batches import MicroBatch
from crl.learn.mismatch import LARGEST_LOG_RATIO, Corrected, corrected, log_ratio


@dataclass(frozen=True)
class Statistics:
    """Sums over trained tokens, to be added over micro-batches and ranks (`ratio_max`: the larger one)."""

    tokens: float = 0.0
    ratio_sum: float = 0.0
    ratio_max: float = 0.0
    clipped_low: float = 0.0
    """Tokens whose ratio the lower bound changed the objective of."""
    clipped_high: float = 0.0
    mismatch_sum: float = 0.0
    """Sum of |log-probability - stored behavior log-probability|."""
    fresh_tokens: float = 0.0
    """Tokens that the weights before the step sampled; the trainer counts these two."""
    kl_sum: float = 0.0
    """Over them, the estimate of the divergence of trainer and sampler: `mismatch.mismatch`."""
    reference_sum: float = 0.0
    """Over all tokens, the estimate of the divergence from the base model: `clipped.divergence`."""

    def __add__(self, other: Statistics) -> Statistics:
        totals = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        totals["ratio_max"] = max(self.ratio_max, other.ratio_max)
        return Statistics(**totals)


def statistics_of(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    ratio_BT: torch.Tensor,
    low_BT: torch.Tensor,
    high_BT: torch.Tensor,
    by: Corrected | None = None,
) -> Statistics:
    """What is counted of a micro-batch, all [B, T]: its ratios, and the tokens that a bound acts on.

    Where the objective goes `by` a correction, ratios stay those against the sampler, and tokens count whose weight was
    bounded.
    """
    with torch.no_grad():
        if by is not None and by.low_BT is not None and by.high_BT is not None:
            low_BT, high_BT = by.low_BT, by.high_BT
            ratio_BT = log_ratio(logprobs_BT, behavior_BT, mask_BT).exp()
        return Statistics(
            tokens=float(mask_BT.sum()),
            ratio_sum=float((ratio_BT * mask_BT).sum()),
            ratio_max=float((ratio_BT * mask_BT).max()) if mask_BT.numel() else 0.0,
            clipped_low=float((low_BT * mask_BT).sum()),
            clipped_high=float((high_BT * mask_BT).sum()),
            mismatch_sum=float(((logprobs_BT - behavior_BT).abs() * mask_BT).sum()),
        )


def grpo_objective(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    weights_B: torch.Tensor,
    config: ActorObjective,
) -> tuple[torch.Tensor, Statistics]:
    """Eq. 5: - sum_k w_k 1/|y_k| sum_t min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A).

    `importance_sampling_level: sequence_product` gives every token the ratio of its whole sequence, the product of the
    token ratios (the paper's wording; with token_mean the sum over t is then L_clip once). `aggregation: token_sum`
    leaves 1/|y_k| out. The weight w_k holds 1/2 1/K_c and the mean over groups. A token counts as clipped where the
    bound takes its gradient away: a ratio above it with A > 0, below it with A < 0. With an
    `importance_sampling_correction` the ratio is against another policy, and a token counts where its weight was
    bounded (`mismatch`).
    """
    by = corrected(logprobs_BT, behavior_BT, mask_BT, config.importance_sampling_correction)
    log_ratio_BT = log_ratio(logprobs_BT, by.old_BT, mask_BT)
    if config.importance_sampling_level == "sequence_product":
        sequence_B1 = ((logprobs_BT - by.old_BT) * mask_BT).sum(1, keepdim=True)
        log_ratio_BT = sequence_B1.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).expand_as(log_ratio_BT)
    ratio_BT = log_ratio_BT.exp()
    epsilon_high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    clipped_BT = ratio_BT.clamp(1 - config.epsilon, 1 + epsilon_high)
    objective_BT = torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT) * by.factor_BT
    objective_B = objective_BT.sum(1)
    if config.aggregation == "token_mean":
        objective_B = objective_B / mask_BT.sum(1).clamp(min=1)
    low_BT = (ratio_BT < 1 - config.epsilon) & (advantages_BT < 0)
    high_BT = (ratio_BT > 1 + epsilon_high) & (advantages_BT > 0)
    counted = statistics_of(logprobs_BT, behavior_BT, mask_BT, ratio_BT, low_BT, high_BT, by)
    return -(weights_B * objective_B).sum(), counted


def cispo_objective(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    weights_B: torch.Tensor,
    config: ExtractorObjective,
    *,
    normalizer: float,
) -> tuple[torch.Tensor, Statistics]:
    """Eq. 3: - 1/normalizer sum_i sum_t sg(clip(rho, 1 - epsilon, 1 + epsilon_high)) w_i A_i log pi(m_it).

    `normalizer` is sum_i |m_i|, the trained tokens of the **whole** batch, over micro-batches and ranks. The weight
    w_i is eq. 7. Both bounds act, and no token loses its gradient: the ratio is a constant (sg, stop gradient). The
    value of this loss measures no progress. A token counts as clipped where its ratio is outside a bound; with an
    `importance_sampling_correction`, where its weight was bounded (`mismatch`).
    """
    by = corrected(logprobs_BT, behavior_BT, mask_BT, config.importance_sampling_correction)
    clipped_BT = log_ratio(logprobs_BT.detach(), by.old_BT, mask_BT).exp()
    clipped_BT = clipped_BT.clamp(1 - config.epsilon, 1 + config.epsilon_high)
    scale_BT = weights_B[:, None] * advantages_BT
    loss = -(clipped_BT * scale_BT * logprobs_BT * by.factor_BT).sum() / normalizer
    ratio_BT = log_ratio(logprobs_BT.detach(), behavior_BT, mask_BT).exp()
    low_BT, high_BT = ratio_BT < 1 - config.epsilon, ratio_BT > 1 + config.epsilon_high
    return loss, statistics_of(logprobs_BT, behavior_BT, mask_BT, ratio_BT, low_BT, high_BT, by)


def nll_objective(
    logprobs_BT: torch.Tensor, mask_BT: torch.Tensor, weights_B: torch.Tensor, *, normalizer: float
) -> tuple[torch.Tensor, Statistics]:
    """Next-token loss: - 1/normalizer sum_i w_i sum_t log pi(y_it), normalizer = trained tokens of the whole batch."""
    loss = -(weights_B[:, None] * logprobs_BT * mask_BT).sum() / normalizer
    never_BT = torch.zeros_like(mask_BT)
    ones_BT = torch.ones_like(mask_BT)
    return loss, statistics_of(logprobs_BT, logprobs_BT, mask_BT, ones_BT, never_BT, never_BT)


Term = tuple[torch.Tensor, Statistics]


def grpo_term(batch: MicroBatch, logprobs_BT: torch.Tensor, config: ActorObjective, normalizer: float) -> Term:
    """:func:`grpo_objective` of a micro-batch; its weights hold all that it divides by."""
    tensors = (batch.behavior_BT, batch.mask_BT, batch.advantages_BT, batch.weights_B)
    return grpo_objective(logprobs_BT, *tensors, config)


def cispo_term(batch: MicroBatch, logprobs_BT: torch.Tensor, config: ExtractorObjective, normalizer: float) -> Term:
    """:func:`cispo_objective` of a micro-batch."""
    tensors = (batch.behavior_BT, batch.mask_BT, batch.advantages_BT, batch.weights_B)
    return cispo_objective(logprobs_BT, *tensors, config, normalizer=normalizer)


def nll_term(batch: MicroBatch, logprobs_BT: torch.Tensor, config: None, normalizer: float) -> Term:
    """:func:`nll_objective` of a micro-batch."""
    return nll_objective(logprobs_BT, batch.mask_BT, batch.weights_B, normalizer=normalizer)
