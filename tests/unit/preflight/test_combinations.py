"""Settings that are fine one by one and impossible together are refused before work starts, at their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config import Method
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.preflight import check_ready
from crl.recipes.complementary.config import BankRecipeConfig, config_of
from crl.recipes.complementary.ready import check_offline_bank
from tests.recipe_runs import OTHERS

ROOT = Path(__file__).parents[3]
CRITIC = {"system": "s", "first": "{goal} {observation} {experience} {success_rate}"}
ASK = {"system": "s", "first": "{goal} {observation} {question} {experience}"}


REALM = [{"name": "realm", "environment": {"kind": "realms"}}]


def method(**changes: Any) -> Method:
    data = load_experiment(ROOT / "conf/tiny.yaml").method.model_dump()
    for key, value in changes.items():
        at = data
        *parents, last = key.split("__")
        for name in parents:
            at = at[name]
        at[last] = value
    return Method.model_validate(data)


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("recipe.guided_share_rounds", {"recipe__guided_share_end": 0.25}),
        ("recipe.guided_share_end", {"recipe__guided_share_rounds": 10}),
        (
            "recipe.retrieval.top_k",
            {"recipe__actor_critic": {}, "prompts__critic": CRITIC, "recipe__retrieval__top_k": 2},
        ),
        ("prompts.ask", {"rollout__search_and_ask": {}}),
        ("recipe.actor_critic", {"recipe__actor_critic": {}, "prompts__critic": CRITIC, "recipe__kind": "baseline"}),
        ("recipe.trial", {"recipe__trial": {}, "recipe__kind": "baseline"}),
        ("recipe.trial.screen", {"recipe__trial": {"layouts": 4, "screen": 4}}),
        ("recipe.trial.screen", {"recipe__trial": {"layouts": 4, "screen": 2, "threshold": 0.0}}),
        ("recipe.trial.reward", {"recipe__trial": {}, "recipe__extractor_objective__credit": "trend"}),
        ("recipe.suppress", {"recipe__suppress": {}, "recipe__kind": "baseline"}),
        ("recipe.suppress", {"recipe__suppress": {}, "recipe__guided_share": 1.0}),
        ("recipe.self_distillation", {"recipe__self_distillation": {}, "recipe__kind": "baseline"}),
        ("recipe.self_distillation", {"recipe__self_distillation": {}, "recipe__kind": "experience_only"}),
        ("rollout.search_and_ask", {"rollout__search_and_ask": {}, "prompts__ask": ASK, "recipe__kind": "baseline"}),
        *(
            (
                "rollout.search_and_ask.train_answers",
                {"rollout__search_and_ask": {"train_answers": True}, "prompts__ask": ASK, "recipe__kind": recipe},
            )
            for recipe in ("static_online", "offline_bank")
        ),
        ("recipe.actor_critic", {"recipe__actor_critic": {}, "prompts__critic": CRITIC, "recipe__guided_share": 0.0}),
        ("recipe.warm_start.demonstrations", {"families": REALM}),
        ("recipe.self_distillation.episodes", {"recipe__self_distillation": {}, "recipe__guided_share": 1.0}),
        ("roles.extractor.sampling.constrain", {"roles__extractor__sampling__constrain": "actions"}),
        ("rollout.action_format", {"roles__actor__sampling__constrain": "actions", "rollout__action_format": "tag"}),
        (
            "rollout.search_and_ask",
            {"roles__actor__sampling__constrain": "actions", "rollout__search_and_ask": {}, "prompts__ask": ASK},
        ),
    ],
)
def test_what_would_do_nothing_of_what_was_asked_for_is_refused(where: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        method(**changes)
    assert caught.value.where == f"method.{where}"
    assert caught.value.expected and caught.value.next_step


@pytest.mark.parametrize("name", [f"{recipe}_tiny" for recipe in OTHERS])
def test_answers_in_which_no_action_would_be_found_are_refused_in_every_recipe(name: str) -> None:
    """Their actors say a legal action and nothing else."""
    with pytest.raises(BadInput, match="no answer would have thoughts and tags") as caught:
        load_experiment(ROOT / f"conf/{name}.yaml", {"method.rollout.action_format": "tag"})
    assert caught.value.where == "method.rollout.action_format"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"roles__actor__sampling__constrain": "actions"},
        {"recipe__guided_share": 0.0},
        {"recipe__guided_share": 1.0},
        {"recipe__guided_share": 0.75, "recipe__guided_share_end": 0.0, "recipe__guided_share_rounds": 40},
        {"recipe__actor_critic": {}, "prompts__critic": CRITIC},
        {"recipe__trial": {"layouts": 4, "screen": 2}, "recipe__suppress": {}},
        {"recipe__trial": {"reward": "uses"}, "recipe__extractor_objective__credit": "trend"},
        {"recipe__trial": {}, "recipe__kind": "static_online"},
        {"recipe__retrieval__top_k": 16},
        {"rollout__search_and_ask": {}, "prompts__ask": ASK},
        {"rollout__search_and_ask": {}, "prompts__ask": ASK, "recipe__kind": "static_online"},
        {"rollout__search_and_ask": {"train_answers": True}, "prompts__ask": ASK},
        {"rollout__search_and_ask": {"train_answers": True}, "prompts__ask": ASK, "recipe__kind": "experience_only"},
        {"recipe__self_distillation": {}},
        {
            "recipe__actor_objective__importance_sampling_correction": {},
            "roles__actor__optimizer__num_iterations": 2,
        },
        {
            "recipe__extractor_objective__importance_sampling_correction": {},
            "roles__extractor__optimizer__num_iterations": 2,
            "recipe__kind": "static_online",
        },
        {"recipe__self_distillation": {"episodes": "wins"}, "recipe__guided_share": 1.0},
        {"recipe__self_distillation": {"episodes": "all_wins"}, "recipe__kind": "baseline"},
        # No twin is free at first; later some are.
        {
            "recipe__self_distillation": {}, "recipe__guided_share": 1.0, "recipe__guided_share_end": 0.5,
            "recipe__guided_share_rounds": 5,
        },
    ],
)  # fmt: skip
def test_what_can_work_is_not_refused(changes: dict[str, Any]) -> None:
    made = method(**changes)
    assert Method.model_validate(made.model_dump()) == made


def test_a_prompt_that_a_mechanism_needs_is_named_where_it_is_missing() -> None:
    with pytest.raises(
        BadInput, match="recipe complementary needs a prompt 'critic'; found actor, ask, distill, merge"
    ):
        load_experiment(ROOT / "conf/tiny.yaml", {"method.recipe.actor_critic": {}, "method.prompts": "paper_ask"})


def test_an_offline_bank_that_nothing_fills_is_refused_unless_one_was_imported(tmp_path: Path) -> None:
    def config(kind: str, warm_up_rounds: int = 0) -> BankRecipeConfig:
        return config_of(method(recipe__kind=kind, recipe__warm_up_rounds=warm_up_rounds))

    with pytest.raises(BadInput, match="would stay empty"):
        check_offline_bank(config("offline_bank"), tmp_path / "none yet")
    check_offline_bank(config("offline_bank", warm_up_rounds=1), tmp_path)
    check_offline_bank(config("complementary"), tmp_path)
    imported = tmp_path / "run" / "imports" / "bank" / f"{'0' * 64}.parquet"
    imported.parent.mkdir(parents=True)
    imported.write_bytes(b"")
    check_offline_bank(config("offline_bank"), tmp_path / "run")


def test_an_offline_bank_that_stays_empty_is_refused_before_any_work_starts(tmp_path: Path) -> None:
    overrides = {"runtime.min_free_gigabytes": 0, "method.recipe.kind": "offline_bank"}
    experiment = load_experiment(ROOT / "conf/tiny.yaml", overrides)
    with pytest.raises(BadInput) as caught:
        check_ready(experiment, tmp_path / "run", 1)
    assert caught.value.where == "method.recipe.warm_up_rounds"
    assert list(tmp_path.iterdir()) == []


def test_what_is_impossible_together_is_no_experiment_at_all() -> None:
    with pytest.raises(BadInput) as caught:
        load_experiment(ROOT / "conf/tiny.yaml", {"method.recipe.guided_share_end": 0.1})
    assert caught.value.where == "method.recipe.guided_share_rounds" and caught.value.exit_code == 2
