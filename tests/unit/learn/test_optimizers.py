"""How far a step moves the weights, against weights that were copied before it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from crl.config import OptimizerConfig
from crl.learn import optimizers
from crl.learn.optimizers import Moved, make_optimizer


@pytest.mark.parametrize(
    "settings",
    [{}, {"weight_decay": 0.1}, {"kind": "sgd", "weight_decay": 0.1}, {"betas": (0.0, 0.5), "weight_decay": 1.0}],
    ids=str,
)
def test_the_norm_of_a_step_is_the_distance_of_the_weights(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizers, "_CHUNK", 7)
    generator = torch.Generator().manual_seed(0)
    parts = [torch.nn.Parameter(torch.randn(*shape, generator=generator)) for shape in ((5, 3), (20,), (2, 2, 2))]
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.05, **settings), parts)
    moved = Moved(optimizer)
    for number in range(4):
        for part in parts:
            part.grad = torch.randn(part.shape, generator=generator)
        if number:
            parts[-1].grad = None  # it stays, whatever its moments say
        before = [part.detach().double().clone() for part in parts]
        moved.squared = 0.0
        optimizer.step()
        pairs = zip(parts, before, strict=True)
        expected = sum(float((part.detach().double() - old).square().sum()) for part, old in pairs)
        assert moved.squared == pytest.approx(expected, rel=1e-4)
