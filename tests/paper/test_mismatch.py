"""Sampler and trainer: the weights that correct what they differ by, and the divergence in the metrics, by arithmetic.

With a correction the ratio of an objective is 1 in the one step of a batch, so a token's derivative is its share, times
its advantage, times the weight of its own: proximal / sampler, cut off or masked.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.config import (
    ActorObjective,
    DeepSpeedConfig,
    ExtractorObjective,
    ImportanceSamplingCorrection,
    LoraConfig,
    RoleConfig,
    StreamObjective,
)
from crl.config.engines import VllmEngine
from crl.learn.objectives import cispo_objective, grpo_objective
from crl.rounds.alarms import MOST_MISMATCH_KL, mismatch_alarms, mismatch_causes
from crl.rounds.health import update_metrics
from tests.paper.reference import Batch, Floats, random_batch, relative_error
from tests.paper.test_equations_3_and_5 import TOLERANCE, ours
from tests.paper.test_stored_behavior import demonstrations, moved, update

LOW, HIGH = 0.8, 1.3
KINDS = ["truncate", "truncate both", "mask"]


def bounds(kind: str) -> ImportanceSamplingCorrection:
    """The correction of a kind."""
    low = None if kind == "truncate" else LOW
    return ImportanceSamplingCorrection(mode=f"token_{kind.split()[0]}", clip_min=low, clip_max=HIGH)


def weight(ratio: float, kind: str) -> float:
    """Of one token."""
    if kind.startswith("truncate"):
        return HIGH if ratio > HIGH else LOW if ratio < LOW and kind != "truncate" else ratio
    return ratio if LOW <= ratio <= HIGH else 0.0


def corrected(batch: Batch, kind: str, *, shares: list[float]) -> tuple[Floats, Floats]:
    """Of every token its derivative, and the ratio of trainer and sampler; `shares` are the samples'."""
    derivative = np.zeros_like(batch.mask_BT)
    ratios = np.exp(batch.logprobs() - batch.behavior_BT)
    for b, t in np.argwhere(batch.mask_BT > 0):
        derivative[b, t] = -shares[b] * batch.advantages_B[b] * weight(ratios[b, t], kind)
    return derivative, ratios


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_every_token_of_eq_5_has_the_weight_of_its_own(seed: int, kind: Any) -> None:
    batch = random_batch(seed)
    lengths = batch.mask_BT.sum(1)
    config = ActorObjective(epsilon=0.01, importance_sampling_correction=bounds(kind))
    loss, gradient, statistics = ours(batch, grpo_objective, config)
    shares = [float(w / n) if n else 0.0 for w, n in zip(batch.weights_B, lengths, strict=True)]
    derivative, ratios = corrected(batch, kind, shares=shares)
    assert relative_error(gradient, batch.logit_gradient(derivative)) < TOLERANCE, "and no clip acts"
    assert loss == pytest.approx(float(derivative.sum()), rel=TOLERANCE)
    _check(batch, kind, ratios, statistics)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_every_token_of_eq_3_has_the_weight_of_its_own(seed: int, kind: Any) -> None:
    batch = random_batch(seed)
    trained = float(batch.mask_BT.sum())
    correction = bounds(kind)
    config = ExtractorObjective(epsilon=0.01, epsilon_high=0.01, importance_sampling_correction=correction)
    _, gradient, statistics = ours(batch, cispo_objective, config, normalizer=trained)
    derivative, ratios = corrected(batch, kind, shares=[float(each / trained) for each in batch.weights_B])
    assert relative_error(gradient, batch.logit_gradient(derivative)) < TOLERANCE
    _check(batch, kind, ratios, statistics)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_two_bounds_and_a_penalty_have_the_weight_of_every_token_too(seed: int, kind: Any) -> None:
    batch = random_batch(seed)
    correction = bounds(kind)
    config = StreamObjective(epsilon=0.01, epsilon_high=0.01, beta=0.0, importance_sampling_correction=correction)
    loss, gradient, statistics = ours(batch, grpo_objective, config)
    derivative, ratios = corrected(batch, kind, shares=[float(each) for each in batch.weights_B])
    assert relative_error(gradient, batch.logit_gradient(derivative)) < TOLERANCE, "and no clip acts"
    assert loss == pytest.approx(float(derivative.sum()), rel=TOLERANCE)
    _check(batch, kind, ratios, statistics)
    # The penalty is beside it: with the base model's log-probabilities r, its derivative is kl (1 - r).
    penalized, steeper, _ = ours(batch, penalty_alone, config.model_copy(update={"beta": 0.5}))
    uncorrected = config.model_copy(update={"beta": 0.5, "importance_sampling_correction": None})
    _, reference, _ = ours(batch, penalty_alone, uncorrected)
    assert penalized > 0 and relative_error(steeper, reference) < TOLERANCE, (
        "without advantages only the penalty is left"
    )


def penalty_alone(
    logprobs: Any, behavior: Any, mask: Any, advantages: Any, weights: Any, config: StreamObjective
) -> Any:
    """The same with the sampler as the base model, and nothing to gain."""
    return grpo_objective(logprobs, behavior, mask, 0 * advantages, weights, config, reference_BT=behavior)


