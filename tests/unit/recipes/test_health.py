"""Stage `health`: from rows alone, seen by nothing that trains, and owed by a run that was ended before it."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest

from crl.config import RECIPES, ActorCriticConfig, FamilyConfig, SelfDistillationConfig, SuppressConfig, TrialConfig
from crl.engine.driver import Driver
from crl.envs import make_environment
from crl.envs.realms import RealmsConfig, experience_text, hidden_rule
from crl.records import Metric, rows_of
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from tests.tiny_run import ROUNDS, experiment
from tests.unit.report.scripted import Ask, ScriptedRun, Services
from tests.unit.report.scripted import experiment as scripted_experiment

ROOT = Path(__file__).parents[3]
SWITCHES: dict[str, Any] = {
    "actor_critic": ActorCriticConfig(), "self_distillation": SelfDistillationConfig(), "approve_bank": True,
    "trial": TrialConfig(), "suppress": SuppressConfig(),
}  # fmt: skip


def methods():
    """Every recipe, with every set of switches that adds stages or reads."""
    base = experiment().method
    for name in ("complementary", "baseline", "static_online", "experience_only", "offline_bank"):
        for count in range(len(SWITCHES) + 1):
            for chosen in itertools.combinations(SWITCHES, count):
                changes = {switch: SWITCHES[switch] for switch in chosen}
                config = RECIPES.validate({**base.recipe.model_dump(), **changes, "kind": name})
                yield base.model_copy(update={"recipe": config})


# -- what may see it ------------------------------------------------------------------------------------------------


def test_no_other_stage_of_any_recipe_reads_it():
    seen = 0
    for method in methods():
        recipe = recipe_of(method)
        stages = (*recipe.preparation, *recipe.stages)
        assert "health" in {stage.name for stage in stages}, f"recipe {recipe.name}"
        assert "health" not in {*recipe.initial, *recipe.initial.values()}
        for stage in stages:
            assert stage.name == "health" or "health" not in {each.stage for each in stage.reads}, stage.name
            seen += 1
    assert seen > 100


def test_the_reads_behind_an_update_never_come_to_it():
    for method in methods():
        recipe = recipe_of(method)
        reads = {stage.name: {each.stage for each in stage.reads} for stage in (*recipe.preparation, *recipe.stages)}
        behind = {stage.name for stage in (*recipe.preparation, *recipe.stages) if stage.role is not None}
        while (more := behind | {name for each in behind for name in reads.get(each, ())}) != behind:
            behind = more
        assert {"credit", "plan", "collect"} <= behind and "health" not in behind, recipe.name


def test_only_this_stage_and_the_metrics_of_a_study_ask_what_is_true():
    """The truth is asked of an environment by one call in two files, for metrics that nothing trained reads."""
    asking = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "crl").rglob("*.py"))
        if "truth" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr == "truth" and isinstance(node.ctx, ast.Load)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("experience", "self"))
        and not (isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "config_of")
    ]  # fmt: skip
    assert asking == ["crl/lab/study/change.py", "crl/recipes/complementary/health.py"]


# -- what it says ---------------------------------------------------------------------------------------------------


class Realms(Services):
    """The services of a scripted run, with the environments of its method."""

    def __init__(self, families: list[FamilyConfig]) -> None:
        super().__init__()
        self._families = {family.name: family for family in families}

    def environment(self, family: str, round_number: int) -> Any:
        return make_environment(self._families[family])


def metrics_of(run: RunDirectory, round_number: int) -> dict[str, float]:
    return {row.name: row.value for row in rows_of(Metric, run.read(round_number, "health", Metric))}


def test_truth_and_coverage_of_two_realms(tmp_path):
    worlds = [RealmsConfig(realm=realm, world=3) for realm in range(2)]
    families = [FamilyConfig(name=f"r{world.realm}", environment=world) for world in worlds]
    made = scripted_experiment(method__recipe__kind="experience_only", method__recipe__merge__every=0)
    made = made.model_copy(update={"method": made.method.model_copy(update={"families": families})})
    right = [experience_text(*hidden_rule(world)) for world in worlds]
    key, goal = hidden_rule(worlds[0])
    with ScriptedRun(tmp_path, made, services=Realms(families)) as scripted:
        scripted.initialize()

        def play(*asks: Ask, **more: Any) -> tuple[list[str], dict[str, float]]:
            ids = scripted.play(*asks, family="r0", **more)
            scripted._stage(scripted.newest, "health")
            return ids, metrics_of(scripted.run, scripted.newest)

        (good, *_), first = play(
            Ask("add", right[0], family="r0"),
            Ask("add", experience_text(goal, key), family="r0"),
            Ask("add", "go on", family="r1", cut=True),
            Ask("return"),
        )
        _, second = play(
            Ask("add", right[1], family="r1"), Ask("add", right[1], family="r1"), guided=[(good, True), (good, False)]
        )
    assert first["experiences_new"] == 3 and first["experiences_distinct"] == 1.0
    assert first["experiences_true_new"] == first["experiences_true"] == pytest.approx(1 / 3)
    assert first["experiences_claiming"] == pytest.approx(2 / 3), "`go on` claims nothing"
    assert (first["families_with_experience"], first["families_with_true_experience"]) == (1.0, 0.5)
    assert first["experiences_cut_by_embedder"] == pytest.approx(1 / 3) and second["experiences_cut_by_embedder"] == 0.0
    assert first["share_return"] == first["share_without_experience"] == 0.25
    assert "experiences_true_used" not in first, "nothing was shown"
    assert second["experiences_true_new"] == 1.0 and second["experiences_distinct"] == 0.5
    assert second["experiences_true"] == 0.5, "the bank refuses the same text twice: 2 of 4"
    assert (second["families_with_experience"], second["families_with_true_experience"]) == (1.0, 1.0)
    assert second["experiences_true_used"] == 0.0, "what was shown is judged, not what the bank holds by that name"
    assert (second["used_age_mean"], second["used_age_max"]) == (1.0, 1.0)
    assert (second["bank_age_mean"], second["bank_age_max"]) == (1.0, 1.0) and "bank_age_mean" not in first
    assert second["success_guided_minus_free"] == 0.0 and second["success"] == 0.5


def test_the_metrics_of_a_real_round_are_those_of_its_rows(finished):
    import duckdb

    from crl.report.views import reading

    found = {number: metrics_of(RunDirectory.open(finished), number) for number in (1, 2)}
    with reading(finished, None) as connection:
        assert isinstance(connection, duckdb.DuckDBPyConnection)

        def one(sql: str) -> Any:
            return connection.execute(sql).fetchone()

        for number, metrics in found.items():
            assert one(
                "SELECT avg((verdict = 'malformed')::INT), avg((verdict = 'add')::INT) FROM distillations "
                f"WHERE round = {number} AND stage IN ('distill', 'merge')"
            ) == pytest.approx((metrics["share_malformed"], metrics["share_add"]))
            texts = one(
                "SELECT count(*), count(DISTINCT (family, text)) / count(*) FROM operations WHERE "
                f"round = {number} AND stage IN ('distill', 'merge') AND kind IN ('add', 'update', 'merge')"
            )
            assert texts == pytest.approx((metrics["experiences_new"], metrics["experiences_distinct"]))
            assert one(f"SELECT avg(success::INT) FROM episodes WHERE round = {number} AND stage = 'collect'") == (
                pytest.approx(metrics["success"]),
            )
            turns = one(
                f"SELECT avg(valid::INT), avg((stop_reason = 'length')::INT) FROM turns WHERE round = {number} "
                "AND stage = 'collect'"
            )
            assert turns == pytest.approx((metrics["turns_valid"], metrics["turns_cut"])), "none of them broke"
            cut = one(
                f"SELECT avg((stop_reason = 'length')::INT) FROM generations WHERE round = {number} "
                "AND stage IN ('distill', 'merge') AND stop_reason <> 'context_limit'"
            )
            assert cut == pytest.approx((metrics["outputs_cut"],))
            for role in ("actor", "extractor"):
                tokens = one(
                    "SELECT sum(len(token_ids)) - sum(list_sum(loss_mask)), sum(list_sum(loss_mask)) FROM generations "
                    f"WHERE round = {number} AND role = '{role}' AND stage IN ('collect', 'distill', 'merge')"
                )
                assert tokens == (metrics[f"{role}_tokens_read"], metrics[f"{role}_tokens_sampled"])
            read = one(
                "SELECT sum(turns_shown) / sum(turns), avg((turns_shown < turns)::INT) FROM distillations "
                f"WHERE round = {number} AND stage = 'distill'"
            )
            assert read == pytest.approx((metrics["turns_shown"], metrics["prompts_cut"]))
            assert metrics["collapsed"] == 0 and "experiences_true" not in metrics, "FrozenLake knows no truth"
        batch = one("SELECT avg(reward), stddev_pop(reward), avg(round - split_part(source, '/', 1)::INT) FROM samples "
                    "WHERE round = 2 AND stage = 'credit' AND role = 'extractor'")  # fmt: skip
        names = ("extractor_reward_mean", "extractor_reward_std", "trained_age_mean")
        assert batch == pytest.approx(tuple(found[2][name] for name in names))
        clipped = one("SELECT sum(value) FROM metrics WHERE round = 2 AND stage = 'update_actor' AND name LIKE 'clip%'")
        assert clipped == pytest.approx((found[2]["actor_clipped"],))


# -- a run that was ended before it -----------------------------------------------------------------------------------


def test_a_run_that_was_ended_before_the_stage_still_owes_it(copied):
    import shutil

    run = RunDirectory.open(copied)
    for stage in ("health", "evaluate"):
        shutil.rmtree(run.stage_path(ROUNDS, stage), ignore_errors=True)
    with Driver(run, experiment().runtime) as driver:
        assert driver.next_round() == ROUNDS
        assert "health" in driver.stages(ROUNDS)
