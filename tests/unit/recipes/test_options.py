"""Options of Complementary RL: what they add to a round, and which stages the next round waits for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from crl.config import Method
from crl.recipes.complementary.mechanisms import Adds, Mechanism, Sources, with_mechanisms
from crl.recipes.complementary.round import MECHANISMS
from crl.records import TRIAL, Metric, Row, Trial
from crl.rounds.recipe import recipe_of
from crl.rounds.stage import Read, Stage
from tests.unit.checks.example_rows import SHA
from tests.unit.recipes.played import CRITIC, experiment

OPTIONS: dict[str, Any] = {
    "method__recipe__trial": {}, "method__recipe__suppress": {}, "method__recipe__actor_critic": {},
    "method__recipe__self_distillation": {}, "method__recipe__context_distillation": {},
    "method__prompts__critic": CRITIC,
}  # fmt: skip


def first_track(**changes: Any) -> set[str]:
    method = experiment(method__overlap=True, **changes).method
    return {stage.name for stage in recipe_of(method).stages if not stage.second_track}


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ({}, {"plan", "collect", "advantages", "update_actor"}),
        (OPTIONS, {"plan", "critique", "collect", "teach", "advantages", "update_actor"}),
        ({"method__recipe__kind": "baseline"}, {"plan", "collect", "advantages", "update_actor"}),
        ({"method__recipe__kind": "experience_only"}, {"plan", "collect"}),
    ],
)
def test_the_next_round_waits_for_what_the_actor_plays_and_learns_with(changes: Any, stages: set[str]) -> None:
    assert first_track(**changes) == stages


class Counted(Mechanism):
    """An option with a stage of its own, which two others read and one of them does not exist."""

    key, after_rollouts = "recipe.counted", True

    def stages(self, method: Method, at: Sources) -> list[Stage]:
        return [Stage("count", run=lambda ctx: None, reads=(at.before,), writes=(Metric,))]

    def adds(self, method: Method, at: Sources) -> dict[str, Adds]:
        more = Adds((Read("count"),), (Trial,))
        return {"use": more, "absent": more}


def test_an_option_adds_a_stage_and_what_others_read_of_it() -> None:
    at: Any = Sources(Read("bank"), Read("bank", -1), lambda role, back: Read(role, -back), 1, lambda method, n: True)
    use = Stage("use", run=lambda ctx: None, reads=(Read("bank"),), writes=(Metric,))
    method: Any = None
    stages = with_mechanisms([use], [Counted(None)], method, at)
    assert [stage.name for stage in stages] == ["use", "count"] and stages[1].reads == (Read("bank", -1),)
    assert stages[0] == dataclasses.replace(use, reads=(Read("bank"), Read("count")), writes=(Metric, Trial))
    assert with_mechanisms([use], [], method, at) == [use]


def test_what_a_trial_does_not_admit_is_refused_whatever_a_person_says() -> None:
    row = Trial(
        operation_id="o1", round=1, family="lake", entry_id="e1", content_digest=SHA, generation_id="g1",
        tried_round=1, pairs=2, wins_with=0, wins_without=1, difference=-0.5, admitted=False,
        reason_code="failed_trial",
    )  # fmt: skip

    def rows(row_type: type[Row], name: str) -> list[Any]:
        assert (row_type, name) == (Trial, TRIAL)
        return [row, dataclasses.replace(row, operation_id="o2", admitted=True, reason_code="ok")]

    assert recipe_of(experiment(**OPTIONS).method).refused(rows) == {"o1": "failed_trial"}
    assert recipe_of(experiment().method).refused(rows) == {}


def test_every_option_says_where_its_settings_are_and_whether_rollouts_stay_valid() -> None:
    method = experiment(**OPTIONS, method__families__0__reward={"success": 1, "failure": -1}).method
    on = method.recipe.mechanisms(method)  # type: ignore[attr-defined]
    assert {type(each) for each in on} | {each for each in MECHANISMS if each.key.startswith("rollout.")} == {
        *MECHANISMS
    }
    after = method.recipe.after_rollouts(method)
    assert {each.key for each in MECHANISMS if each.key in after} == {"recipe.self_distillation", "recipe.trial"}
    assert all(isinstance(each.after_rollouts, bool) for each in MECHANISMS)