def _check(batch: Batch, kind: str, ratios: Floats, statistics: Any) -> None:
    """Ratios stay those against the sampler, and what was bounded is counted: the batch has both cases."""
    own = ratios[batch.mask_BT > 0]
    above, below = int((own > HIGH).sum()), int((own < LOW).sum())
    assert above > 0 and below > 0
    assert (statistics.clipped_high, statistics.clipped_low) == (above, 0 if kind == "truncate" else below)
    assert statistics.ratio_sum == pytest.approx(own.sum(), rel=1e-5)


@pytest.mark.slow
def test_the_divergence_is_that_of_fresh_tokens_alone(model: Path) -> None:
    samples = demonstrations(model, "grpo")
    assert update(model, samples, ActorObjective())["mismatch_kl"] == pytest.approx(0.0, abs=1e-7)
    for shift in (-0.3, 0.2):
        expected = np.exp(-shift) - 1 + shift
        assert update(model, moved(samples, shift), ActorObjective())["mismatch_kl"] == pytest.approx(
            expected, rel=1e-4
        )
    shifted = moved(samples, 0.2)
    older = [dataclasses.replace(each, source="0000/collect") for each in moved(samples[:2], 2.0)]
    later = [dataclasses.replace(each, step=1) for each in moved(samples[2:3], 2.0)]
    metrics = update(model, [*older, *later, *shifted[3:]], ActorObjective())
    assert metrics["mismatch_kl"] == pytest.approx(np.exp(-0.2) - 1 + 0.2, rel=1e-4)
    assert "mismatch_kl" not in update(model, older, ActorObjective())


def test_tokens_of_the_round_that_older_weights_sampled_are_not_fresh(model: Path) -> None:
    samples = demonstrations(model, "grpo")
    both = [*moved(samples[:2], 2.0), *moved(samples[2:], 0.2)]
    stale = {each.sample_id for each in samples[:2]}
    assert update(model, both, ActorObjective(), stale=stale)["mismatch_kl"] == pytest.approx(
        np.exp(-0.2) - 1 + 0.2, rel=1e-4
    )
    trained = [sum(each.loss_mask) for each in samples]
    kl = [np.exp(-2.0) - 1 + 2.0] * 2 + [np.exp(-0.2) - 1 + 0.2] * (len(samples) - 2)
    assert update(model, both, ActorObjective())["mismatch_kl"] == pytest.approx(
        float(np.average(kl, weights=trained)), rel=1e-4
    ), "told of none, all of the round are"


def test_a_divergence_above_the_bound_is_an_alarm() -> None:
    metrics = {"ratio_mean": 1.0, "mismatch_kl": MOST_MISMATCH_KL * 1.01}
    assert list(mismatch_alarms(update_metrics("actor", metrics), lambda role: [])) == ["actor_mismatch_kl"]
    assert mismatch_alarms(update_metrics("actor", {**metrics, "mismatch_kl": MOST_MISMATCH_KL}), lambda role: []) == {}
    [told] = mismatch_alarms(
        {"actor_mismatch_kl": 1.0, "actor_ratio_max": 21.0}, lambda role: [role, "rounding"]
    ).values()
    assert "largest ratio 21" in told and told.index("(1) actor") < told.index("(2) rounding")


def _causes(model: dict[str, Any], **settings: Any) -> str:
    return " | ".join(mismatch_causes(RoleConfig(model="m", **settings), model))


def test_what_can_be_known_of_a_divergence_is_named_the_likeliest_first() -> None:
    """Another engine, noise, the model's code, files; precision last, and only where it is rounded at all."""
    exact = _causes({"model_type": "llama", "attention_dropout": 0.0})
    assert exact.startswith("the code of this model (llama)") and "crl verify" in exact
    for absent in ("noise", "engine", "rounding", "experts"):
        assert absent not in exact
    settings = {"dtype": "bfloat16", "engine": VllmEngine(), "lora": LoraConfig()}
    told = _causes({"text_config": {"attn_pdrop": 0.1, "num_experts": 8, "model_type": "phimoe"}}, **settings)
    order = ["the engine vllm", "attn_pdrop 0.1", "(phimoe)", "its 8 experts", "or its adapter", "rounding: it"]
    places = [told.index(each) for each in order]
    assert places == sorted(places) and "samples in bfloat16, the adapter merged before it is rounded" in told
    assert "learns in bfloat16" in _causes({}, deepspeed=DeepSpeedConfig(autocast="bfloat16"))


def test_without_a_correction_a_method_is_the_one_it_was() -> None:
    """Its digest is over all that is dumped: a key that is not set must not be there."""
    for objective in (ActorObjective, ExtractorObjective, StreamObjective):
        assert "importance_sampling_correction" not in objective().model_dump(mode="json")
        kept = objective(importance_sampling_correction=ImportanceSamplingCorrection(mode="token_mask"))
        assert objective.model_validate(kept.model_dump(mode="json")) == kept
