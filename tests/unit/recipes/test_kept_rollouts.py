"""Rollouts that a fork takes over: not played again, and refused where the changed method would play others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config import Experiment
from crl.errors import BadInput
from crl.recipes import recipe_in
from crl.recipes.audit import problems_of
from crl.recipes.context import StageContext
from crl.recipes.fork import fork
from crl.recipes.kept_rollouts import _ALWAYS_AFTER, _within, rollout_stages
from crl.recipes.memory import MemoryWriter
from crl.records import Sample, rows_of
from crl.run.directory import RunDirectory, manifests
from crl.run.head import heads
from tests.unit.recipes.branched import changed, digests, experiment_of, finished, play, services_of, stages
from tests.unit.recipes.played import CRITIC
from tests.unit.recipes.tracing import settings_read

PLAYED = {
    "complementary": {"plan", "collect"},
    "overlap": {"plan", "collect"},
    "erl": {"plan", "collect", "reflect", "retry"},
}
ROUNDS = {"complementary": 2, "overlap": 3, "erl": 2}
FOLLOWS: dict[str, dict[str, Any]] = {
    "complementary": {"recipe__actor_objective__normalise": "mean", "evaluation__every": 0},
    "overlap": {"recipe__actor_objective__normalise": "mean", "evaluation__every": 0},
    "erl": {"recipe__objective__normalise": "mean", "evaluation__every": 0},
}
"""Changes of what follows the rollouts; without evaluation nothing else plays in the round."""


class Finished:
    """An environment whose games are over."""

    def reset_many(self, seeds: Any) -> Any:
        raise AssertionError("a game was begun again")

    def step_many(self, actions: Any) -> Any:
        raise AssertionError("a game was played again")


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    return {kind: finished(tmp_path_factory.mktemp(kind), last, kind) for kind, last in ROUNDS.items()}


@pytest.mark.parametrize("kind", ROUNDS)
def test_nothing_is_played_again_and_what_follows_is_made_by_the_changed_method(
    parents: dict[str, RunDirectory], tmp_path: Path, kind: str
) -> None:
    parent, last = parents[kind], ROUNDS[kind]
    made = experiment_of(parent, "child", changed(parent.method, **FOLLOWS[kind]))
    child = fork(parent, last - 1, made, tmp_path, keep_rollouts=True)
    services = services_of(made)
    services.environment = lambda family: Finished()  # type: ignore[method-assign]
    ran = play(child, last, services)
    assert PLAYED[kind].isdisjoint(stages(ran)) and {"credit", "update_actor"} <= stages(ran)
    before, after = digests(parent), digests(child)
    assert all(after[f"{last}/{stage}"] == before[f"{last}/{stage}"] for stage in PLAYED[kind])
    assert after[f"{last}/credit"] != before[f"{last}/credit"]
    credit = "advantages" if kind == "overlap" else "credit"
    old, new = (rows_of(Sample, run.read(last, credit, Sample)) for run in (parent, child))
    assert [row.advantage for row in old] != [row.advantage for row in new]
    assert {row.generation_id for row in new} and not problems_of(child, recipe_in(child))


def test_with_nothing_changed_it_is_the_parents_round(parents: dict[str, RunDirectory], tmp_path: Path) -> None:
    parent = parents["complementary"]
    child = fork(parent, 1, experiment_of(parent, "child"), tmp_path, keep_rollouts=True)
    assert play(child, 2)[0] == "2/distill"
    assert digests(child) == digests(parent) and heads(manifests(child.path)) == heads(manifests(parent.path))
    grandchild = fork(child, 1, experiment_of(child, "grandchild"), tmp_path, keep_rollouts=True)
    assert [each.kept for each in grandchild.lineage.ancestors] == [("0002/plan", "0002/collect")] * 2
    again = fork(child, 0, experiment_of(child, "again"), tmp_path)
    assert [(each.experiment, each.round, each.kept) for each in again.lineage.ancestors] == [
        ("played", 0, ()), ("child", 0, ())
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change", "found"),
    [
        ("complementary", {"families__0__environment__max_turns": 5}, "method.families.0.environment.max_turns"),
        ("complementary", {"rollout__group_size": 6}, "method.rollout.group_size"),
        ("complementary", {"prompts__actor__system": "Play."}, "method.prompts.actor.system"),
        ("complementary", {"roles__actor__sampling__temperature": 0.5}, "method.roles.actor.sampling.temperature"),
        ("complementary", {"recipe__retrieval__top_k": 2}, "method.recipe.retrieval.top_k"),
        ("complementary", {"recipe__guided_share": 1.0}, "method.recipe.guided_share"),
        ("complementary", {"seed": 2}, "method.seed"),
        ("complementary", {"recipe__kind": "static_online"}, "method.recipe.kind"),
        ("complementary", {"recipe__kind": "baseline"}, "method.recipe.kind"),
        ("complementary", {"recipe__self_distillation": {}}, "collect writes other rows"),
        ("complementary", {"recipe__actor_critic": {}, "prompts__critic": CRITIC}, "judge|reads other stages"),
        ("overlap", {"overlap": False}, "plan reads other stages"),
        ("erl", {"recipe__gate": 0.5}, "method.recipe.gate"),
        ("erl", {"recipe__revisions": 2}, "reflect2|would play in it too"),
        ("erl", {"roles__reflector__sampling__temperature": 0.5}, "method.roles.reflector.sampling.temperature"),
    ],
)
def test_a_change_that_the_rollouts_depend_on_is_refused(
    parents: dict[str, RunDirectory], tmp_path: Path, kind: str, change: dict[str, Any], found: str
) -> None:
    parent = parents[kind]
    made = experiment_of(parent, "child", changed(parent.method, **change))
    with pytest.raises(BadInput, match=found):
        fork(parent, ROUNDS[kind] - 1, made, tmp_path, keep_rollouts=True)
    assert not (tmp_path / "child").exists()


def test_what_only_the_extractor_needs_may_change(parents: dict[str, RunDirectory], tmp_path: Path) -> None:
    parent = parents["complementary"]
    method = changed(
        parent.method, roles__extractor__sampling__temperature=0.5, prompts__distill__system="Write.",
        roles__actor__optimizer__learning_rate=0.5, recipe__merge__every=0,
    )  # fmt: skip
    child = fork(parent, 1, experiment_of(parent, "child", method), tmp_path, keep_rollouts=True)
    assert stages(play(child, 2)).isdisjoint({"plan", "collect", "merge"})


def test_there_have_to_be_rollouts(parents: dict[str, RunDirectory], tmp_path: Path) -> None:
    parent = parents["complementary"]
    with pytest.raises(BadInput, match="no rollouts of round 3"):
        fork(parent, 2, experiment_of(parent, "child"), tmp_path, keep_rollouts=True)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("complementary", {"method__recipe__self_distillation": {}, "method__recipe__bank__duplicates": "near",
                           "method__recipe__actor_critic": {}, "method__prompts__critic": CRITIC}),
        ("erl", {}),
    ],
)  # fmt: skip
def test_stages_that_play_read_no_setting_that_may_change(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    """What recipes say of themselves in AFTER_ROLLOUTS, held against every attribute that their stages read."""
    run = finished(tmp_path, 1, kind, **settings)
    recipe, services = recipe_in(run), services_of(Experiment.model_construct(name="any", method=run.method))
    free = {*_ALWAYS_AFTER, *run.method.recipe.AFTER_ROLLOUTS}
    seen: dict[str, set[str]] = {}
    for stage in recipe.stages_of(run.method, 1):
        writer = MemoryWriter(tmp_path)
        context = StageContext(
            method=run.method, recipe=recipe, stage=stage, round_number=1, reader=run, writer=writer,
            services=services, progress=lambda figures: None,
        )  # fmt: skip
        with settings_read(run.method) as found:
            if stage.run is not None:
                stage.run(context)
            for part in range(stage.parts(context)) if stage.parts is not None else ():
                assert stage.run_part is not None
                stage.run_part(context, part)
        with settings_read(run.method) as of_recipe:  # which stages are due, as every resolved read asks
            recipe.stages_of(run.method, 1)
        seen[stage.name] = {key for key in found - of_recipe if any(_within(key, each) for each in free)}
    playing = {stage.name for stage in rollout_stages(recipe, run.method, 1)}
    assert {name: keys for name, keys in seen.items() if name in playing and keys} == {}
    assert seen["credit"] and seen["consolidate"], "what follows reads them, so the watch sees something"
