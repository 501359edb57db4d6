"""A fork to a recipe of another kind: what the rounds before left behind is used where it means anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.cli.fork import changed_experiment
from crl.config import Runtime
from crl.recipes.erl.rows import Reflection
from crl.records import BufferItem, Credit, EntryScore, Metric, Sample, rows_of
from crl.rounds.alarms import counters
from crl.rounds.fork import fork
from crl.rounds.recipe import recipe_in
from crl.run.directory import RunDirectory
from tests.marks import sampled
from tests.unit.recipes.branched import changed, experiment_of, finished, play

pytestmark = pytest.mark.slow


def trains_an_extractor(parent: RunDirectory, round_number: int, root: Path, **changes: Any) -> RunDirectory:
    """A fork of a run of Experiential RL to `complementary`, whose batches of the extractor are full at once."""
    given = {
        "roles.extractor": "{weights: actor}", "prompts": "tiny", "families.0.environment.masked": "false",
        "recipe.retrieval": "{embedder: lexical, threshold: -1.0, index: exact, candidates: 256, count_weight: 10.0}",
        "recipe.bank.duplicates": "keep", "recipe.extractor_objective.batch": "2",
    }  # fmt: skip
    given |= {key.replace("__", "."): value for key, value in changes.items()}
    pairs = [f"method.{key}={value}" for key, value in given.items()]
    made = changed_experiment(parent, Runtime(), "child", pairs, "complementary")
    return fork(parent, round_number, made, root)


@pytest.mark.parametrize(("revisions", "credit"), sampled([(1, "outcome"), (2, "other_tasks")], 2))
def test_reflections_of_the_bank_are_used_and_credited_and_train_nobody(
    tmp_path: Path, revisions: int, credit: str
) -> None:
    parent = finished(tmp_path, 1, "erl", method__recipe__revisions=revisions, method__families__0__groups=4)
    child = trains_an_extractor(parent, 1, tmp_path, recipe__extractor_objective__credit=credit)
    play(child, 3)
    reflected = {
        row.generation_id
        for stage in ("reflect", "reflect_2")[:revisions]
        for row in rows_of(Reflection, child.read(1, stage, Reflection))
    }
    credits = [row for number in (2, 3) for row in rows_of(Credit, child.read(number, "credit", Credit))]
    used = [row for row in credits if row.generation_id in reflected]
    assert used, "entries of the rounds before guide episodes"
    scores = {row.entry_id: row.uses for row in rows_of(EntryScore, child.read(3, "credit", EntryScore))}
    assert all(scores[row.entry_id] for row in used), "and are credited"
    for number in (2, 3):
        waiting = rows_of(BufferItem, child.read(number, "credit", BufferItem))
        assert reflected.isdisjoint(row.generation_id for row in waiting)
    samples = [row for number in (2, 3) for row in rows_of(Sample, child.read(number, "credit", Sample))]
    assert {row.objective for row in samples} == {"grpo", "cispo"}, "the extractor learns from what it wrote itself"
    assert not problems_of(child, recipe_in(child))


def collapse(run: RunDirectory, number: int) -> dict[str, float]:
    """What a round carries of the signs of a collapse."""
    rows = rows_of(Metric, run.read(number, "health", Metric))
    return {row.name: row.value for row in rows if row.name in counters() | {"collapsed"}}


def test_a_collapse_that_the_recipe_cannot_show_is_not_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an extractor nobody writes a note, so no round could ever take the sign back."""
    monkeypatch.setattr("crl.rounds.alarms.ROUNDS", 2)
    monkeypatch.setattr("tests.unit.recipes.played.write", lambda read, generator: "RETURN")
    parent = finished(tmp_path, 2)
    told = {"without_experiences_rounds": 2.0, "without_experiences_since": 1.0, "collapsed": 1.0}
    assert collapse(parent, 2) == told
    same = fork(parent, 1, experiment_of(parent, "same", changed(parent.method, evaluation__every=0)), tmp_path)
    play(same, 2)
    assert collapse(same, 2) == told, "the same recipe goes on counting"
    other = fork(parent, 2, experiment_of(parent, "other", changed(parent.method, recipe__kind="baseline")), tmp_path)
    play(other, 4)
    assert [collapse(other, number) for number in (3, 4)] == [{"collapsed": 0.0}] * 2
