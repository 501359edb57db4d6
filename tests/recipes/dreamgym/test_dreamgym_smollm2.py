"""conf/dreamgym.yaml with SmolLM2, two rounds at a size for two processor cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.audit.verify import verify
from crl.config.load import load_experiment
from crl.recipes.dreamgym.rows import Prediction, Transition
from crl.records import Episode, Generation
from crl.rounds.recipe import recipe_of
from tests.learning.harness import rows, train

pytestmark = pytest.mark.slow

CONF = Path(__file__).parents[3] / "conf"
ROUNDS = 2
CUT: dict[str, Any] = {
    "method.families.0.groups": 2,
    "method.families.0.evaluation_seeds.count": 1,
    "method.rollout.group_size": 2,
    "method.recipe.explore.first": 8,
    "method.recipe.explore.further": 4,
    "method.recipe.explore.every": 1,
    "method.recipe.fit.num_train_epochs": 1,
    # So few steps teach the form at best; what is right is not asked for here.
    "method.recipe.truth": {
        "max_transitions": 4,
        "min_observation_accuracy": None,
        "min_reward_accuracy": None,
        "min_ending_accuracy": None,
    },
    "method.recipe.synthetic_rounds": None,
    "method.recipe.synthetic_share": 0.5,
    # Of two groups one is synthetic: a smaller share of it would be none.
    "method.recipe.curriculum.share": 1.0,
    "method.evaluation.every": ROUNDS,
    "method.threads": 1,
}


def test_two_rounds_in_the_model_and_in_the_environment_hold_every_rule(tmp_path: Path) -> None:
    run = train(load_experiment(CONF / "dreamgym.yaml", CUT), tmp_path, ROUNDS)
    numbers = range(1, ROUNDS + 1)
    played = rows(run, Episode, "collect", numbers)
    assert {each.stream for each in played} == {"synthetic", "real"}
    assert all(each.error is None for each in played if each.stream == "real")
    explored = rows(run, Transition, "explore", numbers)
    assert {each.split for each in explored} == {"fit", "held_out"} and all(each.reasoning for each in explored)
    for prediction in rows(run, Prediction, "collect", numbers):
        assert len(prediction.neighbors) == 1, "it was shown the nearest real transition"
    assert all(sum(each.loss_mask) for each in rows(run, Generation, "corpus", numbers))
    assert verify(run.path) == [] and not problems_of(run, recipe_of(run.method))
