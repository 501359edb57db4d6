"""A run that collapses goes on with the weights of its best round, once, and then stops; killed or not, it is the same.

The extractor of these runs writes nothing that can be read, which is named as a collapse after five rounds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from crl.errors import RecordDamaged
from crl.records import Generation, Metric, Weights, rows_of
from crl.rounds.evaluate import best_round, recorded_evaluations
from crl.run.directory import RunDirectory
from tests.faults.mishaps import Mishap
from tests.tiny_run import NAME, crl, crl_here, digests, leftovers, train

LAKE = "method.families.0"
SETTINGS = {
    "method.on_collapse": "fall_back",
    "method.recipe.warm_start.extractor_episodes": 1,
    "method.recipe.warm_start.num_train_epochs": 2,
    "method.recipe.warm_start.learning_rate": 3.0e-3,
    "method.roles.actor.optimizer.learning_rate": 0.02,
    f"{LAKE}.evaluation_seeds.count": 16,
    f"{LAKE}.environment.frozen_probability": 0.95,
    f"{LAKE}.environment.size_max": 3,
    f"{LAKE}.environment.max_turns": 12,
    "runtime.save_total_limit": 1,
}
COLLAPSED, APPLIED, STOPPED = 5, 6, 10

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def through(tmp_path_factory):
    """A run that nothing disturbed, and what it printed."""
    runs = tmp_path_factory.mktemp("runs")
    said = crl(runs, *train(STOPPED + 2, **SETTINGS)).stdout
    return runs, said


def metrics(run, number, stage="health"):
    return {row.name: row for row in rows_of(Metric, run.read(number, stage, Metric))}


def weights(run, number, owner="actor"):
    row = next(row for row in rows_of(Weights, run.read(number, f"update_{owner}", Weights)))
    return replace(row, round=0)


def test_a_fall_back_is_the_weights_row_of_the_best_round_again(through):
    runs, _ = through
    run = RunDirectory.open(runs / NAME)
    decided = metrics(run, COLLAPSED)
    assert decided["collapsed"].value > 0
    evaluations = {number: rows for number, rows in recorded_evaluations(run).items() if number <= COLLAPSED}
    best = best_round(run.method, evaluations)
    assert best is not None and best < COLLAPSED, "else nothing of what follows is tested"
    assert decided["fall_back_to"].value == best and f"round {best}" in decided["fall_back_to"].alarm
    stage = "warm_start_actor" if best == 0 else "update_actor"
    (row,) = (row for row in rows_of(Weights, run.read(best, stage, Weights)) if row.role == "actor")
    assert weights(run, APPLIED) == replace(row, round=0)
    assert weights(run, COLLAPSED) != replace(row, round=0)
    assert metrics(run, APPLIED, "update_actor")["fell_back_to"].value == best
    assert (run.path / row.checkpoint).is_dir(), "kept, with save_total_limit 1"
    assert metrics(run, APPLIED)["collapsed"].value == 0, "counted anew"
    assert metrics(run, APPLIED)["without_experiences_rounds"].value == 1
    generations = run.read(APPLIED + 1, "collect", Generation)
    assert set(generations["weights_digest"].to_pylist()) == {row.weights_digest}


def test_what_is_no_better_than_before_stops_the_run(through):
    runs, said = through
    run = RunDirectory.open(runs / NAME)
    assert run.rounds()[-1] == STOPPED
    assert f"stopped after round {STOPPED}: this run has collapsed" in said
    told = crl_here(runs, "status", NAME).stdout
    assert f"stopped after round {STOPPED}" in told and "next: go on from its best round" in told
    assert "stopped after" in crl_here(runs, "resume", NAME, "--rounds", "1").stdout
    assert run.rounds()[-1] == STOPPED


def test_the_record_of_it_is_intact_and_its_early_warning_came_before(through):
    runs, _ = through
    run = RunDirectory.open(runs / NAME)
    assert "is intact" in crl_here(runs, "verify", NAME).stdout
    warned = [number for number in range(1, STOPPED + 1) if metrics(run, number)["collapse_warning"].alarm]
    assert {2, 3, 4, 7, 8, 9} <= set(warned) and not {1, APPLIED} & set(warned)
    forked = crl_here(runs, "fork", NAME, "--round", APPLIED, "--name", "again").stdout
    assert "again" in forked
    crl(runs, "resume", "again", "--rounds", "1")
    assert "is intact" in crl_here(runs, "verify", "again").stdout


def test_broken_where_it_decides_and_behind_the_fall_back_it_is_the_same_run(through, tmp_path):
    runs, _ = through
    places = (f"{COLLAPSED:04d}/health", f"{APPLIED:04d}/health", f"{APPLIED + 1:04d}/update_actor")
    mishap = Mishap("exception", places, str(tmp_path))
    crl(tmp_path / "runs", *train(STOPPED + 2, **SETTINGS), code=1, extra=mishap.variables())
    for _ in places[1:]:
        crl(tmp_path / "runs", "resume", NAME, code=1, extra=mishap.variables())
    crl(tmp_path / "runs", "resume", NAME, extra=mishap.variables())
    assert all(map(mishap.reached, places))
    assert digests(tmp_path / "runs" / NAME) == digests(runs / NAME)
    assert not leftovers(tmp_path / "runs" / NAME)


def test_weights_that_are_gone_are_named(through, tmp_path, monkeypatch):
    from types import SimpleNamespace

    from crl.rounds.fall_back import _update
    from crl.rounds.recipe import recipe_in

    runs, _ = through
    run = RunDirectory.open(runs / NAME)
    recipe = recipe_in(run)
    stage = recipe.stage(run.method, APPLIED, "update_actor")
    ctx = SimpleNamespace(
        method=run.method, recipe=recipe, stage=stage, run_path=tmp_path, services=SimpleNamespace(rank=0),
        metrics=lambda name: {"fall_back_to": metrics(run, COLLAPSED)["fall_back_to"].value},
        rows_at=lambda kind, number, name: rows_of(kind, run.read(number, name, kind)),
    )  # fmt: skip
    with pytest.raises(RecordDamaged, match="that the run falls back to are gone"):
        _update(ctx, run=lambda ctx: None)
