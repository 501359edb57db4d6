"""Attention by blocks against the definition in float64: outputs and gradients of each position of a tree."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from crl.learn.batches import tree_of
from crl.learn.tree_attention import Paths, attend

HEADS, GROUPS, WIDTH = 2, 3, 16
MODULE: Any = SimpleNamespace(num_key_value_groups=2, is_causal=True)
"""What transformers' attention asks of its layer."""


def sample(tokens: list[int]) -> Any:
    """All of a sample that a tree is made of; its last token is only predicted."""
    return SimpleNamespace(token_ids=[*tokens, 0], generation_id=str(tokens))


def by_definition(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ways: list[list[int]], scaling: float
) -> torch.Tensor:
    """softmax(q K^T) V of each position over its own way; `ways[p]` ends with p."""
    out = []
    for position, way in enumerate(ways):
        scores = torch.einsum("hgd,hsd->hgs", query[:, :, position], key[:, way]) * scaling
        out.append(torch.einsum("hgs,hsd->hgd", scores.softmax(-1), value[:, way]))
    return torch.stack(out, dim=2)


@pytest.mark.parametrize(
    "sequences",
    [
        [list(range(200))],
        [[1, 2, 3, 4, 5], [1, 2, 3, 9, 9, 9, 9], [1, 2, 8, 8]],
        # A stem longer than a block, branches longer than one, and one that adds a single position.
        [[*range(150), *range(300, 380)], [*range(150), *range(500, 570)], [*range(150), 7, 7], [3, 4, 5]],
    ],
    ids=["one", "small", "blocks"],
)
def test_outputs_and_gradients_are_those_of_the_definition(sequences: list[list[int]]) -> None:
    tree = tree_of([sample(tokens) for tokens in sequences])
    paths, count = Paths.of(tree, torch.device("cpu")), len(tree.token_ids)
    ways: dict[int, list[int]] = {}
    for path in tree.paths:
        ways |= {position: path[: place + 1] for place, position in enumerate(path)}
    torch.manual_seed(0)
    made = [
        torch.randn(shape) for shape in ((HEADS, GROUPS, count, WIDTH), (HEADS, count, WIDTH), (HEADS, count, WIDTH))
    ]
    half = [each.to(torch.bfloat16).requires_grad_() for each in made]
    exact = [each.detach().double().requires_grad_() for each in half]
    given = torch.randn(HEADS, GROUPS, count, WIDTH)
    found = attend(*half, paths.seen_K, paths.lengths, paths.segments, 0.3)
    expected = by_definition(*exact, [ways[position] for position in range(count)], 0.3)
    found.backward(given.to(torch.bfloat16))
    expected.backward(given.to(torch.bfloat16).double())
    pairs = [(found, expected), *((one.grad, other.grad) for one, other in zip(half, exact, strict=True))]
    for one, other in pairs:
        assert one is not None and other is not None and one.dtype == torch.bfloat16
        assert (
            float(((one.double() - other).norm() / other.norm()).detach()) < 6e-3
        )  # bfloat16 has 8 bits: 2e-3 for each rounding


def test_an_update_under_autocast_goes_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from crl.learn import tree_attention

    asked: list[torch.dtype] = []

    def watched(*args: torch.Tensor) -> torch.Tensor:
        asked.append(args[0].dtype)
        return attend(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(tree_attention, "attend", watched)
    tree = tree_of([sample([1, 2, 3]), sample([1, 2, 4])])
    paths = Paths.of(tree, torch.device("cpu"))
    query, key, value = torch.randn(1, 4, 4, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
    exact, _ = tree_attention.tree_attention(MODULE, query, key, value, None, crl_paths=paths)
    assert asked == []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = tree_attention.tree_attention(MODULE, query, key, value, None, crl_paths=paths)
    assert asked == [torch.bfloat16] and found.shape == exact.shape
    torch.testing.assert_close(found.float(), exact, rtol=0.03, atol=0.03)
