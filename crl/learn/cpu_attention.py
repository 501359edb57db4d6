"""Attention over a tree of samples on a CPU, in bfloat16, with gradients: two thirds of the time of the fused kernels.

Scores and their softmax are float32, as in the fused kernels; the other products are bfloat16, which a CPU with such
instructions makes four times as fast. No square matrix outlives its block of queries: the backward pass makes the
probabilities again (Dao et al. 2022, arXiv 2205.14135, section 3.1), from keys and values that are held once for all
segments that see them.

Shapes: H key-value heads, G query heads for each of them, P positions, N of one segment, S seen by it, D width
of a key, E of a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_BLOCK = 64
"""Queries of one block: its scores stay in a core's cache."""


def attend(
    query_HGPD: torch.Tensor,
    key_HPD: torch.Tensor,
    value_HPE: torch.Tensor,
    seen: torch.Tensor,
    lengths_S: list[int],
    segments_S: list[int],
    scaling: float,
) -> torch.Tensor:
    """Outputs [H, G, P, E] of scaled dot product attention from each position to its path (`tree_attention.Paths`)."""
    paths = seen, lengths_S, segments_S
    found: torch.Tensor = _Attention.apply(query_HGPD, key_HPD, value_HPE, paths, scaling)  # type: ignore[no-untyped-call]
    return found


class _Attention(torch.autograd.Function):
    """Forward and backward by block; the arithmetic of both is in float32 where sums grow."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, paths: Any, scaling: float
    ) -> Any:
        ctx.save_for_backward(query, key, value)
        ctx.paths, ctx.scaling = paths, scaling
        out = query.new_empty(*query.shape[:3], value.shape[2])
        with torch.autocast("cpu", enabled=False):
            scaled = query * scaling
            for path, blocks in _segments(paths):
                keys, values = key[:, path].float(), value[:, path]
                for first, last, reach in blocks:
                    made = _probabilities(scaled[:, :, first:last], keys[:, :reach]).to(query.dtype)
                    out[:, :, first:last] = torch.bmm(made, values[:, :reach]).view(out[:, :, first:last].shape)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        query, key, value = ctx.saved_tensors
        dtype, scaled = query.dtype, query * ctx.scaling
        to_query = torch.empty_like(query)
        to_key, to_value = (torch.zeros_like(each, dtype=torch.float32) for each in (key, value))
        with torch.autocast("cpu", enabled=False):
            for path, blocks in _segments(ctx.paths):
                keys, values = key[:, path], value[:, path]
                keys_float = keys.float()
                own_key, own_value = torch.zeros_like(keys_float), torch.zeros_like(values, dtype=torch.float32)
                for first, last, reach in blocks:
                    asked = scaled[:, :, first:last]
                    made = _probabilities(asked, keys_float[:, :reach])
                    given = grad[:, :, first:last].flatten(1, 2).to(dtype)
                    own_value[:, :reach] += torch.bmm(made.to(dtype).mT, given)
                    to_made = torch.bmm(given, values[:, :reach].mT).float()
                    # Of softmax: p (dp - sum p dp), in one pass.
                    to_scores = torch._softmax_backward_data(to_made, made, -1, torch.float32).to(dtype)
                    to_query[:, :, first:last] = torch.bmm(to_scores, keys[:, :reach]).view(asked.shape)
                    own_key[:, :reach] += torch.bmm(to_scores.mT, asked.flatten(1, 2))
                to_key.index_add_(1, path, own_key)
                to_value.index_add_(1, path, own_value)
        return to_query * ctx.scaling, to_key.to(dtype), to_value.to(dtype), None, None


def _segments(paths: Any) -> Iterator[tuple[torch.Tensor, list[tuple[int, int, int]]]]:
    """The path of each segment, and its blocks: first and last query among the P positions, positions they reach."""
    seen, lengths_S, segments_S = paths
    begun = 0
    for path, own in zip(torch.split(seen, lengths_S), segments_S, strict=True):
        before = len(path) - own
        starts = range(0, own, _BLOCK)
        ends = [min(own, start + _BLOCK) for start in starts]
        yield path, [(begun + start, begun + end, before + end) for start, end in zip(starts, ends, strict=True)]
        begun += own


def _probabilities(query_HGND: torch.Tensor, key_HSD: torch.Tensor) -> torch.Tensor:
    """Softmax [H, G N, S] of scores in float32; the last N keys are those of the queries, hidden from earlier ones."""
    heads, groups, count, width = query_HGND.shape
    scores = torch.bmm(query_HGND.reshape(heads, -1, width).float(), key_HSD.mT)
    if count > 1:
        later = torch.ones(count, count, dtype=torch.bool).triu(1)
        scores.view(heads, groups, count, -1)[..., -count:].masked_fill_(later, float("-inf"))
    return torch.softmax(scores, -1)
