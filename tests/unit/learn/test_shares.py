"""An objective has the share of the gradient that a setting says: what is measured, and how its factor moves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.config import ActorObjective, DeepSpeedConfig, LoraConfig, OptimizerConfig, RoleConfig
from crl.learn.terms import gradient_shares, objectives, share_factors
from crl.learn.trainer import Gradients, Trainer
from crl.records import Sample
from crl.rounds.weights import mini_batches
from tests.marks import sampled

MakeSamples = Callable[..., list[Sample]]


def norm_of(gradients: Gradients) -> float:
    return math.sqrt(sum(float(each.double().square().sum()) for each in gradients.values()))


@pytest.mark.parametrize(("stage", "lora"), sampled([(0, False), (2, False), (0, True), (3, False)], 2))
def test_each_norm_is_that_of_a_step_of_its_own_and_small_gradients_are_kept_for_the_step(
    base_model: Path, random_samples: MakeSamples, stage: int, lora: bool
) -> None:
    role = RoleConfig(
        model="miniature",
        lora=LoraConfig(r=4) if lora else None,
        optimizer=OptimizerConfig(learning_rate=1e-2, max_grad_norm=0),
        deepspeed=DeepSpeedConfig(zero_stage=stage, micro_batch=2),  # type: ignore[arg-type]
    )
    mixed = {
        "grpo": random_samples(5, seed=1),
        "nll": random_samples(3, "nll", seed=2),
    }
    samples = [*mixed["grpo"], *(_renamed(each) for each in mixed["nll"])]
    terms = objectives(ActorObjective(beta=0.0 if stage == 3 else 0.1, entropy_coef=0.01))

    readings: list[int] = []

    def stepped(chosen: list[Sample], *, measure: bool) -> tuple[dict[str, float], dict[str, float], Gradients]:
        caught: list[Gradients] = []
        trainer = Trainer(role, model_path=base_model, checkpoint=None, threads=1)
        norms: dict[str, float] = {}
        factors = {"nll": 0.3}

        def weigh(found: Mapping[str, float]) -> Mapping[str, float]:
            norms.update(found)
            return factors

        read = trainer._engine.module.forward
        calls: list[Any] = []
        trainer._engine.module.forward = lambda *given, **more: calls.append(given) or read(*given, **more)
        metrics = trainer.update(chosen, terms, factors=weigh if measure else factors, inspect=caught.append)
        assert calls
        readings.append(len(calls))
        trainer.dispose()
        return norms, metrics, caught[0]

    norms, metrics, gradients = stepped(samples, measure=True)
    _, unmeasured, same = stepped(samples, measure=False)
    assert readings[0] == readings[1] * (2 if stage == 3 else 1) > 0, "what is kept is not read again"
    assert metrics == pytest.approx(unmeasured, rel=1e-5)
    assert stage < 3 or metrics == unmeasured, "nothing is kept"
    assert gradients.keys() == same.keys()
    assert norm_of({name: gradients[name] - same[name] for name in same}) < 1e-6 * norm_of(same)
    assert set(norms) == set(mixed)
    for kind in mixed:
        alone = [each for each in samples if each.objective == kind]
        factor = 0.3 if kind == "nll" else 1.0
        assert norms[kind] * factor == pytest.approx(norm_of(stepped(alone, measure=False)[2]), rel=1e-5)


def test_the_gradients_of_mini_batches_are_on_average_the_batchs(base_model: Path, random_samples: MakeSamples) -> None:
    role = RoleConfig(
        model="miniature", optimizer=OptimizerConfig(max_grad_norm=0), deepspeed=DeepSpeedConfig(micro_batch=2)
    )
    terms = objectives(ActorObjective())
    alike = [dataclasses.replace(each, advantage=0.0) for each in random_samples(4, seed=3)]
    samples = [*random_samples(9, seed=1), *(_renamed(each, "-0") for each in alike)]

    def gradients_of(batch: list[Sample]) -> Gradients:
        caught: list[Gradients] = []
        trainer = Trainer(role, model_path=base_model, checkpoint=None, threads=1)
        trainer.update(batch, terms, inspect=caught.append)
        trainer.dispose()
        return caught[0]

    parts = mini_batches(samples, 3, terms, np.random.SeedSequence(5))
    assert sorted(each.sample_id for part in parts for each in part) == sorted(each.sample_id for each in samples)
    assert [sum(each.advantage != 0 for each in part) for part in parts] == [3, 3, 3], (
        "each has its share of what teaches"
    )
    whole, each = gradients_of(samples), [gradients_of(part) for part in parts]
    mean = {name: sum(part[name] for part in each) / 3 for name in whole}
    assert norm_of({name: mean[name] - whole[name] for name in whole}) < 1e-6 * norm_of(whole)
    assert norm_of({name: each[0][name] - whole[name] for name in whole}) > 0.1 * norm_of(whole)


def test_the_first_mini_batch_has_some_of_everything(random_samples: MakeSamples) -> None:
    samples = [*random_samples(9, seed=1), *(_renamed(each) for each in random_samples(2, "nll", seed=2))]
    terms = objectives(ActorObjective())
    for seed in range(20):
        parts = mini_batches(samples, 4, terms, np.random.SeedSequence(seed))
        kinds = [{each.objective for each in part} for part in parts]
        assert kinds[0] == {"grpo", "nll"} and {"grpo"} in kinds
        assert sum(map(len, parts)) == len(samples)


def _renamed(sample: Sample, end: str = "-nll") -> Sample:
    return dataclasses.replace(sample, sample_id=sample.sample_id + end, generation_id=sample.generation_id + end)


def test_a_factor_gives_the_share_and_moves_twofold_at_most() -> None:
    shares = {"reverse_kl": 0.2, "nll": 0.3}
    norms = {"grpo": 0.02, "reverse_kl": 1.5, "nll": 0.4, "other": 0.01}
    first = share_factors(norms, shares, {})
    found = gradient_shares(norms, first)
    assert found == pytest.approx(shares)
    parts = [(first.get(kind, 1.0) * norm) ** 2 for kind, norm in norms.items()]
    assert parts[1] / sum(parts) == pytest.approx(0.2) and parts[2] / sum(parts) == pytest.approx(0.3)
    # Ten times as much of a gradient: the factor goes to a tenth, in steps.
    later, factors, seen = {**norms, "nll": 4.0}, first, []
    for _ in range(5):
        factors = share_factors(later, shares, factors)
        seen.append(factors["nll"] / first["nll"])
    assert seen == pytest.approx([0.5, 0.25, 0.125, 0.1, 0.1])
    assert gradient_shares(later, factors)["nll"] == pytest.approx(0.3)
    assert share_factors({**norms, "nll": 0.004}, shares, first)["nll"] == pytest.approx(2 * first["nll"])
    assert share_factors({**norms, "nll": 1e-9}, shares, {})["nll"] == 1.0, "a first batch may say next to nothing"


def test_without_anything_to_compare_with_a_factor_stays() -> None:
    assert share_factors({"reverse_kl": 2.0}, {"reverse_kl": 0.5}, {"reverse_kl": 0.3}) == {"reverse_kl": 0.3}
    assert share_factors({"grpo": 2.0}, {"reverse_kl": 0.5}, {"reverse_kl": 0.3}) == {"reverse_kl": 0.3}
    assert share_factors({"grpo": 0.0, "reverse_kl": 1.0}, {"reverse_kl": 0.5}, {}) == {"reverse_kl": 1.0}
    assert gradient_shares({"reverse_kl": 2.0}, {"reverse_kl": 0.3}) == {"reverse_kl": 1.0}
    assert gradient_shares({}, {"reverse_kl": 0.3}) == {"reverse_kl": 0.0}
    # One that is not there takes nothing of the others' share.
    norms = {"grpo": 1.0, "reverse_kl": 1.0}
    found = gradient_shares(norms, share_factors(norms, {"reverse_kl": 0.5, "nll": 0.4}, {}))
    assert found == pytest.approx({"reverse_kl": 0.5, "nll": 0.0})
