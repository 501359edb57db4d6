"""Draw one token per row by inverse transform: one uniform number per token, from the row's own stream.

A row's draw depends on its own logits and its own number only, so it is the same whatever else is in the batch.
Suffixes of tensors name their shapes: see `crl.policies`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from crl.config import SamplingConfig
from crl.config.vocabulary import hide


def scaled_logprobs(logits: torch.Tensor, temperature: float, absent: torch.Tensor | None = None) -> torch.Tensor:
    """log softmax(logits / temperature) over the last axis, in float32: the behavior distribution.

    `absent`: ids that are no tokens, whose probability is 0 (:mod:`crl.config.vocabulary`).
    """
    return torch.log_softmax(hide(logits.float() / temperature, absent), dim=-1)


def draw(
    logits_BV: torch.Tensor, uniforms_B: torch.Tensor, sampling: SamplingConfig, absent: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row.

    Args:
        logits_BV: the model's last logits.
        uniforms_B: float64 in [0, 1).
        sampling: temperature and cuts: min_p first, top_k and top_p each to what was left before it, as in vLLM.
        absent: ids that are no tokens and are never drawn.

    Returns:
        ids [B] (int64) and their log-probabilities [B] (float32) under the temperature-scaled distribution over the
        tokens of the vocabulary, **before** any cut.
    """
    logprobs_BV = scaled_logprobs(logits_BV, sampling.temperature, absent)
    # float64: a float32 running sum over 10^5 tokens would lose the rare ones.
    probs_BV = logprobs_BV.double().exp()
    if sampling.min_p > 0:
        probs_BV = probs_BV.where(probs_BV >= sampling.min_p * probs_BV.amax(1, keepdim=True), 0.0)
    if 0 < sampling.top_k < probs_BV.shape[1]:
        kept_BV = torch.zeros_like(probs_BV, dtype=torch.bool)
        kept_BV.scatter_(1, probs_BV.topk(sampling.top_k, dim=1).indices, True)
        probs_BV = probs_BV.where(kept_BV, 0.0)
    if sampling.top_p < 1:
        probs_BV = _nucleus(probs_BV, sampling.top_p)
    cumulative_BV = probs_BV.cumsum(1)
    total_B1 = cumulative_BV[:, -1:]
    # Below the total even when u times the total rounds up to it: the first larger sum belongs to a token kept.
    targets_B1 = torch.minimum(uniforms_B[:, None] * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    ids_B1 = torch.searchsorted(cumulative_BV, targets_B1, right=True)
    return ids_B1[:, 0], logprobs_BV.gather(1, ids_B1)[:, 0]


def draw_among(
    logits_BV: torch.Tensor, choices: Sequence[Sequence[int]], uniforms_B: torch.Tensor, sampling: SamplingConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`draw`, each row from its own choices of ids: their probabilities are renormalized, and cuts see nothing
    else."""
    width = max(map(len, choices))
    ids_BK = torch.tensor([[*ids, *([-1] * (width - len(ids)))] for ids in choices], device=logits_BV.device)
    logits_BK = logits_BV.gather(1, ids_BK.clamp(min=0)).float().masked_fill(ids_BK < 0, float("-inf"))
    places_B, logprobs_B = draw(logits_BK, uniforms_B, sampling)
    return ids_BK.gather(1, places_B[:, None])[:, 0], logprobs_B


def _nucleus(probs_BV: torch.Tensor, mass: float) -> torch.Tensor:
    """Keep the most probable tokens whose predecessors sum to less than `mass`; the first is always kept."""
    descending_BV, order_BV = probs_BV.sort(dim=1, descending=True, stable=True)
    before_BV = descending_BV.cumsum(1) - descending_BV
    kept_BV = before_BV < mass * descending_BV.sum(1, keepdim=True)
    kept_BV[:, 0] = True
    return torch.zeros_like(probs_BV).scatter_(1, order_BV, descending_BV.where(kept_BV, 0.0))
