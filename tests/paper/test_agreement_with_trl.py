"""Our losses and TRL's, where the definitions coincide: an independent implementation of the same equations.

TRL computes a loss inside its trainer's method; it is called here on a stand-in that holds the settings it reads. Its
CISPO bounds the ratio from above only (and `epsilon_high` is the cap itself), its sequence ratio is a geometric mean:
there the definitions differ and nothing is compared.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from crl.config import ActorObjective, ExtractorObjective
from crl.learn.objectives import cispo_objective, grpo_objective
from tests.paper.reference import Batch, random_batch


def tensors(batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Log-probabilities that take a gradient, and behavior, mask, advantages, weights."""
    logprobs_BT = torch.tensor(batch.logprobs(), requires_grad=True)
    rows = (batch.behavior_BT, batch.mask_BT, batch.advantages_BT, batch.weights_B)
    return logprobs_BT, [torch.tensor(row) for row in rows]


def trl_loss(batch: Batch, **settings: Any) -> tuple[float, torch.Tensor]:
    """Loss and gradient in the log-probabilities of TRL's GRPOTrainer."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    logprobs_BT, (behavior_BT, mask_BT, advantages_BT, _) = tensors(batch)
    trainer = MagicMock()
    trainer._get_per_token_logps_and_entropies.return_value = logprobs_BT, torch.zeros_like(logprobs_BT), None
    trainer.accelerator.gather = lambda value: value
    trainer.accelerator.num_processes = 1
    values = {
        "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "importance_sampling_level": "token",
        "beta": 0.0, "use_vllm": False, "current_gradient_accumulation_steps": 1, "_entropy_bonus_enabled": False,
        "aux_loss_enabled": False, **settings,
    }  # fmt: skip
    for name, value in values.items():
        setattr(trainer, name, value)
    trainer.args.delta = None
    trainer.args.steps_per_generation = 1
    trainer.model.training = True
    empty = torch.zeros(len(mask_BT), 0, dtype=torch.long)
    inputs = {
        "prompt_ids": empty, "prompt_mask": empty, "completion_ids": torch.tensor(batch.targets_BT),
        "completion_mask": torch.ones_like(mask_BT), "tool_mask": mask_BT, "advantages": advantages_BT[:, 0],
        "old_per_token_logps": behavior_BT, "num_items_in_batch": mask_BT.sum(),
    }  # fmt: skip
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    assert logprobs_BT.grad is not None
    return float(loss.detach()), logprobs_BT.grad


@pytest.mark.parametrize("seed", range(4))
def test_grpo_with_equal_weights_is_trls(seed: int) -> None:
    batch = random_batch(seed)
    batch.weights_B = np.full(len(batch.weights_B), 1 / len(batch.weights_B))
    logprobs_BT, rows = tensors(batch)
    loss, _ = grpo_objective(logprobs_BT, *rows, ActorObjective(epsilon=0.2))
    loss.backward()
    expected, gradient = trl_loss(batch, loss_type="grpo", epsilon_low=0.2, epsilon_high=0.2)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(logprobs_BT.grad, gradient)


@pytest.mark.parametrize("seed", range(4))
def test_cispo_with_ratios_above_the_lower_bound_is_trls(seed: int) -> None:
    batch = random_batch(seed)
    batch.weights_B = np.ones(len(batch.weights_B))
    gaps = np.abs(batch.logprobs() - batch.behavior_BT)
    batch.behavior_BT = (batch.logprobs() - gaps) * batch.mask_BT  # every ratio is 1 or more
    logprobs_BT, rows = tensors(batch)
    config = ExtractorObjective(epsilon=0.1, epsilon_high=0.1)
    loss, statistics = cispo_objective(logprobs_BT, *rows, config, normalizer=float(batch.mask_BT.sum()))
    loss.backward()
    expected, gradient = trl_loss(batch, loss_type="cispo", epsilon_low=0.1, epsilon_high=1.1)
    assert statistics.clipped_high > 0
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(logprobs_BT.grad, gradient)
