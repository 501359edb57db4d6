"""The loss types of a policy, from rewards to the gradient, against independent float64 arithmetic.

`by_hand` has nothing of `crl`: loops over groups, streams, episodes and tokens, the definitions as their papers write
them. What the update computes from the same samples is `test_the_update_takes_the_gradient_of_the_definition`.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crl.config import ActorObjective, ImportanceSamplingCorrection, OptimizerConfig, RoleConfig
from crl.credit.samples import grpo_samples
from crl.records import Episode, Generation, Sample
from tests.paper.reference import Floats
from tests.paper.test_stored_behavior import TEMPERATURE, demonstrations, moved

LONGEST = 30


@dataclasses.dataclass(frozen=True)
class Play:
    """An episode: its side, reward, and how many tokens each of its sequences has."""

    guided: bool
    reward: float
    lengths: tuple[int, ...]


Groups = list[list[Play]]
PLAYS = st.builds(
    Play, st.booleans(), st.sampled_from([0.0, 1.0, 1.0, 0.5, -2.0]),
    st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple),
)  # fmt: skip
GROUPS = st.lists(st.lists(PLAYS, min_size=1, max_size=5), min_size=1, max_size=3)
SETTINGS = st.fixed_dictionaries(
    {
        "loss_type": st.sampled_from(["grpo", "dapo", "dr_grpo", "cispo", "token_sum"]),
        "importance_sampling_level": st.sampled_from(["token", "sequence", "sequence_product"]),
        "epsilon": st.sampled_from([0.05, 0.2, 1.0]),
        "epsilon_high": st.sampled_from([None, 0.05, 0.28]),
        "scale_rewards": st.sampled_from(["group", "none"]),
        "advantage": st.sampled_from(["subgroup", "pooled"]),
        "beta": st.sampled_from([0.0, 0.1]),
        "soft_punish_cache": st.sampled_from([None, 4, LONGEST]),
    }
)
ALL_EQUAL = [[Play(True, 1.0, (3,)), Play(True, 1.0, (2, 2)), Play(False, 1.0, (4,))]]
NOTHING_WRITTEN = [[Play(True, 1.0, (0,)), Play(True, 0.0, (0, 0))], [Play(False, 1.0, (2,)), Play(False, 0.0, (1,))]]
PLAIN = {
    "importance_sampling_level": "token", "epsilon": 0.2, "epsilon_high": 0.28, "scale_rewards": "group",
    "advantage": "subgroup", "beta": 0.1, "soft_punish_cache": None,
}  # fmt: skip
LONG = [[Play(False, 1.0, (4000,)), Play(False, 0.0, (1, 900))]]


def config_of(chosen: dict[str, Any]) -> ActorObjective:
    longest = LONGEST if chosen["loss_type"] == "dr_grpo" or chosen["soft_punish_cache"] else None
    return ActorObjective(**chosen, max_completion_length=longest)


def drawn(groups: Groups, seed: int) -> dict[tuple[int, int], list[tuple[Floats, Floats, Floats]]]:
    """By (group, member), of each sequence: log-probabilities now, when it was sampled, and of the base model."""
    rng = np.random.default_rng(seed)
    found = {}
    for g, group in enumerate(groups):
        for m, play in enumerate(group):
            sequences = []
            for n in play.lengths:
                now = -rng.exponential(1.0, n)
                sequences.append((now, now + 0.3 * rng.normal(size=n), now + 0.3 * rng.normal(size=n)))
            found[g, m] = sequences
    return found


def by_hand(groups: Groups, chosen: dict[str, Any], tokens: Any) -> tuple[float, dict[tuple[int, int, int], Floats]]:
    """Loss, and its derivative in each log-probability, by (group, member, sequence)."""
    high = chosen["epsilon"] if chosen["epsilon_high"] is None else chosen["epsilon_high"]
    weights: dict[tuple[int, int], float] = {}
    advantages: dict[tuple[int, int], float] = {}
    for g, group in enumerate(groups):
        rewards = []
        for play in group:
            reward, cache = play.reward, chosen["soft_punish_cache"]
            if cache is not None:
                length = sum(play.lengths)
                if length > LONGEST:
                    reward -= 1
                elif length > LONGEST - cache:
                    reward += ((LONGEST - cache) - length) / cache
            rewards.append(reward)
        subgroups = [[m for m, play in enumerate(group) if play.guided is side] for side in (True, False)]
        if chosen["advantage"] == "pooled":
            subgroups = [list(range(len(group)))]
        for members in filter(None, subgroups):
            mean = sum(rewards[m] for m in members) / len(members)
            deviation = math.sqrt(sum((rewards[m] - mean) ** 2 for m in members) / len(members))
            for m in members:
                divided = deviation if chosen["scale_rewards"] == "group" else 1.0
                advantages[g, m] = 0.0 if deviation < 1e-6 else (rewards[m] - mean) / divided
                share = 1.0 if chosen["advantage"] == "pooled" else 0.5
                weights[g, m] = share / len(members) / len(groups)
    written = {key: sum(groups[key[0]][key[1]].lengths) for key in weights}
    of_all = sum(weights[key] * written[key] for key in weights)
    loss, derivative = 0.0, {}
    for key, w in weights.items():
        kind = chosen["loss_type"]
        if kind == "grpo":
            factor = w / max(written[key], 1)
        elif kind == "dr_grpo":
            factor = w / LONGEST
        elif kind == "token_sum":
            factor = w
        else:
            factor = w * sum(weights.values()) / of_all if of_all else 0.0
        a = advantages[key]
        for s, (now, stored, base) in enumerate(tokens[key]):
            own = np.zeros(len(now))
            log_ratios = now - stored
            for t in range(len(now)):
                level = chosen["importance_sampling_level"]
                if level == "token":
                    rho, moves = math.exp(log_ratios[t]), {t: 1.0}
                elif level == "sequence":
                    rho, moves = math.exp(log_ratios.mean()), dict.fromkeys(range(len(now)), 1 / len(now))
                else:
                    rho = math.exp(max(-20.0, min(20.0, log_ratios.sum())))
                    moves = dict.fromkeys(range(len(now)), float(abs(log_ratios.sum()) < 20))
                bounded = min(max(rho, 1 - chosen["epsilon"]), 1 + high)
                if kind == "cispo":
                    loss -= factor * bounded * a * now[t]
                    own[t] -= factor * bounded * a
                else:
                    loss -= factor * min(rho * a, bounded * a)
                    if rho * a <= bounded * a:
                        for u, much in moves.items():
                            own[u] -= factor * rho * a * much
                if chosen["beta"]:
                    r = math.exp(base[t] - now[t])
                    loss += factor * chosen["beta"] * (r - 1 - math.log(r))
                    own[t] += factor * chosen["beta"] * (1 - r)
            derivative[(*key, s)] = own
    return loss, derivative


def rows(groups: Groups, tokens: Any) -> tuple[list[Episode], dict[str, Generation]]:
    """The record of these episodes: each sequence has two tokens of a prompt before what it wrote."""
    episodes, generations = [], {}
    for g, group in enumerate(groups):
        for m, play in enumerate(group):
            ids = [f"{g}-{m}-{s}" for s in range(len(play.lengths))]
            episodes.append(
                Episode(
                    episode_id=f"{g}-{m}", round=1, family="room", group=g, member=m, environment_seed=g,
                    guided=play.guided, goal="goal", success=play.reward > 0, reward=play.reward, turns=1,
                    invalid_actions=0, stop_reason="failure", error=None, generation_ids=ids, tokens_read=1,
                    tokens_sampled=sum(play.lengths), last_observation="over",
                )
            )  # fmt: skip
            for name, n, (_, stored, _) in zip(ids, play.lengths, tokens[g, m], strict=True):
                generations[name] = Generation(
                    generation_id=name, round=1, stage="collect", role="actor", kind="episode", weights_digest="w",
                    temperature=1.0, token_ids=[1, 2, *range(n)], loss_mask=[0, 0, *[1] * n],
                    logprobs=[0.0, 0.0, *stored.tolist()], prompt="", output="", stop_reason="end_of_turn",
                )  # fmt: skip
    return episodes, generations


@settings(max_examples=120, deadline=None)
@example(groups=ALL_EQUAL, chosen={**PLAIN, "loss_type": "dapo", "importance_sampling_level": "sequence"}, seed=1)
@example(groups=NOTHING_WRITTEN, chosen={**PLAIN, "loss_type": "cispo", "soft_punish_cache": 4}, seed=2)
@example(groups=LONG, chosen={**PLAIN, "loss_type": "dr_grpo", "scale_rewards": "none"}, seed=3)
@given(groups=GROUPS, chosen=SETTINGS, seed=st.integers(0, 2**16))
def test_every_loss_type_is_its_definition(groups: Groups, chosen: dict[str, Any], seed: int) -> None:
    import torch

    from crl.learn.objectives import grpo_objective

    tokens = drawn(groups, seed)
    expected, derivative = by_hand(groups, chosen, tokens)
    config = config_of(chosen)
    episodes, generations = rows(groups, tokens)
    samples = grpo_samples(episodes, generations, config, round=1)
    width = max(len(sample.token_ids) for sample in samples) - 1

    def padded(values: Any) -> torch.Tensor:
        return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in values], dtype=torch.float64)

    places = [tuple(map(int, sample.generation_id.split("-"))) for sample in samples]
    now_BT = padded([[0.0, *tokens[g, m][s][0]] for g, m, s in places]).requires_grad_()
    loss, counted = grpo_objective(
        now_BT, padded([sample.logprobs[1:] for sample in samples]),
        padded([sample.loss_mask[1:] for sample in samples]),
        torch.tensor([[sample.advantage] for sample in samples], dtype=torch.float64).expand(-1, width),
        torch.tensor([sample.weight for sample in samples], dtype=torch.float64), config,
        reference_BT=padded([[0.0, *tokens[g, m][s][2]] for g, m, s in places]) if config.beta else None,
    )  # fmt: skip
    loss.backward()
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert now_BT.grad is not None
    whole = np.zeros(now_BT.shape)
    for row, place in enumerate(places):
        own = derivative[place]
        whole[row, 1 : 1 + len(own)] = own
    np.testing.assert_allclose(now_BT.grad.numpy(), whole, rtol=1e-9, atol=1e-12)
    assert counted.tokens == sum(sum(sample.loss_mask) for sample in samples)


def plain_loss(network: Any, base: Any, first: Any, samples: list[Sample], config: ActorObjective) -> tuple[Any, float]:
    """The objective of an ordinary forward pass per sample, in float64, and the mean entropy; `first` are the weights
    before the first step."""
    import torch

    def read(model: Any, sample: Sample) -> tuple[Any, Any]:
        logits = model(torch.tensor([sample.token_ids[:-1]])).logits[0] / sample.temperature
        scores = torch.log_softmax(logits, -1)
        kept = torch.tensor(sample.loss_mask[1:], dtype=torch.bool)
        chosen = scores.gather(1, torch.tensor(sample.token_ids[1:])[:, None])[:, 0]
        return chosen[kept], -(scores.exp() * scores).sum(-1)[kept]

    loss, entropies = torch.zeros((), dtype=torch.float64), []
    for sample in samples:
        now, entropy = read(network, sample)
        with torch.no_grad():
            reference, _ = read(base, sample)
            proximal, _ = read(first, sample)
        entropies.append(entropy)
        stored = torch.tensor(
            [value for value, own in zip(sample.logprobs, sample.loss_mask, strict=True) if own], dtype=torch.float64
        )
        correction = config.importance_sampling_correction
        old, weight = stored, torch.ones_like(stored)
        if correction is not None:
            old, weight = proximal, (proximal - stored).exp().clamp(correction.clip_min, correction.clip_max)
        gaps = now - old
        if config.importance_sampling_level == "sequence":
            gaps = gaps.mean().expand_as(gaps)
        rho = gaps.exp()
        high = config.epsilon if config.epsilon_high is None else config.epsilon_high
        bounded = rho.clamp(1 - config.epsilon, 1 + high)
        if config.loss_type == "cispo":
            terms = bounded.detach() * sample.advantage * now
        else:
            terms = torch.minimum(rho * sample.advantage, bounded * sample.advantage)
        terms = terms * weight
        if config.beta:
            terms = terms - config.beta * ((reference - now).exp() - 1 - (reference - now))
        loss = loss - sample.weight * (terms.mean() if config.loss_type == "grpo" else terms.sum())
    entropy = torch.cat(entropies).mean()
    return loss - config.entropy_coef * entropy, float(entropy.detach())


TRUNCATE = ImportanceSamplingCorrection(mode="token_truncate", clip_min=0.5, clip_max=1.1)


@pytest.mark.parametrize(
    "chosen",
    [
        {"loss_type": "dapo", "epsilon_high": 0.28, "entropy_coef": 0.3},
        {"importance_sampling_level": "sequence", "epsilon": 0.02, "beta": 0.2},
        {"loss_type": "cispo", "epsilon": 1.0, "epsilon_high": 0.05, "importance_sampling_correction": TRUNCATE},
        {"epsilon": 0.01, "importance_sampling_correction": TRUNCATE, "entropy_coef": 0.1, "beta": 0.1},
    ],
    ids=["dapo", "gspo", "cispo", "grpo, several steps with a correction"],
)  # fmt: skip
def test_the_update_takes_the_gradient_of_the_definition(model: Path, tmp_path: Path, chosen: dict[str, Any]) -> None:
    """Of the first step and of the second, which is taken on the same samples: proximal log-probabilities stay those
    before the first, and so do the stored ones."""
    import torch
    from transformers import AutoModelForCausalLM

    from crl.learn.terms import objectives
    from crl.learn.trainer import Trainer

    config, terms = ActorObjective(**chosen), objectives(ActorObjective(**chosen))
    samples = moved(demonstrations(model, "grpo"), 0.1, np.random.default_rng(4))
    role = RoleConfig(optimizer=OptimizerConfig(kind="sgd", learning_rate=0.05, max_grad_norm=0))
    trainer = Trainer(role, model_path=model, checkpoint=None, threads=1)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()
    proximal = trainer.proximal(samples, terms)
    assert bool(proximal) is (config.importance_sampling_correction is not None)
    try:
        for step in range(2):
            caught: dict[str, Any] = {}
            metrics = trainer.update(samples, terms, proximal=proximal, inspect=caught.update)
            network.zero_grad()
            loss, entropy = plain_loss(network, base, base, samples, config)
            loss.backward()
            assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-4, abs=1e-6), f"step {step}"
            assert metrics["entropy"] == pytest.approx(entropy, rel=1e-4)
            expected = {name: value.grad for name, value in network.named_parameters() if name in caught}
            ours = torch.cat([caught[name].double().flatten() for name in expected])
            plain = torch.cat([value.flatten() for value in expected.values()])
            assert float(torch.nn.functional.cosine_similarity(ours, plain, dim=0)) > 1 - 1e-6
            assert float(torch.linalg.vector_norm(ours - plain) / torch.linalg.vector_norm(plain)) < 1e-3
            trainer.save(tmp_path / str(step))
            network = AutoModelForCausalLM.from_pretrained(tmp_path / str(step), dtype=torch.float64).eval()
        if proximal:
            assert metrics["ratio_mean"] != pytest.approx(1.0, abs=1e-3), "the second step has moved"
    finally:
        trainer.dispose()


def test_settings_that_would_do_nothing_are_refused() -> None:
    for chosen, word in (
        ({"loss_type": "dr_grpo"}, "needs max_completion_length"),
        ({"soft_punish_cache": 8}, "needs max_completion_length"),
        ({"max_completion_length": 8}, "no effect"),
        ({"max_completion_length": 8, "soft_punish_cache": 9}, "above"),
    ):
        with pytest.raises(ValueError, match=word):
            ActorObjective(**chosen)  # type: ignore[arg-type]
    assert TEMPERATURE != 1.0, "the samples of the update have a temperature"
