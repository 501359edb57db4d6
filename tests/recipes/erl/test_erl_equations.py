"""Experiential RL (arXiv 2602.13949) against plain arithmetic: clip, penalty, advantages of streams, the whole loss."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.config import DeepSpeedConfig, LoraConfig, OptimizerConfig, RoleConfig, StreamObjective
from crl.config.load import load_experiment
from crl.credit.advantages import stream_advantages
from crl.credit.samples import Rollout
from crl.errors import BadInput
from crl.learn.terms import objectives as all_objectives
from crl.recipes.erl.credit import Internalized, samples_of
from crl.records import Generation
from tests.paper.reference import Floats, random_batch, relative_error

ROOT = Path(__file__).parents[3]
VOCABULARY, TEMPERATURE = 32, 0.7


def by_hand(batch: Any, reference_BT: Floats, low: float, high: float, kl: float, mean: bool) -> tuple[float, Floats]:
    """Loss, and its derivatives in the log-probabilities, by cases and one token at a time."""
    logprobs, loss = batch.logprobs(), 0.0
    derivative = np.zeros_like(logprobs)
    for b in range(len(logprobs)):
        places = [t for t in range(logprobs.shape[1]) if batch.mask_BT[b, t] > 0]
        share = batch.weights_B[b] / (len(places) if mean and places else 1)
        a = batch.advantages_B[b]
        for t in places:
            rho = math.exp(logprobs[b, t] - batch.behavior_BT[b, t])
            bounded = min(max(rho, 1 - low), 1 + high)
            r = math.exp(reference_BT[b, t] - logprobs[b, t])
            loss -= share * (min(rho * a, bounded * a) - kl * (r - 1 - math.log(r)))
            derivative[b, t] -= share * ((rho * a if rho * a <= bounded * a else 0.0) - kl * (1 - r))
    return loss, derivative


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kl", [0.0, 0.001, 0.5])
@pytest.mark.parametrize("loss_type", ["token_sum", "grpo"])
def test_the_objective_clips_by_two_bounds_and_penalizes_leaving_the_base_model(
    seed: int, kl: float, loss_type: Any
) -> None:
    import torch

    from crl.learn.objectives import grpo_objective

    batch = random_batch(seed)
    rng = np.random.default_rng(seed + 100)
    reference_BT = (batch.logprobs() + 0.5 * rng.normal(size=batch.mask_BT.shape)) * batch.mask_BT
    config = StreamObjective(epsilon=0.2, epsilon_high=0.28, beta=kl, loss_type=loss_type)
    expected, derivative = by_hand(batch, reference_BT, 0.2, 0.28, kl, loss_type == "grpo")
    ratios = np.exp(batch.logprobs() - batch.behavior_BT)[batch.mask_BT > 0]
    assert ((ratios > 1.2) & (ratios < 1.28)).any() and (ratios > 1.28).any() and (ratios < 0.8).any()

    logits = torch.tensor(batch.logits_BTV, requires_grad=True)
    scaled = torch.log_softmax(logits / batch.temperature, -1)
    logprobs_BT = scaled.gather(-1, torch.tensor(batch.targets_BT)[..., None])[..., 0] * torch.tensor(batch.mask_BT)
    tensors = (batch.behavior_BT, batch.mask_BT, batch.advantages_BT, batch.weights_B)
    loss, counted = grpo_objective(
        logprobs_BT, *map(torch.tensor, tensors), config, reference_BT=torch.tensor(reference_BT)
    )
    loss.backward()
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    assert logits.grad is not None
    assert relative_error(logits.grad.numpy(), batch.logit_gradient(derivative)) < 1e-9
    r = np.exp(reference_BT - batch.logprobs())[batch.mask_BT > 0]
    assert counted.reference_sum == pytest.approx((r - 1 - np.log(r)).sum())


def test_the_low_variance_estimator_is_unbiased_never_negative_and_zero_for_equal_models() -> None:
    import torch

    from crl.learn.objectives import divergence

    rng = np.random.default_rng(1)
    policy, reference = rng.dirichlet(np.ones(50)), rng.dirichlet(np.ones(50))
    of_token = divergence(torch.tensor(np.log(policy)), torch.tensor(np.log(reference)), torch.ones(50)).numpy()
    exact = float((policy * np.log(policy / reference)).sum())
    assert (of_token >= 0).all()
    assert float((policy * of_token).sum()) == pytest.approx(exact, rel=1e-9), "its mean over samples of the policy"
    same = torch.tensor(np.log(policy))
    assert float(divergence(same, same, torch.ones(50)).abs().max()) == 0.0


def test_a_penalty_needs_something_to_compare_with() -> None:
    import torch

    from crl.learn.objectives import grpo_objective

    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="penalty"):
        grpo_objective(-one, -one, one, one, one[0], StreamObjective(beta=0.1))


def test_every_stream_of_every_task_is_normalized_on_its_own() -> None:
    rng = np.random.default_rng(2)
    groups = [(int(task), str(stream)) for task, stream in zip(rng.integers(0, 5, 60), rng.choice(["first", "second", "reflection"], 60), strict=True)]  # noqa: E501  # fmt: skip
    groups += [(9, "second"), (10, "first"), (10, "first")]
    rewards = [float(value) for value in rng.choice([0.0, 0.5, 1.0], len(groups))]
    rewards[-3:] = [1.0, 1.0, 1.0]  # the only one of its group; two whose rewards are equal
    found = stream_advantages(rewards, groups, StreamObjective())
    for place, (group, reward) in enumerate(zip(groups, rewards, strict=True)):
        mates = [rewards[other] for other in range(len(groups)) if groups[other] == group]
        mean = math.fsum(mates) / len(mates)
        deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in mates) / len(mates))
        expected = reward if len(mates) == 1 else 0.0 if deviation == 0 else (reward - mean) / deviation
        assert found[place] == pytest.approx(expected, abs=1e-9)
    assert found[-3] == 1.0 and list(found[-2:]) == [0.0, 0.0]
    assert stream_advantages([1.0], ["alone"], StreamObjective(singleton="zero"))[0] == 0.0


# -- the whole loss of a round, on a model ----------------------------------------------------------------------------


def generation(name: str, rng: np.random.Generator, role: str = "actor") -> Generation:
    prompt, answer = (int(value) for value in rng.integers(2, 6, size=2))
    return Generation(
        generation_id=name, round=3, stage="collect", role=role, kind="episode", weights_digest="w",
        temperature=TEMPERATURE, token_ids=[int(token) for token in rng.integers(0, VOCABULARY, prompt + answer)],
        loss_mask=[0] * prompt + [1] * answer,
        logprobs=[0.0] * prompt + [float(value) for value in -3.5 + 0.5 * rng.normal(size=answer)],
        prompt="p", output="o", stop_reason="success",
    )  # fmt: skip


def logprobs(network: Any, tokens: list[int], mask: list[int]) -> Floats:
    """Log-probability of every trained token under the temperature, one sequence at a time in float64."""
    import torch

    with torch.no_grad():
        logits_TV = network(torch.tensor([tokens])).logits[0].double().numpy() / TEMPERATURE
    found = []
    for place, token in enumerate(tokens):
        if mask[place]:
            row = logits_TV[place - 1]
            found.append(float(row[token] - row.max() - np.log(np.exp(row - row.max()).sum())))
    return np.array(found)


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)], ids=["full weights", "adapters"])
@pytest.mark.parametrize("loss_type", ["token_sum", "grpo"])
def test_the_loss_is_the_mean_over_all_sequences_and_compares_with_the_base_model(
    model: Path, tmp_path: Path, lora: LoraConfig | None, loss_type: Any
) -> None:
    """The second update: by then the weights are no longer those of the base model."""
    import torch
    from transformers import AutoModelForCausalLM

    from crl.learn.trainer import Trainer

    rng = np.random.default_rng(7)
    kl, factor = 0.3, 0.5
    method = load_experiment(
        ROOT / "conf/erl_tiny.yaml",
        {"method.recipe.objective.beta": kl, "method.recipe.objective.loss_type": loss_type,
         "method.recipe.internalize.weight": factor},
    ).method  # fmt: skip
    rewards = {"first": [1.0, 0.0, 0.0, 1.0], "reflection": [1.0, 0.25], "second": [1.0, 0.25]}
    rollouts = [
        Rollout(
            "reflector" if stream == "reflection" else "actor", [generation(f"{stream}{index}", rng)], reward, stream
        )
        for stream, earned in rewards.items()
        for index, reward in enumerate(earned)
    ]
    learned = []
    for each in rollouts[-2:]:  # what the second attempts sampled, behind another prompt
        [record] = each.records
        start = record.loss_mask.index(1)
        prompt = [int(token) for token in rng.integers(0, VOCABULARY, 4)]
        tokens, mask = prompt + record.token_ids[start:], [0] * 4 + record.loss_mask[start:]
        behind = dataclasses.replace(record, token_ids=tokens, loss_mask=mask, logprobs=[0.0] * len(tokens))
        learned.append(Internalized([behind], each.reward))
    samples = samples_of(rollouts, learned, method, round=3)
    objectives = all_objectives(method.recipe.objective)  # type: ignore[attr-defined]

    role = RoleConfig(
        model="miniature", lora=lora, optimizer=OptimizerConfig(kind="sgd", learning_rate=0.3, max_grad_norm=0),
        deepspeed=DeepSpeedConfig(micro_batch=3),
    )  # fmt: skip
    trainer = Trainer(role, model_path=model, checkpoint=None, threads=1)
    first = trainer.update(samples, objectives)
    assert first["reference_kl"] == pytest.approx(0.0, abs=1e-6), "before the first step the policy is the base model"
    trainer.save(tmp_path)
    second = trainer.update(samples, objectives)
    trainer.dispose()

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    moved: Any = AutoModelForCausalLM.from_pretrained(model if lora else tmp_path, dtype=torch.float64)
    if lora is not None:
        import peft

        moved = peft.PeftModel.from_pretrained(moved, str(tmp_path)).double()
    moved.eval()
    count, penalties, loss = len(rollouts) + len(learned), [], 0.0
    advantages = stream_advantages(
        [each.reward for each in rollouts], [each.group for each in rollouts], StreamObjective()
    )
    for each, a in zip(rollouts, advantages, strict=True):
        [record] = each.records
        new, old = (
            logprobs(moved, record.token_ids, record.loss_mask),
            logprobs(base, record.token_ids, record.loss_mask),
        )
        stored = np.array([value for value, trained in zip(record.logprobs, record.loss_mask, strict=True) if trained])
        rho = np.exp(new - stored)
        penalty = np.exp(old - new) - 1 - (old - new)
        terms = np.minimum(rho * a, np.clip(rho, 0.8, 1.28) * a) - kl * penalty
        loss -= (terms.sum() if loss_type == "token_sum" else terms.mean()) / count
        penalties += list(penalty)
    for each in learned:
        taught = logprobs(moved, each.records[0].token_ids, each.records[0].loss_mask)
        loss -= factor * each.reward * (taught.sum() if loss_type == "token_sum" else taught.mean()) / count
    assert second["loss"] == pytest.approx(loss, rel=1e-4)
    assert second["reference_kl"] == pytest.approx(np.mean(penalties), rel=1e-3) and second["reference_kl"] > 1e-4


def test_a_round_whose_rewards_are_equal_takes_no_step_for_the_penalty_alone(model: Path) -> None:
    from crl.learn.trainer import Trainer

    rng = np.random.default_rng(8)
    method = load_experiment(ROOT / "conf/erl_tiny.yaml", {}).method
    equal = [Rollout("actor", [generation(f"g{index}", rng)], 1.0, "first") for index in range(3)]
    objectives = all_objectives(StreamObjective(beta=0.1))
    trainer = Trainer(RoleConfig(model="miniature"), model_path=model, checkpoint=None, threads=1)
    assert trainer.update(samples_of(equal, [], method, round=1), objectives)["stepped"] == 0
    unequal = [*equal, Rollout("actor", [generation("g3", rng)], 0.0, "second"), Rollout("actor", [generation("g4", rng)], 1.0, "second")]  # noqa: E501  # fmt: skip
    metrics = trainer.update(samples_of(unequal, [], method, round=1), objectives)
    trainer.dispose()
    assert metrics["stepped"] == 1 and metrics["samples_without_gradient"] == 0, "the penalty holds all of them"


def test_zero_3_is_refused_where_the_objective_compares_with_the_base_model() -> None:
    setting = {"method.roles.actor.deepspeed.zero_stage": 3}
    with pytest.raises(BadInput, match="compares with the base model"):
        load_experiment(ROOT / "conf/erl_tiny.yaml", setting)
    load_experiment(ROOT / "conf/erl_tiny.yaml", {**setting, "method.recipe.objective.beta": 0})
