"""DreamGym (arXiv 2511.03773) against plain arithmetic: the loss on both parts, V, the bounds of pools, batches and of
the gap to the real environment, advantages within groups."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crl.config import DeepSpeedConfig, LoraConfig, OptimizerConfig, RoleConfig
from crl.config.load import load_experiment
from crl.learn.terms import NLL
from crl.policies import load_chat, resolve_model
from crl.recipes.dreamgym.config import StoreConfig
from crl.recipes.dreamgym.corpus import batches, demonstrated
from crl.recipes.dreamgym.credit import credit
from crl.recipes.dreamgym.form import predicted_part, reasoning_part
from crl.recipes.dreamgym.plan import capability, most_varying, variance
from crl.recipes.dreamgym.prompts import answer_of, step_of
from crl.recipes.dreamgym.rows import DreamTask, PoolItem, TaskValue, Transition
from crl.recipes.dreamgym.store import gathered
from crl.recipes.dreamgym.validate import gap_bound
from crl.records import Episode, Generation, Sample, Task

ROOT = Path(__file__).parents[3]
METHOD = load_experiment(ROOT / "conf/dreamgym_tiny.yaml", {}).method


def transition(rng: np.random.Generator, name: str) -> Transition:
    cells = ["@ F\nF G", "F @\nG F", "F F\n@ G"]
    done = bool(rng.random() < 0.5)
    return Transition(
        transition_id=name, round=1, source="real", split="fit", policy="random", family="lake", environment_seed=1,
        episode_id="e", turn=0, goal="Walk.", history=[], observation=str(rng.choice(cells)),
        action=str(rng.choice(["up", "down"])), actions=["up", "down"],
        reasoning=" ".join(rng.choice(["the", "goal", "hole", "next"], 3)), reasoning_source="environment",
        next_observation=str(rng.choice(cells)), next_actions=[] if done else ["up", "down"], feedback="", legal=True,
        outcome="success" if done else "continues", reward=1.0 if done else 0.0, prediction_id=None,
    )  # fmt: skip


def nll(network: Any, tokens: list[int], first: int, last: int) -> float:
    """−log P of the tokens from `first` up to `last`, given those before them, in float64."""
    import torch

    with torch.no_grad():
        logits_TV = network(torch.tensor([tokens[:last]])).logits[0].double().numpy()
    total = 0.0
    for place in range(first, last):
        row = logits_TV[place - 1]
        total -= float(row[tokens[place]] - row.max() - np.log(np.exp(row - row.max()).sum()))
    return total


@pytest.mark.parametrize(
    "lora",
    [pytest.param(None, id="full weights"), pytest.param(LoraConfig(r=2), id="adapters", marks=pytest.mark.slow)],
)
def test_the_loss_is_that_of_the_reasoning_and_of_what_follows_it(lora: LoraConfig | None) -> None:
    """−log P(R | x) − log P(s' | x, R), each part of its own, over the trained tokens of a step."""
    from transformers import AutoModelForCausalLM

    from crl.learn.trainer import Trainer

    source = resolve_model("tiny")
    chat = load_chat(source)
    rng = np.random.default_rng(3)
    rows = [transition(rng, f"t{index}") for index in range(5)]
    network = AutoModelForCausalLM.from_pretrained(source.path, dtype="float32").eval()
    expected, tokens, records = 0.0, 0, []
    for place, row in enumerate(rows):
        record = demonstrated(chat, METHOD, row, rows[:place][:1], answer_of(row, row.reasoning), 2048)
        assert record is not None
        records.append(record)
        prompt = record.loss_mask.index(1)
        parts = (reasoning_part(row.reasoning), predicted_part(step_of(row), row.actions))
        assert chat.decode(record.token_ids[prompt:]) == "".join(parts), "both parts, and nothing else, are learned"
        # Where the first part ends among the tokens: the shortest beginning that has all of it.
        ids = record.token_ids
        between = next(at for at in range(prompt, len(ids)) if len(chat.decode(ids[prompt:at])) >= len(parts[0]))
        expected += nll(network, ids, prompt, between) + nll(network, ids, between, len(ids))
        tokens += len(ids) - prompt
        assert record.loss_mask == [0] * prompt + [1] * (len(ids) - prompt)
    samples = batches(records, epochs=1, batch=len(records), round=1, seed=0)
    role = RoleConfig(
        model="tiny", lora=lora, optimizer=OptimizerConfig(learning_rate=1e-3),
        deepspeed=DeepSpeedConfig(micro_batch=2),
    )  # fmt: skip
    trainer = Trainer(role, model_path=source.path, checkpoint=None, threads=1)
    try:
        metrics = trainer.update(samples, {"nll": NLL})
    finally:
        trainer.dispose()
    assert metrics["tokens"] == tokens
    assert metrics["loss"] == pytest.approx(expected / tokens, rel=1e-5)


def test_v_is_the_mean_square_about_the_mean() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        rewards = [float(value) for value in rng.choice([0.0, 0.25, 1.0], int(rng.integers(1, 9)))]
        mean = sum(rewards) / len(rewards)
        expected = sum(each * each for each in rewards) / len(rewards) - mean * mean
        assert variance(rewards) == pytest.approx(expected, abs=1e-12)
    for won in range(9):
        p = won / 8
        assert variance([1.0] * won + [0.0] * (8 - won)) == pytest.approx(p * (1 - p))
    assert variance([]) == 0.0


def value(group: int, variance: float, difficulty: float, success: float, rollouts: int = 4, **more: Any) -> TaskValue:
    return TaskValue(
        round=1, family=more.get("family", "lake"), group=group, environment_seed=group, first_observation="",
        synthetic=more.get("synthetic", True), made="drawn", difficulty=difficulty, rollouts=rollouts, mean=success,
        variance=variance, success=success,
    )  # fmt: skip


def test_the_tasks_that_vary_most_are_varied_and_none_that_does_not() -> None:
    values = [value(0, 0.0, 0.1, 1), value(1, 0.1, 0.1, 0.5), value(2, 0.25, 0.1, 0.5), value(3, 0.25, 0.1, 0.5)]
    values.append(value(4, 9.0, 0.1, 0.5, family="other"))
    assert [each.group for each in most_varying(values, "lake", 5)] == [2, 3, 1, 2, 3]
    assert most_varying(values[:1], "lake", 2) == []


def test_capability_is_the_difficulty_up_to_which_the_target_is_met() -> None:
    rng = np.random.default_rng(4)
    for _ in range(100):
        values = [
            value(group, 0.1, float(rng.choice([0.2, 0.4, 0.6, 0.8])), won / 2, int(rng.integers(1, 6)))
            for group, won in enumerate(rng.integers(0, 3, int(rng.integers(1, 8))))
        ]  # fmt: skip
        expected = 0.0
        for limit in (0.2, 0.4, 0.6, 0.8):
            easier = [each for each in values if (each.difficulty or 0) <= limit]
            at = any(each.difficulty == limit for each in values)
            if at and sum(each.success * each.rollouts for each in easier) >= 0.7 * sum(e.rollouts for e in easier):
                expected = limit
        assert capability(values, "lake", 0.7) == expected
    real = value(9, 0.1, 0.8, 1.0, synthetic=False)
    assert capability([value(1, 0.1, 0.2, 0.0), real], "lake", 0.7) == 0.8, "real ones alone, where there are any"


def test_pools_hold_the_newest_and_no_more() -> None:
    rng, config = np.random.default_rng(2), StoreConfig(real=7, synthetic=3, held_out=2)
    held: list[PoolItem] = []
    expected = {"real": deque[str](maxlen=7), "synthetic": deque[str](maxlen=3), "held_out": deque[str](maxlen=2)}
    for number in range(1, 12):
        new = []
        for index in range(int(rng.integers(0, 6))):
            pool = str(rng.choice(["real", "synthetic", "held_out"]))
            name = f"{number}-{index}"
            expected[pool].append(name)
            new.append(
                PoolItem(pool=pool, transition_id=name, family="lake", round=number, stage="explore", entered=number)
            )
        held = gathered(held, new, config)
        for pool, names in expected.items():
            assert [item.transition_id for item in held if item.pool == pool] == list(names)


def episode(group: int, stream: str, reward: float = 0.0) -> Episode:
    return Episode(
        episode_id=f"{stream}-{group}", round=1, family="lake", group=group, member=0, environment_seed=1,
        stream=stream, guided=False, goal="g",
        success=reward > 0, reward=reward, turns=1, invalid_actions=0, tokens_read=1, tokens_sampled=1,
        stop_reason="failure", last_observation="",
        error=None, generation_ids=[f"g{group}"],
    )  # fmt: skip


def test_the_gap_is_bounded_by_both_errors() -> None:
    for reward_error, transition_error, largest, gamma in ((0.0, 0.0, 1, 0.9), (0.1, 0.2, 1, 0.5), (0.3, 0.05, 4, 0.9)):
        rewards = sum(reward_error * gamma**step for step in range(2000))
        # A wrong state costs at most 2 R_max of every reward after it, and each step may be the first wrong one.
        states = sum(
            2 * largest * transition_error * gamma ** (first + after) for first in range(400) for after in range(1, 400)
        )
        assert gap_bound(reward_error, transition_error, largest, gamma) == pytest.approx(rewards + states, rel=1e-6)


def credited(episodes: list[Episode]) -> list[Sample]:
    """What the stage `credit` writes of the actor, of episodes that may all be synthetic."""
    method = load_experiment(ROOT / "conf/dreamgym_tiny.yaml", {"method.recipe.synthetic_share": 1.0}).method
    records = [
        Generation(
            generation_id=each.generation_ids[0], round=1, stage="collect", role="actor", kind="episode",
            weights_digest="w", temperature=1.0, token_ids=[1, 2], loss_mask=[0, 1], logprobs=[0.0, -1.0], prompt="",
            output="", stop_reason="success",
        )
        for each in episodes
    ]  # fmt: skip
    read: dict[type, list[Any]] = {Episode: episodes, Generation: records, Task: [], DreamTask: []}
    written: dict[type, list[Any]] = {}
    ctx: Any = SimpleNamespace(
        method=method, round=1, stage=SimpleNamespace(name="credit"), rows=lambda row_type, name: read[row_type],
        write=written.__setitem__, write_metrics=lambda metrics, alarms: None,
    )  # fmt: skip
    credit(ctx)
    return written[Sample]


def test_advantages_are_normalized_among_episodes_of_one_task_in_one_environment() -> None:
    rng = np.random.default_rng(6)
    episodes = []
    for place in range(80):
        # Two families may have groups of one number, and both environments episodes of one task: neither may mix.
        group, stream = int(rng.integers(0, 4)), str(rng.choice(["real", "synthetic"]))
        made = episode(group, stream, float(rng.choice([0.0, 0.5, 1.0])))
        family = str(rng.choice(["lake", "pond"]))
        episodes.append(dataclasses.replace(made, episode_id=f"e{place}", family=family, generation_ids=[f"g{place}"]))
    episodes.append(dataclasses.replace(episode(9, "real", 0.5), episode_id="alone", generation_ids=["alone"]))
    samples = {sample.generation_id: sample for sample in credited(episodes)}
    assert len(samples) == 81
    for each in episodes:
        mates = [
            other.reward
            for other in episodes
            if (other.family, other.group, other.stream) == (each.family, each.group, each.stream)
        ]
        mean = sum(mates) / len(mates)
        deviation = math.sqrt(sum((reward - mean) ** 2 for reward in mates) / len(mates))
        expected = each.reward if len(mates) == 1 else 0.0 if not deviation else (each.reward - mean) / deviation
        sample = samples[each.generation_ids[0]]
        assert sample.advantage == pytest.approx(expected) and sample.weight == 1 / 81
