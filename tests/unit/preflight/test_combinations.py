"""Settings that are fine one by one and impossible together are refused before work starts, at their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crl.preflight.combinations import check_combinations, check_offline_bank

from crl.config import Method
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.preflight import check_ready

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
        ("rollout.guided_share_rounds", {"rollout__guided_share_end": 0.25}),
        ("rollout.guided_share_end", {"rollout__guided_share_rounds": 10}),
        ("prompts.critic", {"actor_critic": {}}),
        ("retrieval.top_k", {"actor_critic": {}, "prompts__critic": CRITIC, "retrieval__top_k": 2}),
        ("prompts.ask", {"rollout__search_and_ask": {}}),
        ("actor_critic", {"actor_critic": {}, "prompts__critic": CRITIC, "recipe": "baseline"}),
        ("self_distillation", {"self_distillation": {}, "recipe": "baseline"}),
        ("self_distillation", {"self_distillation": {}, "recipe": "experience_only"}),
        ("rollout.search_and_ask", {"rollout__search_and_ask": {}, "prompts__ask": ASK, "recipe": "baseline"}),
        *(
            (
                "rollout.search_and_ask.train_answers",
                {"rollout__search_and_ask": {"train_answers": True}, "prompts__ask": ASK, "recipe": recipe},
            )
            for recipe in ("static_online", "offline_bank")
        ),
        ("actor_critic", {"actor_critic": {}, "prompts__critic": CRITIC, "rollout__guided_share": 0.0}),
        ("warm_start.demonstrations", {"families": REALM}),
        ("self_distillation.episodes", {"self_distillation": {}, "rollout__guided_share": 1.0}),
        ("extractor.sampling.constrain", {"extractor__sampling__constrain": "actions"}),
        ("rollout.action_format", {"actor__sampling__constrain": "actions", "rollout__action_format": "tag"}),
        (
            "rollout.search_and_ask",
            {"actor__sampling__constrain": "actions", "rollout__search_and_ask": {}, "prompts__ask": ASK},
        ),
    ],
)
def test_what_would_do_nothing_of_what_was_asked_for_is_refused(where: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        check_combinations(method(**changes))
    assert caught.value.where == f"method.{where}"
    assert caught.value.expected and caught.value.next_step


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"actor__sampling__constrain": "actions"},
        {"rollout__guided_share": 0.0},
        {"rollout__guided_share": 1.0},
        {"rollout__guided_share": 0.75, "rollout__guided_share_end": 0.0, "rollout__guided_share_rounds": 40},
        {"actor_critic": {}, "prompts__critic": CRITIC},
        {"retrieval__top_k": 16},
        {"rollout__search_and_ask": {}, "prompts__ask": ASK},
        {"rollout__search_and_ask": {}, "prompts__ask": ASK, "recipe": "static_online"},
        {"rollout__search_and_ask": {"train_answers": True}, "prompts__ask": ASK},
        {"rollout__search_and_ask": {"train_answers": True}, "prompts__ask": ASK, "recipe": "experience_only"},
        {"self_distillation": {}},
        {"self_distillation": {"episodes": "wins"}, "rollout__guided_share": 1.0},
        # No twin is free at first; later some are.
        {
            "self_distillation": {}, "rollout__guided_share": 1.0, "rollout__guided_share_end": 0.5,
            "rollout__guided_share_rounds": 5,
        },
    ],
)  # fmt: skip
def test_what_can_work_is_not_refused(changes: dict[str, Any]) -> None:
    check_combinations(method(**changes))


def test_an_offline_bank_that_nothing_fills_is_refused_unless_one_was_imported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="would stay empty"):
        check_offline_bank(method(recipe="offline_bank"), tmp_path / "none yet")
    check_offline_bank(method(recipe="offline_bank", warm_up_rounds=1), tmp_path)
    check_offline_bank(method(recipe="complementary"), tmp_path)
    imported = tmp_path / "run" / "imports" / "bank" / f"{'0' * 64}.parquet"
    imported.parent.mkdir(parents=True)
    imported.write_bytes(b"")
    check_offline_bank(method(recipe="offline_bank"), tmp_path / "run")


def test_they_are_refused_before_any_work_starts(tmp_path: Path) -> None:
    for overrides, place in (
        ({"method.recipe.kind": "offline_bank"}, "method.recipe.warm_up_rounds"),
        ({"method.recipe.guided_share_end": 0.1}, "method.recipe.guided_share_rounds"),
    ):
        experiment = load_experiment(ROOT / "conf/tiny.yaml", {"runtime.min_free_gigabytes": 0, **overrides})
        with pytest.raises(BadInput) as caught:
            check_ready(experiment, tmp_path / "run", 1)
        assert caught.value.where == place
    assert list(tmp_path.iterdir()) == []
