"""Attention over a tree of samples (`batches`): each segment sees the way from the root to itself, and nothing else.

It is an attention implementation of transformers under a name of its own: a model that follows the interface
hands it the keywords that its forward pass was given. The fused kernels compute it, segment by segment.

On a CPU in bfloat16, with gradients, :func:`attend` takes two thirds of their time. Scores and their softmax are
float32, as in the fused kernels; the other products are bfloat16, which a CPU with such instructions makes four times
as fast. No square matrix outlives its block of queries: the backward pass makes the probabilities again (Dao et al.
2022, arXiv 2205.14135, section 3.1), from keys and values that are held once for all segments that see them.

Shapes are those of `crl.learn`. :func:`tree_attention` has the argument names of transformers' interface.
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
_BLOCK, _LONG = 64, 256
"""Queries of one block: its scores stay in a core's cache; of one that the fused kernels compute."""


@dataclass(frozen=True)
class Paths:
    """What every segment of a tree sees."""

    seen_K: torch.Tensor
    """The paths of the segments, one behind another: indices into the P positions."""
    lengths: list[int]
    """Positions that each segment sees, itself included."""
    segments: list[int]
    """Positions of each segment; together P."""
    rows_BT: torch.Tensor
    """Of each sample its path, padded on the right with its last position: for what reads samples apart."""
    continued: bool = False
    """See :class:`crl.learn.batches.Tree`."""
    masks: dict[tuple[int, int, torch.dtype], torch.Tensor] = field(default_factory=dict)
    """What :meth:`mask` has made, for all layers of a pass."""

    @classmethod
    def of(cls, tree: Tree, device: torch.device) -> Paths:
        """Those of a tree; a sample that adds no position needs no segment."""
        pairs = [(path, own) for path, own in zip(tree.paths, tree.segments, strict=True) if own]
        seen_K = torch.tensor([position for path, _ in pairs for position in path], device=device)
        width = max(map(len, tree.paths))
        rows_BT = torch.tensor(
            [[*path, *(path or [0])[-1:] * (width - len(path))] for path in tree.paths], device=device
        )
        lengths, segments = [len(path) for path, _ in pairs], [own for _, own in pairs]
        return cls(seen_K, lengths, segments, rows_BT, tree.continued)

    def mask(self, own: int, seen: int, dtype: torch.dtype) -> torch.Tensor | None:
        """What is added to the scores of a segment, [1, 1, N, S], to hide from each position those that come after it;
        None where the segment is all that it sees."""
        if own == seen:
            return None
        if (own, seen, dtype) not in self.masks:
            hidden_NS = torch.ones(own, seen, dtype=torch.bool, device=self.seen_K.device).triu(seen - own + 1)
            mask_NS = torch.zeros(own, seen, dtype=dtype, device=self.seen_K.device)
            self.masks[own, seen, dtype] = mask_NS.masked_fill(hidden_NS, float("-inf"))[None, None]
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
    EveryLayerOnce.attends(module, attention_mask, has_mask=crl_paths is not None)
    if crl_paths is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
        return output, None
    if _by_blocks(query):
        return _blocks(query[0], key[0], value[0], crl_paths, more.get("scaling")), None
    if len(crl_paths.segments) == 1:
        output, _ = sdpa_attention_forward(module, query, key, value, None, **more)
        return output, None
    if crl_paths.continued:
        return _continued(module, query, key, value, crl_paths, more), None
    queries = torch.split(query, crl_paths.segments, dim=2)
    keys = torch.split(key.index_select(2, crl_paths.seen_K), crl_paths.lengths, dim=2)
    values = torch.split(value.index_select(2, crl_paths.seen_K), crl_paths.lengths, dim=2)
    outputs = []
    for query_1QND, key_1HSD, value_1HSE in zip(queries, keys, values, strict=True):
        mask_11NS = crl_paths.mask(query_1QND.shape[2], key_1HSD.shape[2], _computed(query))
        outputs.append(sdpa_attention_forward(module, query_1QND, key_1HSD, value_1HSE, mask_11NS, **more)[0])
    return torch.cat(outputs, dim=1), None


