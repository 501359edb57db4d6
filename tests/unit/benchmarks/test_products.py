"""Products are counted whoever makes them: layers, attention, its gradient; in training and in generation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from benchmarks.products import alone, counted

ROWS, HEADS, ASKED, KNOWN, WIDTH = 2, 3, 5, 7, 16


def operations(made: Any) -> int:
    """Floating-point operations of counted products."""
    return sum(count * 2 * math.prod(first) * second[-1] for (first, second, _), count in made.items())


def attend(*, gradient: bool) -> torch.Tensor:
    """Attention as a model calls it."""
    query = torch.ones(ROWS, HEADS, ASKED, WIDTH, requires_grad=gradient)
    key, value = (torch.ones(ROWS, HEADS, KNOWN, WIDTH, requires_grad=gradient) for _ in range(2))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


ONE = 2 * ROWS * HEADS * ASKED * KNOWN * WIDTH


def test_attention_is_two_products_with_and_without_gradients() -> None:
    with counted() as made, torch.inference_mode():
        attend(gradient=False)
    assert operations(made) == 2 * ONE
    with counted() as made:
        found = attend(gradient=True)
    assert operations(made) == 2 * ONE
    with counted() as made:
        found.sum().backward()  # type: ignore[no-untyped-call]
    assert operations(made) == 5 * ONE, "scores again, and gradients of values, weights, queries and keys"


@pytest.mark.parametrize("gradient", [False, True])
def test_a_layer_is_one_product_and_its_gradient_two(gradient: bool) -> None:
    layer, rows = torch.nn.Linear(8, 4, bias=False), torch.ones(3, 6, 8, requires_grad=gradient)
    with counted() as made, torch.set_grad_enabled(gradient):
        found = layer(rows)
        if gradient:
            found.sum().backward()
    assert operations(made) == (3 if gradient else 1) * 2 * 18 * 8 * 4


def test_products_are_made_again_alone() -> None:
    with counted() as made:
        torch.ones(64, 32) @ torch.ones(32, 16)
    found = alone(made, 1.0)
    assert found.operations == 2 * 64 * 32 * 16 and found.products > 0
    assert found.bytes_read == 4 * (64 * 32 + 32 * 16)
