"""Attention over a tree gives every sample what attention over that sample alone gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from crl.learn.batches import Tree
from crl.learn.tree_attention import Paths, tree_attention


@pytest.mark.parametrize("key_heads", [2, 4], ids=["grouped", "plain"])
def test_every_sample_sees_its_own_way_from_the_root(key_heads: int) -> None:
    paths = [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1], [0, 1, 5, 6, 7], [8, 9]]  # a segment of one, one of none, a root
    tree = Tree([0] * 10, [0, 1, 2, 3, 3, 2, 3, 4, 0, 1], paths, [4, 1, 0, 3, 2])
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
