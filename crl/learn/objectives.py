"""The objectives: what an update maximizes, as losses to minimize. The heart of the project, in one sitting.

Every function takes tensors of one micro-batch, B samples of T target tokens:

- ``logprobs_BT``: log-probabilities under the weights being trained (with gradient); 0 outside the mask;
- ``behavior_BT``: log-probabilities **stored when the tokens were sampled**. They are never recomputed: recomputing
  them just before an update makes every ratio 1, and nothing is ever clipped;
- ``mask_BT``: 1 on tokens the model sampled, else 0;
- ``advantages_BT``: the advantage of each token, that of its sample or of its turn; outside the mask of no account;
- ``weights_B``: the sample's factor in the objective;
- ``proximal_BT``: where an update of several steps has a correction, log-probabilities before the first (`mismatch`);
- ``reference_BT``: the base model's, for an objective with `beta`;
- ``entropy_BT``: entropies of the distributions that the tokens were drawn from, with gradient;
- ``teacher_BT``: a teacher's log-probabilities of the same tokens, stored in the round that sampled them.

Each returns the loss and its :class:`Statistics`. Losses of micro-batches **add up** to the loss of the batch: whatever
an objective divides by is known before (a weight, or the `normalizer` passed in), so gradients do not depend on how
the batch was cut. All are sums over samples, in float32 or wider.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from crl.config import ExtractorObjective
from crl.config.mechanisms import PolicyObjective
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
    """Over all tokens, the estimate of the divergence from the base model: :func:`divergence`."""
    entropy_sum: float = 0.0
    """Entropies of the distributions that the tokens were drawn from, in nats; the trainer adds them up."""

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


def divergence(logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """k3 [B, T] of every token: r - 1 - log r with r = reference / policy; 0 outside the mask.

    Its mean over tokens that the policy sampled estimates KL(policy || reference) without bias, and no term of it is
    negative (Schulman 2020, "Approximating KL Divergence"): the low-variance estimator of the ERL paper. Its derivative
    in log policy is 1 - r.
    """
    log_BT = log_ratio(reference_BT, logprobs_BT, mask_BT)
    return log_BT.expm1() - log_BT


def grpo_objective(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    weights_B: torch.Tensor,
    config: PolicyObjective,
    *,
    proximal_BT: torch.Tensor | None = None,
    reference_BT: torch.Tensor | None = None,
    entropy_BT: torch.Tensor | None = None,
    normalizer: float = 1.0,
) -> tuple[torch.Tensor, Statistics]:
    """Eq. 5: - sum_k w_k agg_t [min(rho A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) - beta k3], and its relatives.

    `agg` is the mean over the sample's tokens with `loss_type: grpo`, else the sum: what it is divided by is in the
    weights (`crl.credit.samples.weighed`). The weight w_k holds 1/2 1/K_c and the mean over groups. With `cispo` the
    term is sg(clip(rho, …)) A log pi: a bound stops no gradient (MiniMax-M1, arXiv 2506.13585, eq. 4).
    `importance_sampling_level: sequence` gives every token the geometric mean of the ratios of its sequence (GSPO,
    arXiv 2507.18071, eq. 7), `sequence_product` their product, the ratio of the whole sequence (the paper's wording).

    `entropy_coef` adds its mean over all `normalizer` tokens of the batch, whatever the weights, as TRL does. A token
    counts as clipped where the bound takes its gradient away: a ratio above it with A > 0, below it with A < 0; with
    `cispo` where its ratio is outside. With an `importance_sampling_correction` the ratio is against another policy,
    and a token counts where its weight was bounded (`mismatch`); the penalty has no such weight. Raises ValueError
    where the settings need what nobody gave.
    """
    if (config.beta and reference_BT is None) or (config.entropy_coef and entropy_BT is None):
        raise ValueError("the objective has a penalty or a bonus, and nobody gave the reference or the entropies")
    by = corrected(logprobs_BT, behavior_BT, mask_BT, config.importance_sampling_correction, proximal_BT)
    log_ratio_BT = log_ratio(logprobs_BT, by.old_BT, mask_BT)
    if config.importance_sampling_level != "token":
        sequence_B1 = ((logprobs_BT - by.old_BT) * mask_BT).sum(1, keepdim=True)
        if config.importance_sampling_level == "sequence":
            sequence_B1 = sequence_B1 / mask_BT.sum(1, keepdim=True).clamp(min=1)
        log_ratio_BT = sequence_B1.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).expand_as(log_ratio_BT)
    ratio_BT = log_ratio_BT.exp()
    epsilon_high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    clipped_BT = ratio_BT.clamp(1 - config.epsilon, 1 + epsilon_high)
    low_BT, high_BT = ratio_BT < 1 - config.epsilon, ratio_BT > 1 + epsilon_high
    if config.loss_type == "cispo":
        objective_BT = clipped_BT.detach() * advantages_BT * logprobs_BT * by.factor_BT
    else:
        objective_BT = torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT) * by.factor_BT
        low_BT, high_BT = low_BT & (advantages_BT < 0), high_BT & (advantages_BT > 0)
    counted = statistics_of(logprobs_BT, behavior_BT, mask_BT, ratio_BT, low_BT, high_BT, by)
    if reference_BT is not None:
        penalty_BT = divergence(logprobs_BT, reference_BT, mask_BT)
        objective_BT = objective_BT - config.beta * penalty_BT
        counted = replace(counted, reference_sum=float(penalty_BT.detach().sum()))
    objective_B = objective_BT.sum(1)
    if config.loss_type == "grpo":
        objective_B = objective_B / mask_BT.sum(1).clamp(min=1)
    loss = -(weights_B * objective_B).sum()
    if config.entropy_coef and entropy_BT is not None:
        loss = loss - config.entropy_coef * (entropy_BT * mask_BT).sum() / normalizer
    return loss, counted


def cispo_objective(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    weights_B: torch.Tensor,
    config: ExtractorObjective,
    *,
    normalizer: float,
    proximal_BT: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Statistics]:
    """Eq. 3: - 1/normalizer sum_i sum_t sg(clip(rho, 1 - epsilon, 1 + epsilon_high)) w_i A_i log pi(m_it).

    `normalizer` is sum_i |m_i|, the trained tokens of the **whole** batch, over micro-batches and ranks. The weight
    w_i is eq. 7. Both bounds act, and no token loses its gradient: the ratio is a constant (sg, stop gradient). The
    value of this loss measures no progress. A token counts as clipped where its ratio is outside a bound; with an
    `importance_sampling_correction`, where its weight was bounded (`mismatch`).
    """
    by = corrected(logprobs_BT, behavior_BT, mask_BT, config.importance_sampling_correction, proximal_BT)
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


def reverse_kl_objective(
    logprobs_BT: torch.Tensor,
    behavior_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    teacher_BT: torch.Tensor,
    weights_B: torch.Tensor,
    *,
    normalizer: float,
) -> tuple[torch.Tensor, Statistics]:
    """On-policy distillation: 1/normalizer sum_i w_i sum_t rho_it sg(log pi(y_it) - log q(y_it)), rho = pi / behavior.

    Its gradient, in expectation over what the behavior policy samples, is that of sum_y pi(y) (log pi(y) - log q(y)),
    the divergence KL(pi || q) of student and teacher at each token, given those before it: grad rho = rho grad log pi,
    and the term that the derivative of log pi adds has the mean 0. What a token does to later ones is left out. So the
    value estimates the divergence. No bound acts; `normalizer` is the trained tokens of the whole batch.
    """
    ratio_BT = log_ratio(logprobs_BT, behavior_BT, mask_BT).exp()
    gap_BT = (logprobs_BT.detach() - teacher_BT) * mask_BT
    loss = (weights_B[:, None] * ratio_BT * gap_BT).sum() / normalizer
    never_BT = torch.zeros_like(mask_BT)
    return loss, statistics_of(logprobs_BT, behavior_BT, mask_BT, ratio_BT.detach(), never_BT, never_BT)


_LEAST_REST = 1e-6
"""Probability of all further ids, at least, so that its logarithm is finite."""


def top_k_divergence(logprobs_NK: torch.Tensor, teacher_NK: torch.Tensor) -> torch.Tensor:
    """KL(pi || q) [N] of student and teacher where K ids stand for themselves and all others for one: with gradient,
    and no sampled token. It is at most the divergence over the whole vocabulary, and that where K is all of it."""
    rest_N, teacher_rest_N = (
        (1.0 - each_NK.exp().sum(1)).clamp(min=_LEAST_REST).log() for each_NK in (logprobs_NK, teacher_NK)
    )
    listed_N = (logprobs_NK.exp() * (logprobs_NK - teacher_NK)).sum(1)
    return listed_N + rest_N.exp() * (rest_N - teacher_rest_N)


Term = tuple[torch.Tensor, Statistics]


def grpo_term(batch: MicroBatch, logprobs_BT: torch.Tensor, config: PolicyObjective, normalizer: float) -> Term:
    """:func:`grpo_objective` of a micro-batch."""
    tensors = (batch.behavior_BT, batch.mask_BT, batch.advantages_BT, batch.weights_B)
    return grpo_objective(
        logprobs_BT, *tensors, config, proximal_BT=batch.proximal_BT, reference_BT=batch.reference_BT,
        entropy_BT=batch.entropy_BT, normalizer=normalizer,
    )  # fmt: skip


def cispo_term(batch: MicroBatch, logprobs_BT: torch.Tensor, config: ExtractorObjective, normalizer: float) -> Term:
    """:func:`cispo_objective` of a micro-batch."""
    tensors = (batch.behavior_BT, batch.mask_BT, batch.advantages_BT, batch.weights_B)
    return cispo_objective(logprobs_BT, *tensors, config, normalizer=normalizer, proximal_BT=batch.proximal_BT)


def nll_term(batch: MicroBatch, logprobs_BT: torch.Tensor, config: None, normalizer: float) -> Term:
    """:func:`nll_objective` of a micro-batch."""
    return nll_objective(logprobs_BT, batch.mask_BT, batch.weights_B, normalizer=normalizer)


def reverse_kl_term(batch: MicroBatch, logprobs_BT: torch.Tensor, config: None, normalizer: float) -> Term:
    """:func:`reverse_kl_objective` of a micro-batch. Raises ValueError where its samples have no teacher."""
    if batch.teacher_BT is None:
        raise ValueError("a sample of the objective reverse_kl has no log-probabilities of a teacher")
    tensors = (batch.behavior_BT, batch.mask_BT, batch.teacher_BT, batch.weights_B)
    loss, counted = reverse_kl_objective(logprobs_BT, *tensors, normalizer=normalizer)
    if batch.logprobs_NK is not None and batch.teacher_NK is not None:
        weights_N = batch.weights_B[:, None].expand_as(batch.mask_BT)[batch.mask_BT != 0]
        loss = (weights_N * top_k_divergence(batch.logprobs_NK, batch.teacher_NK)).sum() / normalizer
    return loss, counted
