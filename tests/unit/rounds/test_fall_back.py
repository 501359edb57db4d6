"""To which round a run falls back, and which stages read the decision. Whole runs: tests/record/test_fall_back.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.records import BufferItem, Weights
from crl.rounds import fall_back
from crl.rounds.fall_back import FALL_BACK, FELL_BACK, counted_anew, guard_of, guarded
from crl.rounds.recipe import recipe_of
from tests.recipe_runs import OTHERS
from tests.tiny_run import ROOT

FILES = ("tiny", *(f"{kind}_tiny" for kind in OTHERS))


def method(name: str = "tiny", **settings: object):
    changes = {f"method.{key}": str(value) for key, value in settings.items()}
    return load_experiment(ROOT / f"conf/{name}.yaml", changes).method


@pytest.mark.parametrize("name", FILES)
def test_updates_of_every_recipe_read_what_health_decided(name):
    recipe = recipe_of(method(name, on_collapse="fall_back"))
    updates = [stage for stage in recipe.stages if stage.update]
    assert updates
    for stage in (*updates, *(stage for stage in recipe.stages if BufferItem in stage.writes)):
        assert {"decided": ("health", -1)}.items() <= {
            read.name: (read.stage, read.offset) for read in stage.reads
        }.items()
    order = [stage.name for stage in recipe.stages]
    assert order.index("evaluate") < order.index("health")
    for asked in ({}, {"on_collapse": "go_on"}):
        assert not any(
            read.name == "decided" for stage in recipe_of(method(name, **asked)).stages for read in stage.reads
        )
    watched = recipe_of(method(name, on_collapse="stop"))
    assert not any(read.name == "decided" for stage in watched.stages for read in stage.reads)


def test_where_rounds_overlap_the_first_track_waits_for_nothing_new():
    plain = recipe_of(method(overlap="true"))
    recipe = recipe_of(method(overlap="true", on_collapse="fall_back"))
    assert {each.name: each.second_track for each in plain.stages} == {
        each.name: each.second_track for each in recipe.stages
    }
    offsets = {read.offset for stage in recipe.stages for read in stage.reads if read.name == "decided"}
    assert offsets == {-2}


def test_a_method_that_goes_on_whatever_happens_has_the_digest_it_always_had():
    assert method().digest() == method(on_collapse="go_on").digest() != method(on_collapse="stop").digest()


def test_a_recipe_that_looks_for_no_collapse_is_refused():
    recipe = recipe_of(method())
    blind = replace(recipe, stages=tuple(stage for stage in recipe.stages if stage.name != "health"))
    with pytest.raises(BadInput, match="does not look for a collapse"):
        guarded(blind, method(on_collapse="stop"))


def test_without_evaluations_there_is_nothing_to_fall_back_to():
    with pytest.raises(BadInput, match="no round is evaluated"):
        recipe_of(method(on_collapse="fall_back", **{"evaluation.every": 0}))
    assert recipe_of(method(on_collapse="stop", **{"evaluation.every": 0}))
    with pytest.raises(BadInput, match="a share of held-out games"):
        load_experiment(ROOT / "conf/tiny.yaml", {"method.evaluation.every": "0", "runtime.stop_at.success": "0.9"})


@pytest.fixture
def decided(monkeypatch):
    """What health writes of rounds in turn: from their held-out success and whether they collapsed."""
    monkeypatch.setattr(fall_back, "held_out_success", lambda method, rows: rows)

    def decide(success, collapsed, on_collapse="fall_back"):
        found, previous = [], {}
        for number in range(1, max(success) + 1):
            at = {"held_out": success.get(number), "held_out_before": success.get(number - 1)}
            ctx = SimpleNamespace(
                round=number, method=SimpleNamespace(on_collapse=on_collapse), rows=lambda kind, name, at=at: at[name]
            )
            previous, _ = guard_of(ctx, counted_anew(previous))(number in collapsed)
            found.append(previous)
        return {number: of[FALL_BACK] for number, of in enumerate(found, 1) if FALL_BACK in of}, found

    return decide


@pytest.mark.parametrize(
    ("success", "collapsed", "falls"),
    [
        ({0: 0.4, 1: 0.5, 2: 0.3, 3: 0.2}, {3}, {3: 1}),
        ({0: 0.9, 1: 0.5, 2: 0.3}, {2}, {2: 0}),
        ({0: 0.4, 2: 0.5, 4: 0.3, 5: None}, {5}, {5: 2}),  # evaluated every other round
        ({0: 0.4, 1: 0.5, 2: 0.5}, {2}, {}),  # of equals the later: nothing is better than it is
        ({0: None, 1: None, 2: None}, {2}, {}),
        ({0: 0.4, 1: 0.5, 2: 0.3, 3: 0.5, 4: 0.2, 5: 0.1}, {2, 5}, {2: 1}),  # nothing was better since
        ({0: 0.4, 1: 0.5, 2: 0.3, 3: 0.6, 4: 0.2, 5: 0.1}, {2, 5}, {2: 1, 5: 3}),
        ({0: 0.4, 1: 0.5, 2: 0.3}, set(), {}),
    ],
)
def test_it_falls_back_to_the_best_round_and_only_to_a_better_one_again(decided, success, collapsed, falls):
    assert decided(success, collapsed)[0] == falls
    assert decided(success, collapsed, "stop")[0] == {}
    last = decided(success, collapsed)[1][-1]
    assert last.get(FELL_BACK) == (list(falls.values())[-1] if falls else None)


def test_signs_are_counted_anew_after_a_fall_back_only():
    previous = {"falling_rounds": 3.0, "success_sum": 2.0, "success": 0.4}
    assert counted_anew(previous) == previous
    assert counted_anew({**previous, FALL_BACK: 0.0}) == {"success": 0.4, FALL_BACK: 0.0}


def test_the_factors_of_shared_gradients_outlive_a_fall_back(tmp_path):
    row = Weights(role="actor", round=1, updates=0, source="tiny", base_digest="b", checkpoint=None, weights_digest="w")
    written: dict[str, object] = {}
    recorded = {"decided": {FALL_BACK: 1.0}, "before": {"cispo_factor": 0.5, "loss": 2.0}}
    ctx = SimpleNamespace(
        method=None, round=4, run_path=tmp_path, services=SimpleNamespace(rank=0),
        stage=SimpleNamespace(name="update_actor", role="actor"), metrics=recorded.__getitem__,
        recipe=SimpleNamespace(resolve=lambda method, number, name, offset: (number, name)),
        rows_at=lambda kind, number, name: [row] if (number, name) == (1, "update_actor") else [],
        write=lambda kind, rows: written.update(weights=rows),
        write_metrics=lambda metrics, alarms: written.update(metrics=metrics),
    )  # fmt: skip
    fall_back._update(ctx, run=lambda ctx: pytest.fail("it trains nothing"))
    assert written == {
        "weights": [replace(row, round=4)],
        "metrics": {"samples": 0.0, "cispo_factor": 0.5, FELL_BACK: 1.0},
    }
