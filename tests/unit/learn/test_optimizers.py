"""How far a step moves the weights, against weights that were copied before it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import get_scheduler

from crl.config import OptimizerConfig
from crl.learn import optimizers
from crl.learn.optimizers import Moved, learning_rate, make_optimizer


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


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup"])
def test_the_learning_rate_is_that_of_the_schedule_of_transformers(schedule: Any, warmup: int) -> None:
    if schedule == "constant_with_warmup" and not warmup:
        return
    steps = None if schedule == "constant_with_warmup" else 10
    config = OptimizerConfig(
        learning_rate=0.5, lr_scheduler_type=schedule, warmup_steps=warmup, lr_scheduler_steps=steps
    )
    theirs = get_scheduler(
        schedule, torch.optim.SGD([torch.zeros(1)], lr=0.5), num_warmup_steps=warmup, num_training_steps=10
    ).lr_lambdas[0]
    # Theirs counts from 0, so that the first step of a warm-up moves nothing; ours has a warm-up of steps that move.
    expected = [0.5 * (theirs(step + 1) if step < warmup else theirs(step)) for step in range(10)]
    assert [learning_rate(config, update) for update in range(1, 11)] == pytest.approx(expected)
    if steps is not None:
        assert learning_rate(config, 11) == pytest.approx(0) and learning_rate(config, 50) == pytest.approx(0)


@pytest.mark.parametrize(
    "settings",
    [
        {"warmup_steps": 2},
        {"lr_scheduler_type": "constant_with_warmup"},
        {"lr_scheduler_type": "cosine"},
        {"lr_scheduler_type": "linear", "warmup_steps": 5, "lr_scheduler_steps": 5},
        {"lr_scheduler_steps": 5},
    ],
)
def test_a_schedule_without_effect_or_without_its_steps_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="lr_scheduler"):
        OptimizerConfig(**settings)