def _continued(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, paths: Paths, more: Any
) -> torch.Tensor:
    """Of sequences of one episode. A long segment is computed in blocks, each with the keys that it reaches; segments
    that see far more than they add gather their keys again in the backward pass."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attended(query_1QND: torch.Tensor, key_1HSD: torch.Tensor, value_1HSE: torch.Tensor) -> torch.Tensor:
        mask_11NS = paths.mask(query_1QND.shape[2], key_1HSD.shape[2], _computed(query))
        found: torch.Tensor = sdpa_attention_forward(module, query_1QND, key_1HSD, value_1HSE, mask_11NS, **more)[0]
        return found

    parts: list[tuple[slice, torch.Tensor, bool]] = []  # queries, what they see, whether their segment adds little
    for path_S, blocks in _segments((paths.seen_K, paths.lengths, paths.segments), _LONG):
        first, last = blocks[0][0], blocks[-1][1]
        if last - first == len(path_S):  # no mask
            blocks = [(first, last, len(path_S))]
        parts += [(slice(one, end), path_S[:reach], len(path_S) > 2 * (last - first)) for one, end, reach in blocks]
    often = [(own, seen) for own, seen, adds_little in parts if adds_little]
    again = iter(_Again.apply(query, key, value, often, attended) if often else ())  # type: ignore[no-untyped-call]
    outputs = [
        next(again)
        if adds_little
        else attended(query[:, :, own], key.index_select(2, seen), value.index_select(2, seen))
        for own, seen, adds_little in parts
    ]
    return torch.cat(outputs, dim=1)


class _Again(torch.autograd.Function):
    """Outputs of parts of a tree, by a function of queries, keys and values. These are gathered again in the backward
    pass: nothing is held that grows with what the parts see."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, parts: Any, attended: Any
    ) -> Any:
        ctx.save_for_backward(query, key, value)
        ctx.parts, ctx.attended, kind = parts, attended, query.device.type
        ctx.precision = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        return tuple(
            attended(query[:, :, own], key.index_select(2, seen), value.index_select(2, seen)) for own, seen in parts
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        query, key, value = ctx.saved_tensors
        to_query, to_key, to_value = map(torch.zeros_like, (query, key, value))
        kind, dtype, enabled = ctx.precision
        for (own, seen), gradient in zip(ctx.parts, gradients, strict=True):
            inputs = query[:, :, own], key.index_select(2, seen), value.index_select(2, seen)
            inputs = tuple(each.detach().requires_grad_() for each in inputs)
            with torch.enable_grad(), torch.autocast(kind, dtype=dtype, enabled=enabled):
                output = ctx.attended(*inputs)
            found = torch.autograd.grad(output, inputs, gradient)
            to_query[:, :, own] = found[0]
            to_key.index_add_(2, seen, found[1])
            to_value.index_add_(2, seen, found[2])
        return to_query, to_key, to_value, None, None


def _blocks(
    query_QPD: torch.Tensor, key_HPD: torch.Tensor, value_HPE: torch.Tensor, paths: Paths, scaling: float | None
) -> torch.Tensor:
    """As the fused kernels under autocast, which would be given bfloat16, too."""
    query_QPD, key_HPD, value_HPE = (each.to(torch.bfloat16) for each in (query_QPD, key_HPD, value_HPE))
    query_HGPD = query_QPD.view(len(key_HPD), -1, *query_QPD.shape[1:])
    factor = scaling or query_QPD.shape[-1] ** -0.5
    out_HGPE = attend(query_HGPD, key_HPD, value_HPE, paths.seen_K, paths.lengths, paths.segments, factor)
    return out_HGPE.flatten(0, 1).transpose(0, 1)[None].contiguous()  # some models take a view of it


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
    seen_K: torch.Tensor,
    lengths: list[int],
    segments: list[int],
    scaling: float,
) -> torch.Tensor:
    """Outputs [H, G, P, E] of scaled dot product attention from each position to its path (`tree_attention.Paths`)."""
    paths = seen_K, lengths, segments
    out_HGPE: torch.Tensor = _Attention.apply(query_HGPD, key_HPD, value_HPE, paths, scaling)  # type: ignore[no-untyped-call]
    return out_HGPE


