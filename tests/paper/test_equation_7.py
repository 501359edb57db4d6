"""Eq. 7, and the extractor's advantage of eq. 3, from buffer to sample, against plain arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from crl.config import ExtractorObjective
from crl.credit.buffer import reweight
from crl.credit.samples import cispo_samples
from crl.records import BufferItem, Generation


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.3])
@pytest.mark.parametrize("delta", [0, 1, 4])
def test_weight_by_training_count(alpha: float, delta: int) -> None:
    config = ExtractorObjective(alpha=alpha, delta=delta)
    for count in range(6):
        assert reweight(count, None, round=9, config=config) == pytest.approx(math.exp(-alpha * math.log(1 + count)))
        for last in range(10):
            expected = 0.0 if (9 - last) < delta else math.exp(-alpha * math.log(1 + count))
            assert reweight(count, last, round=9, config=config) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_rewards_baseline_and_weights_of_a_random_batch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = ExtractorObjective(batch=16, alpha=0.5, delta=1)
    uses, counts = rng.integers(1, 9, size=16), rng.integers(0, 4, size=16)
    sums = np.array([float(rng.choice([-1.0, 1.0], size=use).sum()) for use in uses])
    items, generations = [], {}
    for index in range(16):
        key = f"x{index}"
        last = 3 if counts[index] else None
        items.append(
            BufferItem(
                generation_id=key, generation_round=1, generation_stage="distill", kind="used", entered_round=2,
                entered_order=index, uses=int(uses[index]), score_sum=float(sums[index]),
                train_count=int(counts[index]), last_trained_round=last, status="waiting", reason=None,
            )
        )  # fmt: skip
        generations[key] = Generation(
            generation_id=key, round=1, stage="distill", role="extractor", kind="distill", weights_digest="w",
            temperature=1.0, token_ids=[1, 2], loss_mask=[0, 1], logprobs=[0.0, -1.0], prompt="", output="",
            stop_reason="end_of_turn",
        )  # fmt: skip
    samples = cispo_samples([items], generations, config, round=7)
    rewards = sums / uses
    expected = (rewards - rewards.mean()) / np.sqrt(1 + counts)
    found = np.array([sample.advantage * sample.weight for sample in samples])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
