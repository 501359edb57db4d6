"""Recipes as lists of stages: which are due, and what a read at an offset refers to."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.rounds.context import StageContext
from crl.rounds.recipe import recipe_of

TINY = Path(__file__).parents[3] / "conf" / "tiny.yaml"


def method(**overrides):
    return load_experiment(TINY, {f"method.{key.replace('__', '.')}": value for key, value in overrides.items()}).method


def names(chosen, number):
    return [stage.name for stage in recipe_of(chosen).stages_of(chosen, number)]


def test_a_round_of_complementary_rl():
    chosen = method()
    assert names(chosen, 0) == [
        "initialize", "evaluate_base", "warm_start_actor", "warm_start_extractor", "evaluate",
    ]  # fmt: skip
    assert names(chosen, 1) == [
        "plan", "collect", "distill", "consolidate", "credit", "update_actor", "update_extractor", "health", "evaluate",
    ]  # fmt: skip
    assert "merge" in names(chosen, 2), "conf/tiny.yaml merges every second round"


@pytest.mark.parametrize(
    ("recipe", "missing", "trains"),
    [
        ("baseline", {"distill", "consolidate", "update_extractor"}, {"actor"}),
        ("static_online", {"update_extractor"}, {"actor"}),
        ("experience_only", {"update_actor"}, {"extractor"}),
    ],
)
def test_baselines_leave_stages_out(recipe, missing, trains):
    full, chosen = method(), method(recipe__kind=recipe)
    assert set(names(full, 1)) - set(names(chosen, 1)) == missing
    assert recipe_of(chosen).trains == trains
    assert recipe_of(chosen).has_bank == (recipe != "baseline")


def test_warm_up_rounds_train_nothing_unless_there_is_no_bank_to_warm_up():
    bank, without = (method(recipe__kind=kind, recipe__warm_up_rounds=2) for kind in ("complementary", "baseline"))
    assert [bank.recipe.trains("actor", number) for number in (1, 2, 3)] == [False, False, True]
    assert all(without.recipe.trains("actor", number) for number in (1, 2, 3))


def test_an_offline_bank_is_built_in_the_warm_up_and_never_changed_after_it():
    chosen = method(recipe__kind="offline_bank", recipe__warm_up_rounds=2, recipe__approve_bank=True)
    recipe = recipe_of(chosen)
    online = ["plan", "collect", "distill", "approve", "consolidate", "credit", "update_actor", "health", "evaluate"]
    assert names(chosen, 1) == online
    assert names(chosen, 2) == [*online[:3], "merge", *online[3:]], "conf/tiny.yaml merges every second round"
    offline = ["plan", "collect", "consolidate", "credit", "update_actor", "health", "evaluate"]
    assert names(chosen, 3) == names(chosen, 4) == offline
    assert recipe.trains == {"actor"} and recipe.has_bank
    assert recipe.resolve(chosen, 4, "consolidate", -1) == (3, "consolidate")
    assert recipe.resolve(chosen, 3, "update_extractor", -1) == (0, "warm_start_extractor")


def test_evaluation_may_be_rare_or_never():
    assert [number for number in range(7) if "evaluate" in names(method(evaluation__every=3), number)] == [0, 3, 6]
    never = method(evaluation__every=0)
    assert all("evaluate" not in names(never, number) for number in range(4))
    assert "evaluate_base" not in names(never, 0)


def test_reads_are_rules_of_round_numbers():
    chosen = method()
    recipe = recipe_of(chosen)
    assert recipe.resolve(chosen, 7, "consolidate", -1) == (6, "consolidate")
    assert recipe.resolve(chosen, 1, "consolidate", -1) == (0, "initialize")
    assert recipe.resolve(chosen, 1, "update_actor", -1) == (0, "warm_start_actor")
    assert recipe.resolve(chosen, 1, "plan", -1) is None, "round 0 plans nothing"
    assert recipe.resolve(chosen, 0, "consolidate", -1) is None, "there is no round before round 0"
    assert recipe.resolve(chosen, 3, "merge", 0) is None, "no merge is due in round 3"
    assert recipe.resolve(chosen, 2, "merge", 0) == (2, "merge")


def test_a_role_that_is_not_trained_keeps_its_first_weights():
    static = method(recipe__kind="static_online", recipe__warm_start=None)
    assert recipe_of(static).resolve(static, 9, "update_extractor", -1) == (0, "initialize")
    baseline = method(recipe__kind="baseline")
    assert recipe_of(baseline).resolve(baseline, 9, "consolidate", -1) == (0, "initialize")


def test_a_stage_that_is_not_there_is_named_with_those_that_are():
    chosen = method()
    with pytest.raises(BadInput, match="no stage 'colect' in round 1") as caught:
        recipe_of(chosen).stage(chosen, 1, "colect")
    assert "collect" in str(caught.value)


def test_every_stage_writes_its_types_once_and_reads_only_what_exists():
    chosen = method()
    recipe = recipe_of(chosen)
    known = {stage.name for stage in (*recipe.preparation, *recipe.stages)}
    for stage in (*recipe.preparation, *recipe.stages):
        assert len(set(stage.writes)) == len(stage.writes)
        assert {read.stage for read in stage.reads} <= known
        assert all(read.offset <= 0 for read in stage.reads)


def test_an_undeclared_read_is_refused():
    chosen = method()
    recipe = recipe_of(chosen)
    context = StageContext(
        method=chosen,
        recipe=recipe,
        stage=recipe.stage(chosen, 1, "plan"),
        round_number=1,
        reader=None,
        writer=None,
        services=None,
        progress=lambda metrics: None,
    )
    from crl.records import Episode

    with pytest.raises(AssertionError, match="without declaring"):
        context.rows(Episode, "collect")
