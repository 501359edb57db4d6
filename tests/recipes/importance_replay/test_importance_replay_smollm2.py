"""conf/importance_replay.yaml with SmolLM2, two rounds at a size for two processor cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.audit.verify import verify
from crl.config.load import load_experiment
from crl.recipes.importance_replay.rows import Improvement, ReplayDraw
from crl.records import Episode, Evaluation, Generation, Turn, Weights
from crl.rounds.recipe import recipe_of
from tests.learning.harness import rows, train

pytestmark = pytest.mark.slow

CONF = Path(__file__).parents[3] / "conf"
ROUNDS = 2
CUT: dict[str, Any] = {
    **{f"method.families.{index}.groups": 1 for index in range(5)},
    **{f"method.families.{index}.evaluation_seeds.count": 1 for index in range(5)},
    "method.recipe.buffer.batch": 4,
    "method.recipe.buffer.steps": 2,
    "method.recipe.probe.tasks": 1,
    "method.evaluation.every": ROUNDS,
    "method.threads": 1,
}


def test_five_variants_are_played_probed_and_evaluated_and_every_row_holds_its_rules(tmp_path: Path) -> None:
    loaded = load_experiment(CONF / "importance_replay.yaml", CUT)
    run = train(loaded, tmp_path, ROUNDS)
    numbers, names = range(1, ROUNDS + 1), {family.name for family in loaded.method.families}
    played = rows(run, Episode, "collect", numbers)
    assert {each.family for each in played} == names and len(names) == 5
    assert {each.family for each in rows(run, Evaluation, "evaluate", [ROUNDS])} == names
    assert all(turn.valid for turn in rows(run, Turn, "collect", numbers))
    assert sum(row.draws for row in rows(run, ReplayDraw, "credit", numbers)) >= 8
    measured = 0
    for number in numbers:
        [after] = rows(run, Weights, "update_actor", [number])
        sampled = {row.weights_digest for row in rows(run, Generation, "probe_after", [number])}
        [found] = rows(run, Improvement, "measure", [number])
        assert sampled <= {after.weights_digest} and found.pairs == (len(names) if sampled else 0)
        measured += found.pairs
    assert measured, "some update took a step"
    assert verify(run.path) == [] and not problems_of(run, recipe_of(run.method))
