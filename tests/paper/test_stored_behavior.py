"""The ratio is taken against the log-probabilities stored when sampling. This fails if they are recomputed.

The released code recomputes them just before the update: every ratio is then 1, nothing is ever clipped, and the loss
does not depend on what was stored. Here the stored values are moved by known amounts, through the whole update on the
DeepSpeed engine, and the loss must move as the equations say.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.config import ActorObjective, DeepSpeedConfig, ExtractorObjective, OptimizerConfig, RoleConfig
from crl.records import Sample
from tests.paper.reference import Batch, eq_3, eq_5

VOCABULARY, TEMPERATURE = 32, 0.9


def batch_of(model: Path, samples: list[Sample]) -> Batch:
    """The samples with logits of an ordinary float64 forward pass over each sequence alone, without padding."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    length = max(len(sample.token_ids) for sample in samples) - 1
    batch = Batch(
        logits_BTV=np.zeros((len(samples), length, VOCABULARY)),
        targets_BT=np.zeros((len(samples), length), dtype=np.int64),
        mask_BT=np.zeros((len(samples), length)),
        behavior_BT=np.zeros((len(samples), length)),
        advantages_B=np.array([sample.advantage for sample in samples]),
        weights_B=np.array([sample.weight for sample in samples]),
        temperature=TEMPERATURE,
    )
    for row, sample in enumerate(samples):
        tokens = len(sample.token_ids) - 1
        with torch.no_grad():
            batch.logits_BTV[row, :tokens] = network(torch.tensor([sample.token_ids[:-1]])).logits[0].numpy()
        batch.targets_BT[row, :tokens] = sample.token_ids[1:]
        batch.mask_BT[row, :tokens] = sample.loss_mask[1:]
        batch.behavior_BT[row, :tokens] = sample.logprobs[1:]
    return batch


def demonstrations(model: Path, objective: str) -> list[Sample]:
    """Multi-turn samples whose stored log-probabilities are exactly those of the model: every ratio is 1."""
    rng = np.random.default_rng(5)
    samples = []
    for index in range(5):
        mask = [0, 0, 0] + [int(value) for value in rng.integers(0, 2, size=int(rng.integers(6, 14)))] + [1]
        samples.append(
            Sample(
                sample_id=f"s{index}", round=1, role="actor", objective=objective, source="0001/collect",
                generation_id=f"g{index}", reward=0.0, advantage=float((-1) ** index * rng.uniform(0.2, 1.5)),
                weight=float(rng.uniform(0.1, 0.4)), temperature=TEMPERATURE,
                token_ids=[int(token) for token in rng.integers(0, VOCABULARY, size=len(mask))], loss_mask=mask,
                logprobs=[0.0] * len(mask),
            )
        )  # fmt: skip
    exact = batch_of(model, samples).logprobs()
    return [
        dataclasses.replace(sample, logprobs=[0.0, *exact[row, : len(sample.token_ids) - 1].tolist()])
        for row, sample in enumerate(samples)
    ]


def moved(samples: list[Sample], by: float, rng: np.random.Generator | None = None) -> list[Sample]:
    """The samples with every stored log-probability moved by a constant, or by noise of that size."""
    return [
        dataclasses.replace(
            sample,
            logprobs=[
                (value + (by if rng is None else by * float(rng.normal()))) * trained
                for value, trained in zip(sample.logprobs, sample.loss_mask, strict=True)
            ],
        )
        for sample in samples
    ]


def update(
    model: Path, samples: list[Sample], objective: ActorObjective | ExtractorObjective, **more: Any
) -> dict[str, float]:
    from crl.learn.terms import objectives
    from crl.learn.trainer import Trainer

    role = RoleConfig(
        optimizer=OptimizerConfig(learning_rate=1e-3), deepspeed=DeepSpeedConfig(zero_stage=2, micro_batch=2)
    )
    trainer = Trainer(role, model_path=model, checkpoint=None, threads=1)
    try:
        return trainer.update(samples, objectives(objective), **more)
    finally:
        trainer.dispose()


def test_actor_loss_follows_the_stored_values(model: Path) -> None:
    samples, objective = demonstrations(model, "grpo"), ActorObjective()
    on_policy = update(model, samples, objective)
    assert on_policy["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    inside = update(model, moved(samples, -0.1), objective)
    assert inside["loss"] == pytest.approx(np.exp(0.1) * on_policy["loss"], rel=1e-4), "ratios e^0.1, not clipped"
    assert inside["ratio_mean"] == pytest.approx(np.exp(0.1), rel=1e-5)
    for noise in (0.1, 0.6):
        noisy = moved(samples, noise, np.random.default_rng(8))
        metrics = update(model, noisy, objective)
        assert metrics["loss"] == pytest.approx(eq_5(batch_of(model, noisy), objective.epsilon)[0], rel=1e-5)
    assert metrics["clipped_low"] > 0 and metrics["clipped_high"] > 0


def test_extractor_loss_follows_the_stored_values(model: Path) -> None:
    samples, objective = demonstrations(model, "cispo"), ExtractorObjective()
    on_policy = update(model, samples, objective)
    for shift, factor in ((-0.05, np.exp(0.05)), (-3.0, 1.1), (3.0, 0.9)):
        metrics = update(model, moved(samples, shift), objective)
        assert metrics["loss"] == pytest.approx(factor * on_policy["loss"], rel=1e-5), "both bounds of the clip act"
    noisy = moved(samples, 0.3, np.random.default_rng(9))
    expected = eq_3(batch_of(model, noisy), objective.epsilon, objective.epsilon_high)[0]
    assert update(model, noisy, objective)["loss"] == pytest.approx(expected, rel=1e-5)
