"""Self-distillation (section 6) against plain arithmetic: which episodes, which tokens, the loss of a mixed update."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from crl.checks import check_tables
from crl.config import ActorObjective, DeepSpeedConfig, OptimizerConfig, RoleConfig, SelfDistillationConfig
from crl.errors import RecordDamaged
from crl.recipes.complementary.mechanisms.self_distillation import distilled_episodes, nll_samples
from crl.records import Episode, Generation, Sample, StrippedContext, table_of

VOCABULARY, TEMPERATURE = 32, 0.9


def episode(group: int, member: int, *, guided: bool, success: bool, broken: bool = False) -> Episode:
    return Episode(
        episode_id=f"g{group}m{member}", round=4, family="room", group=group, member=member, environment_seed=group,
        guided=guided, entry_ids=["e"] if guided else [], content_digests=["d"] if guided else [],
        experiences=["an experience"] if guided else [],
        goal="goal", success=success, reward=float(success), turns=1, invalid_actions=0,
        stop_reason="error" if broken else "success" if success else "failure", error="x" if broken else None,
        generation_ids=[f"a-g{group}m{member}"], tokens_read=4, tokens_sampled=2,
        last_observation=None if broken else "over",
    )  # fmt: skip


EPISODES = [
    # Half of the free ones win: a guided win is above their mean, a guided loss is not.
    episode(0, 0, guided=True, success=True),
    episode(0, 1, guided=True, success=False),
    episode(0, 2, guided=False, success=True),
    episode(0, 3, guided=False, success=False),
    # All free ones win: a guided win beats nothing.
    episode(1, 0, guided=True, success=True),
    episode(1, 2, guided=False, success=True),
    # No free one, or only a broken one.
    episode(2, 0, guided=True, success=True),
    episode(3, 0, guided=True, success=True),
    episode(3, 1, guided=False, success=False, broken=True),
    # No free one wins, but the guided one broke.
    episode(4, 0, guided=True, success=False, broken=True),
    episode(4, 1, guided=False, success=False),
]


def test_guided_episodes_that_beat_their_free_twins_or_all_that_won() -> None:
    beats = distilled_episodes(EPISODES, SelfDistillationConfig())
    assert [row.episode_id for row in beats] == ["g0m0"]
    wins = distilled_episodes(EPISODES, SelfDistillationConfig(episodes="wins"))
    assert [row.episode_id for row in wins] == ["g0m0", "g1m0", "g2m0", "g3m0"]


def test_all_that_won_guided_or_not_those_as_they_were_played() -> None:
    config = SelfDistillationConfig(episodes="all_wins", weight=0.5)
    chosen = distilled_episodes(EPISODES, config)
    assert [row.episode_id for row in chosen] == ["g0m0", "g0m2", "g1m0", "g1m2", "g2m0", "g3m0"]
    contexts, generations = rows(chosen, np.random.default_rng(1))
    free = [each for each in chosen if not each.guided]
    for each in free:
        del contexts[each.generation_ids[0]]  # as it is recorded: only guided episodes have one
    samples = nll_samples(chosen, contexts, generations, config, round=4)
    for each, sample in zip(chosen, samples, strict=True):
        learned = contexts[each.generation_ids[0]] if each.guided else generations[each.generation_ids[0]]
        assert (sample.token_ids, sample.loss_mask) == (learned.token_ids, learned.loss_mask)
        assert (sample.objective, sample.weight, set(sample.logprobs)) == ("nll", 0.5, {0.0})


def test_it_happens_in_multiples_of_a_number_of_rounds_from_a_first_one_on() -> None:
    config = SelfDistillationConfig(every=3, first_round=4)
    assert [number for number in range(1, 14) if config.due(number)] == [6, 9, 12]
    assert all(SelfDistillationConfig().due(number) for number in range(1, 5))


def rows(chosen: list[Episode], rng: np.random.Generator) -> tuple[dict[str, StrippedContext], dict[str, Generation]]:
    contexts, generations = {}, {}
    for each in chosen:
        removed, opening, answer = (int(value) for value in rng.integers(2, 6, size=3))
        written = [int(token) for token in rng.integers(0, VOCABULARY, answer)]
        prompt = [int(token) for token in rng.integers(0, VOCABULARY, opening)]
        contexts[each.generation_ids[0]] = StrippedContext(
            episode_id=each.episode_id, generation_id=each.generation_ids[0], token_ids=prompt + written,
            loss_mask=[0] * opening + [1] * answer, removed_tokens=removed,
        )  # fmt: skip
        generations[each.generation_ids[0]] = Generation(
            generation_id=each.generation_ids[0], round=4, stage="collect", role="actor", kind="episode",
            weights_digest="w", temperature=TEMPERATURE, token_ids=[7] * removed + prompt + written,
            loss_mask=[0] * (removed + opening) + [1] * answer,
            logprobs=[0.0] * (removed + opening) + [-1.0] * answer, prompt="p", output="o", stop_reason="success",
        )  # fmt: skip
    return contexts, generations


def test_a_sample_is_the_stripped_context_token_for_token() -> None:
    chosen = distilled_episodes(EPISODES, SelfDistillationConfig(episodes="wins"))
    contexts, generations = rows(chosen, np.random.default_rng(0))
    samples = nll_samples(chosen, contexts, generations, SelfDistillationConfig(weight=0.25), round=4)
    assert [sample.generation_id for sample in samples] == [each.generation_ids[0] for each in chosen]
    for each, sample in zip(chosen, samples, strict=True):
        context = contexts[each.generation_ids[0]]
        assert (sample.token_ids, sample.loss_mask) == (context.token_ids, context.loss_mask)
        assert (sample.objective, sample.role, sample.weight) == ("nll", "actor", 0.25)
        assert sample.temperature == TEMPERATURE and sample.source == "0004/collect"
        assert set(sample.logprobs) == {0.0}, "nothing was sampled in this context"
    del contexts[chosen[1].generation_ids[0]]
    with pytest.raises(RecordDamaged, match="stripped context"):
        nll_samples(chosen, contexts, generations, SelfDistillationConfig(), round=4)


def test_an_episode_whose_every_turn_left_no_choice_weighs_nothing() -> None:
    """`sampling.constrain`: where one action is possible it is written, not drawn, and nothing of it is trained."""
    chosen = distilled_episodes(EPISODES, SelfDistillationConfig(episodes="wins"))
    contexts, generations = rows(chosen, np.random.default_rng(2))
    forced = chosen[1].generation_ids[0]
    contexts[forced] = dataclasses.replace(contexts[forced], loss_mask=[0] * len(contexts[forced].token_ids))
    samples = nll_samples(chosen, contexts, generations, SelfDistillationConfig(), round=4)
    assert [sample.weight > 0 for sample in samples] == [True, False, True, True]
    check_tables({Sample: table_of(Sample, samples)}, where="here")


def grpo_sample(index: int, rng: np.random.Generator) -> Sample:
    prompt, answer = (int(value) for value in rng.integers(2, 6, size=2))
    tokens = [int(token) for token in rng.integers(0, VOCABULARY, prompt + answer)]
    return Sample(
        sample_id=f"grpo-{index}", round=4, role="actor", objective="grpo", source="0004/collect",
        generation_id=f"g{index}", reward=0.0, advantage=float(rng.normal()), weight=float(rng.uniform(0.1, 0.5)),
        temperature=TEMPERATURE, token_ids=tokens, loss_mask=[0] * prompt + [1] * answer,
        logprobs=[0.0] * prompt + [float(value) for value in -3.5 + 0.5 * rng.normal(size=answer)],
    )  # fmt: skip


def logprobs(network: object, sample: Sample) -> list[float]:
    """Log-probability of every trained token under the temperature, one sequence at a time in float64."""
    import torch

    with torch.no_grad():
        logits_TV = network(torch.tensor([sample.token_ids])).logits[0].double().numpy()  # type: ignore[operator]
    found = []
    for place, token in enumerate(sample.token_ids):
        if sample.loss_mask[place]:
            scaled = logits_TV[place - 1] / TEMPERATURE
            found.append(float(scaled[token] - scaled.max() - np.log(np.exp(scaled - scaled.max()).sum())))
    return found


def test_the_loss_is_that_of_the_policy_and_the_weighted_mean_over_the_distilled_tokens(model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from crl.learn.terms import objectives
    from crl.learn.trainer import Gradients, Trainer

    rng = np.random.default_rng(5)
    chosen = distilled_episodes(EPISODES, SelfDistillationConfig(episodes="wins"))
    config = SelfDistillationConfig(weight=0.7)
    policy = [grpo_sample(index, rng) for index in range(5)]
    stripped = nll_samples(chosen, *rows(chosen, rng), config, round=4)
    role = RoleConfig(
        model="miniature",
        optimizer=OptimizerConfig(kind="sgd", learning_rate=0.01, max_grad_norm=0),
        deepspeed=DeepSpeedConfig(micro_batch=3),
    )

    def updated(samples: list[Sample]) -> tuple[dict[str, float], Gradients]:
        caught: list[Gradients] = []
        trainer = Trainer(role, model_path=model, checkpoint=None, threads=1)
        metrics = trainer.update(samples, objectives(ActorObjective(epsilon=0.2)), inspect=caught.append)
        trainer.dispose()
        return metrics, caught[0]

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    policy_loss = 0.0
    ratios = []
    for sample in policy:
        stored = [value for value, trained in zip(sample.logprobs, sample.loss_mask, strict=True) if trained]
        rho = np.exp(np.array(logprobs(network, sample)) - np.array(stored))
        surrogate = np.minimum(rho * sample.advantage, np.clip(rho, 0.8, 1.2) * sample.advantage)
        policy_loss -= sample.weight * surrogate.mean()
        ratios += list(rho)
    taught = [value for sample in stripped for value in logprobs(network, sample)]
    nll = -float(np.mean(taught))

    mixed, mixed_gradient = updated(policy + stripped)
    assert mixed["loss"] == pytest.approx(policy_loss + config.weight * nll, rel=1e-4)
    assert mixed["nll_loss"] == pytest.approx(config.weight * nll, rel=1e-4)
    assert mixed["nll_tokens"] == len(taught)
    # What says how far the policy has moved does not count tokens that were never sampled in these contexts.
    assert mixed["tokens"] == len(ratios)
    assert mixed["ratio_mean"] == pytest.approx(np.mean(ratios), rel=1e-4)

    alone, alone_gradient = updated(policy)
    taught_alone, taught_gradient = updated(stripped)
    assert "nll_loss" not in alone and "nll_loss" not in taught_alone
    assert taught_alone["tokens"] == len(taught), "an update of next-token samples alone is told as before"
    for name, gradient in mixed_gradient.items():
        assert torch.allclose(gradient, alone_gradient[name] + taught_gradient[name], atol=1e-6), name


def test_a_round_without_advantage_still_distils(model: Path) -> None:
    from crl.learn.trainer import Trainer

    rng = np.random.default_rng(6)
    chosen = distilled_episodes(EPISODES, SelfDistillationConfig())
    policy = [dataclasses.replace(grpo_sample(index, rng), advantage=0.0) for index in range(3)]
    stripped = nll_samples(chosen, *rows(chosen, rng), SelfDistillationConfig(), round=4)
    trainer = Trainer(RoleConfig(model="miniature"), model_path=model, checkpoint=None, threads=1)
    from crl.learn.terms import objectives

    metrics = trainer.update(policy + stripped, objectives(ActorObjective()))
    trainer.dispose()
    assert metrics["stepped"] == 1 and metrics["samples_without_gradient"] == 3
