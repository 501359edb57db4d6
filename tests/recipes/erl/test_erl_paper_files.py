"""The settings of Experiential RL's paper (`conf/paper/erl_*.yaml`), against numbers that are written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.config import Method
from crl.config.load import load_experiment
from crl.recipes.erl.config import ErlConfig
from crl.records import Episode, Sample
from tests.recipes.erl.erl_played import played

PAPER = Path(__file__).parents[3] / "conf/paper"
TASKS = ("frozenlake", "sokoban", "hotpotqa")
OBJECTIVE = {
    "epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.001, "loss_type": "token_sum", "scale_rewards": "group",
    "importance_sampling_level": "token",
    "singleton": "reward",
}  # fmt: skip
WITHOUT: dict[str, Any] = {"gate": 0.0, "reflect": None, "memory": None, "internalize": None}
"""The recipe's mechanisms, left out."""


def method_of(name: str) -> Method:
    return load_experiment(PAPER / f"erl_{name}.yaml").method


@pytest.mark.parametrize("name", TASKS)
def test_the_settings_are_those_of_the_paper_and_of_the_release(name: str) -> None:
    method = method_of(name)
    recipe, actor, reflector = method.recipe, method.role("actor"), method.role("reflector")
    assert isinstance(recipe, ErlConfig) and recipe.reflect and recipe.memory and recipe.internalize
    assert (actor.model, actor.optimizer.learning_rate) == ("Qwen/Qwen3-4B-Instruct-2507", 1e-6)
    assert method.owner("reflector") == "actor", "one model reflects and plays"
    assert (actor.sampling.temperature, method.evaluation.temperature, method.evaluation.every) == (0.7, 0.7, 5)
    assert method.evaluation.samples == 4 and actor.sampling.top_p == 1, "it truncates in evaluation only"
    evaluated = method.evaluation_sampling("actor", method.families[0].name)
    assert (evaluated.top_p, evaluated.top_k) == (0.8, 20)
    assert (reflector.sampling.temperature, reflector.sampling.top_p) == (0.5, 0.9)
    assert recipe.objective.model_dump() == OBJECTIVE
    assert (recipe.gate, recipe.revisions, recipe.memory.order, recipe.internalize.weight) == (1.0, 1, "last", 1.0)
    assert recipe.reflect.form == "tag" and recipe.bank.capacity == 1000
    [family] = method.families
    assert (family.groups, method.group_size(family)) == (64, 4), "64 tasks, and 4 rollouts of each attempt"
    assert (family.train_seeds.count, family.evaluation_seeds.count) == (10_000, 100)


@pytest.mark.parametrize("name", TASKS)
def test_the_environments_are_those_of_the_paper(name: str) -> None:
    [family] = method_of(name).families
    said: dict[str, dict[str, Any]] = {
        "frozenlake": {
            "masked": True, "size_min": 2, "size_max": 9, "frozen_probability": 0.6, "frozen_probability_max": 0.85,
            "max_turns": 8,
        },
        "sokoban": {"masked": True, "boxes": 1, "size_min": 6, "size_max": 8, "max_turns": 8},
        "hotpotqa": {"max_turns": 5, "min_f1": 0.3},
    }  # fmt: skip
    assert {key: getattr(family.environment, key) for key in said[name]} == said[name]


@pytest.mark.parametrize("name", [*TASKS, "frozenlake_baseline"])
def test_a_whole_episode_fits_the_context(name: str) -> None:
    method = method_of(name)
    [family], actor = method.families, method.role("actor")
    assert family.turn_limit is not None
    assert family.turn_limit * actor.sampling.max_new_tokens < actor.context


def test_the_baseline_is_the_same_without_the_mechanisms_and_with_ten_attempts() -> None:
    lake, baseline = (
        yaml.safe_load((PAPER / f"erl_{name}.yaml").read_text(encoding="utf-8"))
        for name in ("frozenlake", "frozenlake_baseline")
    )
    del lake["name"], baseline["name"], lake["method"]["roles"]["reflector"]
    del lake["method"]["rollout"]["wave_groups"], baseline["method"]["rollout"]["wave_groups"]
    assert lake["method"]["rollout"].pop("group_size") == 4 and baseline["method"]["rollout"].pop("group_size") == 10
    recipe, of_baseline = lake["method"].pop("recipe"), baseline["method"].pop("recipe")
    assert of_baseline == {"kind": "erl", **WITHOUT, "objective": recipe["objective"]} and lake == baseline


@pytest.mark.parametrize("name", ["sokoban", "hotpotqa"])
def test_the_same_changes_make_the_other_baselines(name: str) -> None:
    changes = {f"method.recipe.{key}": value for key, value in WITHOUT.items()}
    made = load_experiment(PAPER / f"erl_{name}.yaml", {**changes, "method.rollout.group_size": 10}).method
    assert set(made.recipe.roles()) == {"actor"} and made.group_size(made.families[0]) == 10


def test_without_the_mechanisms_it_is_grpo(tmp_path: Path) -> None:
    run = played(tmp_path, 1, **{f"method__recipe__{key}": value for key, value in WITHOUT.items()})
    first, samples = run.rows(Episode, "collect", 1), run.rows(Sample, "credit", 1)
    assert not run.rows(Episode, "retry", 1), "nothing is tried again"
    assert {row.objective for row in samples} == {"grpo"} and {row.role for row in samples} == {"actor"}
    assert {row.generation_id for row in samples} == {episode.generation_ids[0] for episode in first}
