"""Attention over a tree gives every sample what attention over that sample alone gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from crl.learn import tree_attention as tree_attention_module
from crl.learn.batches import Tree
from crl.learn.tree_attention import Paths, tree_attention


@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("key_heads", [2, 4], ids=["grouped", "plain"])
def test_every_sample_sees_its_own_way_from_the_root(key_heads: int, continued: bool) -> None:
    paths = [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1], [0, 1, 5, 6, 7], [8, 9]]  # a segment of one, one of none, a root
    tree = Tree([0] * 10, [0, 1, 2, 3, 3, 2, 3, 4, 0, 1], paths, [4, 1, 0, 3, 2], continued)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, 10, 8, generator=generator) for heads in (4, key_heads, key_heads))
    module: Any = SimpleNamespace(num_key_value_groups=4 // key_heads, is_causal=True)
    seen = Paths.of(tree, torch.device("cpu"))
    outputs, _ = tree_attention(module, query, key, value, None, crl_paths=seen, scaling=8**-0.5)
    keys, values = (each.repeat_interleave(4 // key_heads, dim=1) for each in (key, value))
    for path in paths:
        alone = torch.nn.functional.scaled_dot_product_attention(
            query[:, :, path], keys[:, :, path], values[:, :, path], is_causal=True
        )
        torch.testing.assert_close(outputs[:, path].transpose(1, 2), alone)


def test_sequences_of_an_episode_hold_no_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty short turns behind long prefixes, and a long one that a block does not hold: same numbers, and what is held
    for the backward pass does not grow with what is seen."""
    monkeypatch.setattr(tree_attention_module, "_LONG", 64)
    length, turns = 300, 50
    paths, segments = [list(range(length))], [length]
    for turn in range(turns):
        first = sum(segments)
        paths.append([*range(length - 2 * turn), first, first + 1])
        segments.append(2)
    paths.append([*range(5), *range(sum(segments), sum(segments) + 150)])
    segments.append(150)
    count = sum(segments)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, heads, count, 8, generator=generator).requires_grad_() for heads in (4, 2, 2)]
    towards = torch.randn(1, count, 4, 8, generator=generator)
    module: Any = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    found, held = [], []
    for continued in (False, True):
        tree, kept = Tree([0] * count, [0] * count, paths, segments, continued), dict[int, int]()

        def keep(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            seen = Paths.of(tree, torch.device("cpu"))
            output, _ = tree_attention(module, *inputs, None, crl_paths=seen, scaling=8**-0.5)
        found.append([output, *torch.autograd.grad(output, inputs, towards)])
        held.append(sum(kept.values()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert held[1] < held[0] / 3
