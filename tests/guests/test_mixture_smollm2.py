"""conf/mixture.yaml with SmolLM2, two rounds at a size for two processor cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.audit.verify import verify
from crl.config.load import load_experiment
from crl.records import Episode, Turn
from crl.rounds.recipe import recipe_of
from tests.learning.harness import rows, train

pytestmark = pytest.mark.slow

CONF = Path(__file__).parents[2] / "conf"
ROUNDS = 2
CUT: dict[str, Any] = {
    "method.families.0.group_size": 4,
    **{f"method.families.{index}.groups": 1 for index in range(5)},
    **{f"method.families.{index}.evaluation_seeds.count": 1 for index in range(5)},
    **{f"method.families.{index}.environment.max_turns": 3 for index in (0, 4)},
    "method.rollout.group_size": 2,
    "method.recipe.warm_start": None,
    "method.recipe.extractor_objective.batch": 8,
    "method.evaluation.every": ROUNDS,
    "method.threads": 1,
}


def test_every_task_is_played_in_form_and_every_row_holds_its_rules(tmp_path: Path) -> None:
    pytest.importorskip("minihack")
    loaded = load_experiment(CONF / "mixture.yaml", CUT)
    run = train(loaded, tmp_path, ROUNDS)
    played = rows(run, Episode, "collect", range(1, ROUNDS + 1))
    names = [family.name for family in loaded.method.families]
    assert {each.family for each in played} == set(names) and len(names) == 8
    assert not [each for each in played if each.error]
    # Answers are constrained to legal actions, but in the shop, whose searches are free text.
    free = {each.episode_id for each in played if each.family == "shop"}
    assert all(turn.valid for turn in rows(run, Turn, "collect", range(1, ROUNDS + 1)) if turn.episode_id not in free)
    assert verify(run.path) == [] and not problems_of(run, recipe_of(run.method))
