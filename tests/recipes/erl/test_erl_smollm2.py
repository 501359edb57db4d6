"""conf/erl.yaml with SmolLM2 on masked FrozenLake, two rounds at a size for two processor cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.audit.verify import verify
from crl.config.load import load_experiment
from crl.recipes.erl.rows import Reflection
from crl.records import Episode, Evaluation, Generation, Sample, Turn, Weights
from crl.rounds.recipe import recipe_of
from tests.learning.harness import rows, train

pytestmark = pytest.mark.slow

CONF = Path(__file__).parents[3] / "conf"
ROUNDS = 2
CUT: dict[str, Any] = {
    "method.families.0.groups": 2,
    "method.families.0.evaluation_seeds.count": 2,
    "method.evaluation.every": ROUNDS,
    "method.threads": 1,
}


def test_attempts_reflections_and_attempts_again_hold_every_rule(tmp_path: Path) -> None:
    loaded = load_experiment(CONF / "erl.yaml", CUT)
    run = train(loaded, tmp_path, ROUNDS)
    numbers, own = range(1, ROUNDS + 1), loaded.method.prompts["actor"].system
    assert all(turn.valid for turn in rows(run, Turn, "collect", numbers)), "actions are constrained"
    reflected, again = rows(run, Reflection, "reflect", numbers), rows(run, Episode, "retry", numbers)
    assert [row.episode_id for row in reflected] == [
        row.episode_id for row in rows(run, Episode, "collect", numbers) if row.reward < 1
    ]
    assert [row.retry_id for row in reflected] == [row.episode_id for row in again]

    texts = [row.text for row in reflected if row.text is not None]
    assert len(set(texts)) > 1, "instructions in words, and not the same ones for all"
    first = {row.generation_id: row.prompt for row in rows(run, Generation, "collect", numbers)}
    second = {row.generation_id: row.prompt for row in rows(run, Generation, "retry", numbers)}
    for row in reflected:
        before, after = first[f"{row.episode_id}-collect"], second[f"{row.retry_id}-retry"]
        assert own in before
        assert after == (before if row.text is None else before.replace(own, row.text)), "nothing else is changed"

    trained = rows(run, Sample, "credit", numbers)
    won = {row.episode_id for row in again if row.reward > 0}
    assert sum(sample.objective == "nll" for sample in trained) == len(won)
    assert {sample.role for sample in trained} == {"actor", "reflector"}
    for number in numbers:
        [after_update] = rows(run, Weights, "update_actor", [number])
        assert after_update.role == "actor", "one set of weights attempts and reflects"
    assert len(rows(run, Evaluation, "evaluate", [ROUNDS])) == 2
    assert verify(run.path) == [] and not problems_of(run, recipe_of(run.method))
