"""Eq. 3 and eq. 5 and their gradients, in the float32 of production, against independent float64 arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from crl.config import ActorObjective, ExtractorObjective
from crl.learn.objectives import Statistics, cispo_objective, grpo_objective, nll_objective
from tests.paper.reference import Batch, Floats, eq_3, eq_5, random_batch, relative_error

TOLERANCE = 1e-5
Objective = Callable[..., tuple[torch.Tensor, Statistics]]


def ours(batch: Batch, objective: Objective, *arguments: Any, **named: Any) -> tuple[float, Floats, Statistics]:
    """Loss, gradient in the logits and statistics of one of our objectives."""
    logits_BTV = torch.tensor(batch.logits_BTV, dtype=torch.float32, requires_grad=True)
    targets_BT1 = torch.tensor(batch.targets_BT)[..., None]
    mask_BT = torch.tensor(batch.mask_BT, dtype=torch.float32)
    logprobs_BT = (logits_BTV / batch.temperature).log_softmax(-1).gather(2, targets_BT1)[..., 0] * mask_BT
    rows = [batch.behavior_BT, batch.mask_BT, batch.advantages_BT, batch.weights_B]
    behavior, mask, advantages, weights = (torch.tensor(row, dtype=torch.float32) for row in rows)
    if objective is nll_objective:
        loss, statistics = objective(logprobs_BT, mask, weights, **named)
    else:
        loss, statistics = objective(logprobs_BT, behavior, mask, advantages, weights, *arguments, **named)
    loss.backward()
    assert logits_BTV.grad is not None
    return float(loss.detach()), logits_BTV.grad.double().numpy(), statistics


@pytest.mark.parametrize("level", ["token", "sequence_product"])
@pytest.mark.parametrize("epsilon_high", [None, 0.4])
@pytest.mark.parametrize("loss_type", ["grpo", "token_sum"])
@pytest.mark.parametrize("seed", range(6))
def test_eq_5_and_its_gradient(seed: int, level: Any, loss_type: Any, epsilon_high: float | None) -> None:
    batch = random_batch(seed, spread=0.4 if level == "token" else 0.15)
    config = ActorObjective(importance_sampling_level=level, loss_type=loss_type, epsilon_high=epsilon_high)
    loss, gradient, _ = ours(batch, grpo_objective, config)
    bounds = (config.epsilon, epsilon_high or config.epsilon)
    expected, derivative = eq_5(batch, *bounds, level=level, loss_type=loss_type)
    assert loss == pytest.approx(expected, rel=TOLERANCE)
    assert relative_error(gradient, batch.logit_gradient(derivative)) < TOLERANCE


@pytest.mark.parametrize("seed", range(6))
def test_eq_3_and_its_gradient(seed: int) -> None:
    batch = random_batch(seed)
    config = ExtractorObjective(epsilon=0.1, epsilon_high=0.3)
    loss, gradient, _ = ours(batch, cispo_objective, config, normalizer=float(batch.mask_BT.sum()))
    expected, derivative = eq_3(batch, config.epsilon, config.epsilon_high)
    assert loss == pytest.approx(expected, rel=TOLERANCE)
    assert relative_error(gradient, batch.logit_gradient(derivative)) < TOLERANCE


def test_the_batches_reach_every_case() -> None:
    """Ratios below, inside and above the clip, with both signs of advantage: six cases, or the tests prove little."""
    cases = set()
    for seed in range(6):
        batch = random_batch(seed)
        rho = np.exp(batch.logprobs() - batch.behavior_BT)
        for b, t in np.argwhere(batch.mask_BT > 0):
            side = "below" if rho[b, t] < 0.8 else "above" if rho[b, t] > 1.2 else "inside"
            cases.add((side, batch.advantages_B[b] > 0))
    assert len(cases) == 6


def test_clipped_tokens_are_counted_on_each_side() -> None:
    batch = random_batch(3)
    rho = np.exp(batch.logprobs() - batch.behavior_BT)
    signs_B1 = np.sign(batch.advantages_B)[:, None]
    trained = batch.mask_BT > 0
    _, _, actor = ours(batch, grpo_objective, ActorObjective())
    assert actor.clipped_high == ((rho > 1.2) & (signs_B1 > 0) & trained).sum() > 0
    assert actor.clipped_low == ((rho < 0.8) & (signs_B1 < 0) & trained).sum() > 0
    _, _, extractor = ours(batch, cispo_objective, ExtractorObjective(), normalizer=1.0)
    assert extractor.clipped_high == ((rho > 1.1) & trained).sum() > 0
    assert extractor.clipped_low == ((rho < 0.9) & trained).sum() > 0
    assert actor.tokens == trained.sum()
    assert actor.ratio_sum == pytest.approx(rho[trained].sum(), rel=TOLERANCE)
    assert actor.ratio_max == pytest.approx(rho[trained].max(), rel=TOLERANCE)
    assert actor.mismatch_sum == pytest.approx(np.abs(np.log(rho[trained])).sum(), rel=TOLERANCE)


def test_eq_3_gives_every_token_a_gradient_where_eq_5_takes_it_away() -> None:
    batch = random_batch(1)
    batch.advantages_B = np.ones_like(batch.advantages_B)
    batch.behavior_BT = (batch.logprobs() - 1.0) * batch.mask_BT  # every ratio is e, above both clips
    _, clipped, _ = ours(batch, grpo_objective, ActorObjective())
    _, kept, _ = ours(batch, cispo_objective, ExtractorObjective(), normalizer=1.0)
    assert np.abs(clipped).max() == 0
    assert (np.abs(kept).sum(-1) > 0).sum() == batch.mask_BT.sum()


def test_losses_of_micro_batches_add_up() -> None:
    batch = random_batch(2)
    parts = [
        Batch(
            batch.logits_BTV[rows], batch.targets_BT[rows], batch.mask_BT[rows], batch.behavior_BT[rows],
            batch.advantages_B[rows], batch.weights_B[rows], batch.temperature,
        )
        for rows in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]  # fmt: skip
    normalizer = float(batch.mask_BT.sum())
    for objective, arguments, named in (
        (grpo_objective, (ActorObjective(),), {}),
        (cispo_objective, (ExtractorObjective(),), {"normalizer": normalizer}),
        (nll_objective, (), {"normalizer": normalizer}),
    ):
        whole, _, counted = ours(batch, objective, *arguments, **named)
        found = [ours(part, objective, *arguments, **named) for part in parts]
        assert sum(loss for loss, _, _ in found) == pytest.approx(whole, rel=TOLERANCE)
        total = sum((statistics for _, _, statistics in found), Statistics())
        assert total.clipped_high == counted.clipped_high
        assert total.ratio_max == pytest.approx(counted.ratio_max)


def test_next_token_loss() -> None:
    batch = random_batch(4)
    trained = float(batch.mask_BT.sum())
    loss, gradient, _ = ours(batch, nll_objective, normalizer=trained)
    derivative = -batch.weights_B[:, None] * batch.mask_BT / trained
    assert loss == pytest.approx(float((derivative * batch.logprobs()).sum()), rel=TOLERANCE)
    assert relative_error(gradient, batch.logit_gradient(derivative)) < TOLERANCE


def test_a_sequence_far_from_its_behavior_stays_finite() -> None:
    batch = random_batch(5)
    batch.behavior_BT = -60.0 * batch.mask_BT
    for advantage in (1.0, -1.0):
        batch.advantages_B = np.full_like(batch.advantages_B, advantage)
        loss, gradient, _ = ours(batch, grpo_objective, ActorObjective(importance_sampling_level="sequence_product"))
        assert np.isfinite(loss) and np.isfinite(gradient).all()
