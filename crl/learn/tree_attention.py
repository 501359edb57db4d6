"""Attention over a tree of samples (`batches`): each segment sees the way from the root to itself, and nothing else.

It is an attention implementation of transformers under a name of its own: a model that follows the interface
hands it the keywords that its forward pass was given. The fused kernels compute it, segment by segment.

On a CPU in bfloat16, with gradients, :func:`attend` takes two thirds of their time. Scores and their softmax are
float32, as in the fused kernels; the other products are bfloat16, which a CPU with such instructions makes four times
as fast. No square matrix outlives its block of queries: the backward pass makes the probabilities again (Dao et al.
2022, arXiv 2205.14135, section 3.1), from keys and values that are held once for all segments that see them.

Shapes there: H key-value heads, G query heads for each of them, P positions, N of one segment, S seen by it, D width of
a key, E of a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from crl.config.models import EveryLayerOnce, check_plain
from crl.learn.batches import Tree

NAME = "crl_tree"
KEYWORD = "crl_paths"
_BLOCK = 64
"""Queries of one block: its scores stay in a core's cache."""


@dataclass(frozen=True)
class Paths:
    """What every segment of a tree sees, S segments in all."""

    seen: torch.Tensor
    """The paths of the segments, one behind another: indices into the P positions."""
    lengths_S: list[int]
    """Positions that each segment sees, itself included."""
    segments_S: list[int]
    """Positions of each segment; together P."""
    rows_BT: torch.Tensor
    """Of each sample its path, padded on the right with its last position: for what reads samples apart."""
    masks: dict[tuple[int, int, torch.dtype], torch.Tensor] = field(default_factory=dict)
    """What :meth:`mask` has made, for all layers of a pass."""

    @classmethod
    def of(cls, tree: Tree, device: torch.device) -> Paths:
        """Those of a tree; a sample that adds no position needs no segment."""
        pairs = [(path, own) for path, own in zip(tree.paths, tree.segments, strict=True) if own]
        seen = torch.tensor([position for path, _ in pairs for position in path], device=device)
        width = max(map(len, tree.paths))
        rows_BT = torch.tensor(
            [[*path, *(path or [0])[-1:] * (width - len(path))] for path in tree.paths], device=device
        )
        return cls(seen, [len(path) for path, _ in pairs], [own for _, own in pairs], rows_BT)

    def mask(self, own: int, seen: int, dtype: torch.dtype) -> torch.Tensor | None:
        """What is added to the scores of a segment, [1, 1, N, S], to hide from each position those that come after it;
        None where the segment is all that it sees."""
        if own == seen:
            return None
        if (own, seen, dtype) not in self.masks:
            hidden = torch.ones(own, seen, dtype=torch.bool, device=self.seen.device).triu(seen - own + 1)
            mask = torch.zeros(own, seen, dtype=dtype, device=self.seen.device)
            self.masks[own, seen, dtype] = mask.masked_fill(hidden, float("-inf"))[None, None]
        return self.masks[own, seen, dtype]


def use_tree_attention(model: Any) -> bool:
    """Have a transformers model (wrapped by peft or not) take paths in place of a mask; False where it cannot."""
    from transformers import AttentionInterface

    if not getattr(model, "_supports_attention_backend", False) or not getattr(model, "_supports_sdpa", False):
        return False
    AttentionInterface.register(NAME, tree_attention)
    model.set_attn_implementation(NAME)
    return bool(model.config.get_text_config()._attn_implementation == NAME)


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    crl_paths: Paths | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Outputs [1, P, heads, width] for one row of queries, keys and values [1, heads, P, width].

    Values may be narrower than keys. Without paths (a model that is asked outside of an update, with its own mask) it
    is transformers' scaled dot product attention. Raises BadInput for an argument that changes what attention computes.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    check_plain(module, more)
    EveryLayerOnce.attends(module, attention_mask, told=crl_paths is not None)
    if crl_paths is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
        return output, None
    if _by_blocks(query):
        return _blocks(query[0], key[0], value[0], crl_paths, more.get("scaling")), None
    if len(crl_paths.segments_S) == 1:
        output, _ = sdpa_attention_forward(module, query, key, value, None, **more)
        return output, None
    queries = torch.split(query, crl_paths.segments_S, dim=2)
    keys = torch.split(key.index_select(2, crl_paths.seen), crl_paths.lengths_S, dim=2)
    values = torch.split(value.index_select(2, crl_paths.seen), crl_paths.lengths_S, dim=2)
    outputs = []
    for own, seen, values_seen in zip(queries, keys, values, strict=True):
        mask = crl_paths.mask(own.shape[2], seen.shape[2], _computed(query))
        outputs.append(sdpa_attention_forward(module, own, seen, values_seen, mask, **more)[0])
    return torch.cat(outputs, dim=1), None


def _blocks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, paths: Paths, scaling: float | None
) -> torch.Tensor:
    """As the fused kernels under autocast, which would be given bfloat16, too."""
    asked, keys, values = (each.to(torch.bfloat16) for each in (query, key, value))
    grouped = asked.view(len(keys), -1, *asked.shape[1:])
    factor = scaling or query.shape[-1] ** -0.5
    found = attend(grouped, keys, values, paths.seen, paths.lengths_S, paths.segments_S, factor)
    return found.flatten(0, 1).transpose(0, 1)[None].contiguous()  # some models take a view of it


def _by_blocks(query: torch.Tensor) -> bool:
    """Whether the update runs on a CPU in bfloat16, which :func:`attend` is for."""
    return query.device.type == "cpu" and _computed(query) == torch.bfloat16


def _computed(query: torch.Tensor) -> torch.dtype:
    """The precision that attention computes in."""
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype


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
