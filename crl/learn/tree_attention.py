"""Attention over a tree of samples (`packing`): each segment sees the way from the root to itself, and nothing else.

It is an attention implementation of transformers under a name of its own: a model that follows the interface
hands it the keywords that its forward pass was given. The fused kernels compute it, segment by segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from crl.config.models import EveryLayerOnce, check_plain
from crl.learn.cpu_attention import attend
from crl.learn.packing import Tree

NAME = "crl_tree"
KEYWORD = "crl_paths"


@dataclass(frozen=True)
class Paths:
    """What every segment of a tree sees, S segments in all."""

    seen: torch.Tensor
    """The paths of the segments, one behind another: indices into the P positions."""
    lengths_S: list[int]
    """Positions that each segment sees, itself included."""
    segments_S: list[int]
    """Positions of each segment; together P."""
    masks: dict[tuple[int, int, torch.dtype], torch.Tensor] = field(default_factory=dict)
    """What :meth:`mask` has made, for all layers of a pass."""

    @classmethod
    def of(cls, tree: Tree, device: torch.device) -> Paths:
        """Those of a tree; a sample that adds no position needs no segment."""
        pairs = [(path, own) for path, own in zip(tree.paths, tree.segments, strict=True) if own]
        seen = torch.tensor([position for path, _ in pairs for position in path], device=device)
        return cls(seen, [len(path) for path, _ in pairs], [own for _, own in pairs])

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
    """Whether the update runs on a CPU in bfloat16, which `cpu_attention` is for."""
    return query.device.type == "cpu" and _computed(query) == torch.bfloat16


def _computed(query: torch.Tensor) -> torch.dtype:
    """The precision that attention computes in."""
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