class _Attention(torch.autograd.Function):
    """Forward and backward by block; the arithmetic of both is in float32 where sums grow."""

    @staticmethod
    def forward(
        ctx: Any,
        query_HGPD: torch.Tensor,
        key_HPD: torch.Tensor,
        value_HPE: torch.Tensor,
        paths: Any,
        scaling: float,
    ) -> Any:
        ctx.save_for_backward(query_HGPD, key_HPD, value_HPE)
        ctx.paths, ctx.scaling = paths, scaling
        dtype = query_HGPD.dtype
        out_HGPE = query_HGPD.new_empty(*query_HGPD.shape[:3], value_HPE.shape[2])
        with torch.autocast("cpu", enabled=False):
            scaled_HGPD = query_HGPD * scaling
            for path_S, blocks in _segments(paths):
                key_HSD, value_HSE = key_HPD[:, path_S].float(), value_HPE[:, path_S]
                for first, last, reach in blocks:
                    made_HXS = _probabilities(scaled_HGPD[:, :, first:last], key_HSD[:, :reach]).to(dtype)
                    found_HXE = torch.bmm(made_HXS, value_HSE[:, :reach])
                    out_HGPE[:, :, first:last] = found_HXE.view(out_HGPE[:, :, first:last].shape)
        return out_HGPE

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_HGPE: torch.Tensor) -> Any:
        query_HGPD, key_HPD, value_HPE = ctx.saved_tensors
        dtype, scaled_HGPD = query_HGPD.dtype, query_HGPD * ctx.scaling
        to_query_HGPD = torch.empty_like(query_HGPD)
        to_key_HPD = torch.zeros_like(key_HPD, dtype=torch.float32)
        to_value_HPE = torch.zeros_like(value_HPE, dtype=torch.float32)
        with torch.autocast("cpu", enabled=False):
            for path_S, blocks in _segments(ctx.paths):
                key_HSD, value_HSE = key_HPD[:, path_S], value_HPE[:, path_S]
                float_HSD = key_HSD.float()
                own_key_HSD = torch.zeros_like(float_HSD)
                own_value_HSE = torch.zeros_like(value_HSE, dtype=torch.float32)
                for first, last, reach in blocks:
                    query_HGND = scaled_HGPD[:, :, first:last]
                    made_HXS = _probabilities(query_HGND, float_HSD[:, :reach])
                    grad_HXE = grad_HGPE[:, :, first:last].flatten(1, 2).to(dtype)
                    own_value_HSE[:, :reach] += torch.bmm(made_HXS.to(dtype).mT, grad_HXE)
                    to_made_HXS = torch.bmm(grad_HXE, value_HSE[:, :reach].mT).float()
                    # Of softmax: p (dp - sum p dp), in one pass.
                    to_scores_HXS = torch._softmax_backward_data(to_made_HXS, made_HXS, -1, torch.float32).to(dtype)
                    to_query_HXD = torch.bmm(to_scores_HXS, key_HSD[:, :reach])
                    to_query_HGPD[:, :, first:last] = to_query_HXD.view(query_HGND.shape)
                    own_key_HSD[:, :reach] += torch.bmm(to_scores_HXS.mT, query_HGND.flatten(1, 2))
                to_key_HPD.index_add_(1, path_S, own_key_HSD)
                to_value_HPE.index_add_(1, path_S, own_value_HSE)
        return to_query_HGPD * ctx.scaling, to_key_HPD.to(dtype), to_value_HPE.to(dtype), None, None


def _segments(paths: Any, block: int = _BLOCK) -> Iterator[tuple[torch.Tensor, list[tuple[int, int, int]]]]:
    """The path of each segment, and its blocks: first and last query among the P positions, positions they reach."""
    seen_K, lengths, segments = paths
    begun = 0
    for path_S, own in zip(torch.split(seen_K, lengths), segments, strict=True):
        before = len(path_S) - own
        starts = range(0, own, block)
        ends = [min(own, start + block) for start in starts]
        yield path_S, [(begun + start, begun + end, before + end) for start, end in zip(starts, ends, strict=True)]
        begun += own


def _probabilities(query_HGND: torch.Tensor, key_HSD: torch.Tensor) -> torch.Tensor:
    """Softmax [H, X, S] of scores in float32; the last N keys are those of the queries, hidden from earlier ones."""
    heads, groups, count, width = query_HGND.shape
    scores_HXS = torch.bmm(query_HGND.reshape(heads, -1, width).float(), key_HSD.mT)
    if count > 1:
        later_NN = torch.ones(count, count, dtype=torch.bool).triu(1)
        scores_HXS.view(heads, groups, count, -1)[..., -count:].masked_fill_(later_NN, float("-inf"))
    return torch.softmax(scores_HXS, -1)
