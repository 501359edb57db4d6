"""Our losses and TRL's, where the definitions coincide: an independent implementation of the same equations.

TRL computes a loss inside its trainer's method; it is called here on a stand-in that holds the settings it reads. Its
CISPO bounds the ratio from above only, and `epsilon_high` is the cap itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from crl.config import ActorObjective, ExtractorObjective
from crl.credit.samples import rewarded, token_factor
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
    entropy_BT = entropies(logprobs_BT)
    trainer._get_per_token_logps_and_entropies.return_value = logprobs_BT, entropy_BT, None
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
    trainer.args.use_bias_correction_kl = False
    trainer.args.steps_per_generation = 1
    trainer.model.training = True
    empty = torch.zeros(len(mask_BT), 0, dtype=torch.long)
    inputs = {
        "prompt_ids": empty, "prompt_mask": empty, "completion_ids": torch.tensor(batch.targets_BT),
        "completion_mask": torch.ones_like(mask_BT), "tool_mask": mask_BT, "advantages": advantages_BT[:, 0],
        "old_per_token_logps": behavior_BT, "num_items_in_batch": mask_BT.sum(),
        "ref_per_token_logps": behavior_BT - 0.3,
    }  # fmt: skip
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    assert logprobs_BT.grad is not None
    return float(loss.detach()), logprobs_BT.grad


def entropies(logprobs_BT: torch.Tensor) -> torch.Tensor:
    """Stand-ins that have a gradient."""
    return 0.5 * logprobs_BT.square()


@pytest.mark.parametrize("more", [{}, {"beta": 0.05}, {"entropy_coef": 0.02}], ids=str)
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "cispo"])
@pytest.mark.parametrize("seed", range(3))
def test_every_loss_type_with_equal_weights_is_trls(
    seed: int, loss_type: Any, level: Any, more: dict[str, Any]
) -> None:
    batch = random_batch(seed)
    longest = 40 if loss_type == "dr_grpo" else None
    cispo = loss_type == "cispo"
    config = ActorObjective(
        loss_type=loss_type, importance_sampling_level=level, epsilon=1.0 if cispo else 0.2, epsilon_high=0.28,
        max_completion_length=longest, **more,
    )  # fmt: skip
    count, lengths = len(batch.weights_B), [int(row.sum()) for row in batch.mask_BT]
    factor = token_factor(config, [1 / count] * count, lengths)
    batch.weights_B = np.full(count, factor / count)
    logprobs_BT, rows = tensors(batch)
    mask_BT = torch.tensor(batch.mask_BT)
    loss, _ = grpo_objective(
        logprobs_BT, *rows, config, reference_BT=torch.tensor(batch.behavior_BT - 0.3) if "beta" in more else None,
        entropy_BT=entropies(logprobs_BT), normalizer=float(mask_BT.sum()),
    )  # fmt: skip
    loss.backward()
    expected, gradient = trl_loss(
        batch, loss_type=loss_type, epsilon_low=0.2, epsilon_high=1.28 if cispo else 0.28,
        max_completion_length=longest, importance_sampling_level=level,
        beta=more.get("beta", 0.0), entropy_coef=more.get("entropy_coef", 0.0),
        _entropy_bonus_enabled="entropy_coef" in more, use_adaptive_entropy=False,
    )  # fmt: skip
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(logprobs_BT.grad, gradient)


@pytest.mark.parametrize("length", [0, 79, 80, 81, 90, 100, 101, 5000])
def test_the_punishment_of_long_episodes_is_trls(length: int) -> None:
    from trl.rewards import get_soft_overlong_punishment

    config = ActorObjective(max_completion_length=100, soft_punish_cache=20)
    record = Written([0] * 7 + [1] * (length // 2)), Written([1, 0] * (length - length // 2))
    [expected] = get_soft_overlong_punishment(100, 20)([[1] * length])
    assert rewarded(0.7, record, config) - 0.7 == pytest.approx(expected)  # type: ignore[arg-type]
    assert rewarded(0.7, record, ActorObjective()) == 0.7  # type: ignore[arg-type]


@dataclass
class Written:
    """As much of a token record as the punishment reads."""

    loss_mask: list[int]


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
