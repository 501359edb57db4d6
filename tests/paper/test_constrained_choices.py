"""Eq. 5 where tokens were chosen among a few ids: probabilities are renormalized over them, in loss and gradient alike.

The reference sets the logits of all other ids to minus infinity and goes on as always. Samples with and without choices
stand in one micro-batch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from crl.config import ActorObjective, DeepSpeedConfig, OptimizerConfig, RoleConfig
from crl.records import Sample
from tests.paper.reference import Batch, eq_5, random_batch, relative_error
from tests.paper.test_stored_behavior import TEMPERATURE, VOCABULARY, batch_of, moved

SEED = 3


def restricted(samples: list[Sample], model: Path) -> Batch:
    """The batch with every id that a token was not chosen among at minus infinity."""
    batch = batch_of(model, samples)
    for row, sample in enumerate(samples):
        choices = iter(sample.choices)
        for place, mask in enumerate(sample.loss_mask[1:]):
            if mask and sample.choices:
                allowed = next(choices)
                batch.logits_BTV[row, place, [index for index in range(VOCABULARY) if index not in allowed]] = -np.inf
    return batch


def samples_with_choices(model: Path) -> list[Sample]:
    """Every other sample has choices, of 2 to 9 ids; stored log-probabilities are those of the restricted model."""
    rng = np.random.default_rng(SEED)
    samples = []
    for index in range(6):
        mask = [0, 0, *(int(value) for value in rng.integers(0, 2, size=int(rng.integers(6, 12)))), 1]
        tokens = [int(token) for token in rng.integers(0, VOCABULARY, size=len(mask))]
        among = [
            sorted({token, *(int(other) for other in rng.choice(VOCABULARY, size=int(rng.integers(2, 9))))})
            for token, trained in zip(tokens, mask, strict=True)
            if trained
        ]
        samples.append(
            Sample(
                sample_id=f"s{index}", round=1, role="actor", objective="grpo", source="0001/collect",
                generation_id=f"g{index}", reward=0.0, advantage=float((-1) ** (index // 2) * rng.uniform(0.2, 1.5)),
                weight=float(rng.uniform(0.1, 0.4)), temperature=TEMPERATURE, token_ids=tokens, loss_mask=mask,
                logprobs=[0.0] * len(mask), choices=among if index % 2 else [],
            )
        )  # fmt: skip
    exact = restricted(samples, model).logprobs()
    return [
        dataclasses.replace(sample, logprobs=[0.0, *exact[row, : len(sample.token_ids) - 1].tolist()])
        for row, sample in enumerate(samples)
    ]


def test_the_update_renormalizes_as_sampling_did(model: Path) -> None:
    from crl.learn.terms import objectives
    from crl.learn.trainer import Trainer

    role = RoleConfig(optimizer=OptimizerConfig(learning_rate=1e-3), deepspeed=DeepSpeedConfig(micro_batch=4))
    samples, objective = samples_with_choices(model), ActorObjective()
    assert any(sample.choices for sample in samples) and any(not sample.choices for sample in samples)
    for shown in (samples, moved(samples, 0.4, np.random.default_rng(8))):
        trainer = Trainer(role, model_path=model, checkpoint=None, threads=1)
        try:
            metrics = trainer.update(shown, objectives(objective))
        finally:
            trainer.dispose()
        assert metrics["loss"] == pytest.approx(eq_5(restricted(shown, model), objective.epsilon)[0], rel=1e-5)
        if shown is samples:
            assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
            assert metrics["logprob_mismatch"] == pytest.approx(0.0, abs=1e-5)


def test_the_gradient_is_that_of_the_restricted_distribution() -> None:
    import torch

    from crl.learn.scoring import log_normalizer

    batch = random_batch(SEED)
    places = np.argwhere(batch.mask_BT > 0)
    rng = np.random.default_rng(SEED)
    vocabulary = batch.logits_BTV.shape[2]
    choices = []
    for b, t in places:
        kept = sorted({int(batch.targets_BT[b, t]), *map(int, rng.choice(vocabulary, size=3))})
        choices.append([] if rng.random() < 0.3 else kept)
        if choices[-1]:
            batch.logits_BTV[b, t, [index for index in range(vocabulary) if index not in kept]] -= 50.0
    width = max(map(len, choices))
    padded_NC = torch.tensor([[*row, *([-1] * (width - len(row)))] for row in choices])
    # The implementation sees logits in which the other ids are likely: restricting must take them out.
    logits_NV = torch.tensor(np.array([batch.logits_BTV[b, t] for b, t in places]))
    seen_NV = torch.where(logits_NV < -30, logits_NV + 60.0, logits_NV).requires_grad_()
    targets_N = torch.tensor([int(batch.targets_BT[b, t]) for b, t in places])
    scaled_NV = seen_NV / batch.temperature
    found_N = scaled_NV.gather(1, targets_N[:, None])[:, 0] - log_normalizer(scaled_NV, padded_NC)
    slopes = np.random.default_rng(1).normal(size=len(places))
    (found_N * torch.tensor(slopes)).sum().backward()
    weights_BT = np.zeros(batch.mask_BT.shape)
    weights_BT[batch.mask_BT > 0] = slopes
    expected = batch.logit_gradient(weights_BT)[batch.mask_BT > 0]
    assert seen_NV.grad is not None
    assert relative_error(found_N.detach().numpy(), batch.logprobs()[batch.mask_BT > 0]) < 1e-9
    assert relative_error(seen_NV.grad.numpy(), expected) < 1e-9
    outside = np.array([[row != [] and index not in row for index in range(vocabulary)] for row in choices])
    assert outside.any() and (seen_NV.grad.numpy()[outside] == 0).all(), "ids outside the choices get no gradient"
