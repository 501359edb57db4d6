"""What can be chosen of DreamGym: curriculum, floors, sim to real, a teacher, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crl.envs.frozenlake import FrozenLakeEnvironment
from crl.errors import BadInput
from crl.protocols import Start
from crl.recipes.dreamgym.collect import rules_of
from crl.recipes.dreamgym.config import ValidateConfig
from crl.recipes.dreamgym.environment import DreamEnvironment, Rules
from crl.recipes.dreamgym.form import Predicted
from crl.recipes.dreamgym.rows import Annotation, DreamTask, Prediction, TaskValue, Transition
from crl.recipes.dreamgym.validate import alarms_of, truth_metrics
from crl.records import Episode, Generation, Metric, Task, Turn
from crl.run.directory import RunDirectory
from tests.recipes.dreamgym.dreamgym_played import dream, experiment, played
from tests.unit.recipes.played import Played

ALL_SYNTHETIC = {"method__recipe__synthetic_share": 1.0, "method__recipe__explore__every": 0}


def varying(run: Played, number: int) -> list[TaskValue]:
    """The tasks of a round whose groups vary, the most varying first."""
    values = [value for value in run.rows(TaskValue, "credit", number) if value.variance > 0]
    return sorted(values, key=lambda value: (-value.variance, value.group))


@pytest.mark.slow
def test_new_tasks_are_of_the_difficulty_of_what_varied_most_and_more(tmp_path: Path) -> None:
    run = played(tmp_path, 2, method__seed=2, method__recipe__curriculum__noise=0.0, **ALL_SYNTHETIC)
    found = 0
    for number in (2,):
        origins = run.rows(DreamTask, "plan", number)
        made = [row for row in origins if row.made == "graded"]
        parents = varying(run, number - 1)
        assert len(made) == (2 if parents else 0), "λ is a half of four groups"
        for place, row in enumerate(made):
            parent = parents[place % len(parents)]
            assert (row.parent_round, row.parent_group) == (number - 1, parent.group)
            assert row.parent_variance == parent.variance and parent.difficulty is not None
            assert row.aimed == pytest.approx(min(1.0, parent.difficulty + 0.2))
            found += 1
        for row in origins:
            lake = FrozenLakeEnvironment(run.method.families[0].environment)  # type: ignore[arg-type]
            [start] = lake.reset_many([row.environment_seed])
            moves = lake._slots[0].lake.moves
            assert row.difficulty == pytest.approx((moves or 0) / 3)
            tasks = [task for task in run.rows(Task, "plan", number) if task.group == row.group]
            assert {task.first_observation for task in tasks} == {start.observation}
    assert found > 0


@pytest.mark.slow
def test_a_task_may_be_as_hard_as_the_measured_capability_and_a_step(tmp_path: Path) -> None:
    run = played(
        tmp_path, 2, method__recipe__curriculum__rule="capability", method__recipe__curriculum__noise=0.0,
        method__recipe__curriculum__target=0.4, **ALL_SYNTHETIC,
    )  # fmt: skip
    values = run.rows(TaskValue, "credit", 1)
    reached = 0.0
    for limit in sorted({value.difficulty or 0.0 for value in values}):
        easier = [value for value in values if (value.difficulty or 0.0) <= limit]
        won = sum(value.success * value.rollouts for value in easier) / sum(value.rollouts for value in easier)
        reached = limit if won >= 0.4 else reached
    measured = {row.name: row.value for row in run.rows(Metric, "plan", 2)}
    assert measured == {"capability_lake": pytest.approx(reached)} and reached > 0
    made = [row for row in run.rows(DreamTask, "plan", 2) if row.made == "graded"]
    assert len(made) == 2 and all(row.aimed == pytest.approx(min(1.0, reached + 0.2)) for row in made)
    assert all(row.parent_group is None for row in made)


@pytest.mark.slow
def test_where_levels_have_no_grade_the_model_writes_the_start(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("crl.recipes.dreamgym.plan.Graded", type("Nothing", (), {}))
    run = played(tmp_path, 2, **ALL_SYNTHETIC)
    parents = varying(run, 1)
    assert parents
    made = [row for row in run.rows(DreamTask, "plan", 2) if row.generation_id is not None]
    records = {row.generation_id: row for row in run.rows(Generation, "plan", 2)}
    assert len(made) == 2 and all(row.difficulty is None for row in run.rows(DreamTask, "plan", 2))
    for place, row in enumerate(made):
        parent = parents[place % len(parents)]
        assert parent.first_observation in records[row.generation_id or ""].prompt
        tasks = [task for task in run.rows(Task, "plan", 2) if task.group == row.group]
        if row.reason_code == "ok":
            assert (row.made, row.synthetic, row.environment_seed) == ("written", True, parent.environment_seed)
            assert {task.first_observation for task in tasks} == {"G F\nF @"}
        else:
            assert row.reason_code == "the_same" and row.made == "drawn", "what it wrote is no new task"
    assert any(row.made == "written" for row in made)


def test_below_its_floor_nothing_is_played_in_the_model_and_the_record_says_why(tmp_path: Path) -> None:
    def wrong(read: str, generator: np.random.Generator) -> str:
        return "Observation:\nnothing\nOutcome: continues"

    with pytest.raises(BadInput, match=r"observation_agreement is 0\.00") as caught:
        played(tmp_path, 1, answer=wrong, method__recipe__truth__min_observation_accuracy=0.5)
    assert "fit.num_train_epochs" in caught.value.next_step
    [path] = [each for each in tmp_path.iterdir() if each.is_dir()]
    run = RunDirectory.open(path)
    assert "validate" in run.complete_stages(1) and "plan" not in run.complete_stages(1)
    alarms = run.read(1, "validate", Metric).to_pylist()
    assert [row["name"] for row in alarms if row["alarm"]] == ["observation_agreement"]
    from crl.recipes.dreamgym.report import truth_rows
    from crl.report.summary import summarize

    [shown] = truth_rows(summarize(path))
    assert shown["round"] == "1 !"


@pytest.mark.slow
def test_after_the_synthetic_rounds_all_is_real_and_nothing_more_is_explored(tmp_path: Path) -> None:
    run = played(tmp_path, 2, method__recipe__synthetic_rounds=1)
    for number, streams in ((1, {"synthetic", "real"}), (2, {"real"})):
        assert {row.stream for row in run.rows(Episode, "collect", number)} == streams
        stages = run.run.complete_stages(number)
        assert ("explore" in stages) == ("corpus" in stages) == ("validate" in stages) == (number == 1)
        credit = {row.name: row.value for row in run.rows(Metric, "credit", number)}
        assert credit["synthetic_share"] <= (0.75 if number == 1 else 0.0)
    assert not run.rows(Prediction, "collect", 2)
    health = {row.name: row.value for row in run.rows(Metric, "health", 2)}
    assert health["real_steps"] == len(run.rows(Turn, "collect", 2))


@pytest.mark.slow
def test_a_teacher_explains_each_transition_once(tmp_path: Path) -> None:
    prompt = {"system": "Why?", "first": "{observation} {action} {outcome}"}
    run = played(
        tmp_path, 2, method__recipe__fit__reasoning="teacher", method__prompts__annotate=prompt,
        method__roles__teacher={"weights": "actor", "sampling": {"temperature": 1.0, "max_new_tokens": 16}},
    )  # fmt: skip
    assert run.recipe.trains == {"actor", "experience"}
    seen: set[str] = set()
    for number in (1, 2):
        rows = {row.transition_id: row for row in run.rows(Annotation, "annotate", number)}
        assert not seen & rows.keys()
        seen |= rows.keys()
        assert {row.reason_code for row in rows.values()} == {"ok", "empty_text"}
        known = {row.transition_id: row.text for of in range(1, number + 1)
                 for row in run.rows(Annotation, "annotate", of)}  # fmt: skip
        for record in run.rows(Generation, "corpus", number):
            text = known[record.generation_id.split("fit-", 1)[1]]
            assert record.output.startswith("Observation:" if text is None else "Reasoning: because it is so\n")
    held_out = {row.transition_id for row in run.rows(Transition, "explore", 1) if row.split == "held_out"}
    assert held_out and not held_out & seen
    assert not any("because" in text for text in run.services.read("actor"))


@pytest.mark.slow
def test_waves_of_two_families_in_the_model_are_predicted_as_one_batch_and_as_waves_of_one(tmp_path: Path) -> None:
    family = experiment().method.families[0].model_dump(mode="json")
    shorter = {**family["environment"], "max_turns": 2}
    families = [{**family, "name": "lake"}, {**family, "name": "pond", "environment": shorter}]
    apart, mixed = (
        played(tmp_path / str(mix), 1, method__families=families, method__rollout__mixed_waves=mix)
        for mix in (False, True)
    )
    for row_type in (Episode, Turn, Transition, Prediction, Generation):
        found = [sorted(map(repr, run.rows(row_type, "collect", 1))) for run in (apart, mixed)]
        assert found[0] and found[0] == found[1], row_type
    synthetic = [row for row in mixed.rows(Episode, "collect", 1) if row.stream == "synthetic"]
    most = {name: max(row.turns for row in synthetic if row.family == name) for name in ("lake", "pond")}
    assert most == {"lake": 3, "pond": 2}, "each is as long as its family allows"


@pytest.mark.slow
def test_an_episode_of_the_model_is_no_longer_than_a_real_one(tmp_path: Path) -> None:
    def still(read: str, generator: np.random.Generator) -> str:
        if read.startswith("Vary."):
            return dream(read, generator)
        return "Observation:\n@ F\nF G\nOutcome: continues"

    run = played(tmp_path, 1, answer=still, **ALL_SYNTHETIC)
    episodes = run.rows(Episode, "collect", 1)
    assert {(row.turns, row.stop_reason, row.reward) for row in episodes} == {(3, "turn_limit", 0.0)}


LOST: list[tuple[list[tuple[str, float]], float]] = [
    ([("turn_limit", -1.0), ("turn_limit", -0.5), ("failure", -3.0), ("success", 1.0)], -1.0),
    ([("failure", -2.0), ("failure", -1.0), ("continues", 0.0), ("success", 1.0)], -2.0),
    ([("success", 1.0), ("continues", 0.0)], 0.0),
    ([], 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("ends", "expected"), LOST)
def test_what_a_limit_ends_is_worth_what_real_episodes_without_success_are(
    ends: list[tuple[str, float]], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [SimpleNamespace(turn=turn, outcome=outcome, reward=reward) for turn, (outcome, reward) in enumerate(ends)]
    monkeypatch.setattr("crl.recipes.dreamgym.collect.rows_of_items", lambda *of: rows)
    monkeypatch.setattr("crl.recipes.dreamgym.collect.items_of", lambda *of: [])
    ctx: Any = SimpleNamespace(method=experiment().method, round=1, table=lambda *of: None)
    found = rules_of(ctx, "lake")
    assert found.failure == expected
    assert found.rewards == (min([0.0, *(row.reward for row in rows)]), max([0.0, *(row.reward for row in rows)]))


def test_the_turn_limit_is_that_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crl.recipes.dreamgym.collect.rows_of_items", lambda *of: [])
    monkeypatch.setattr("crl.recipes.dreamgym.collect.items_of", lambda *of: [])
    changes = [{"round": 3, "environment": {"max_turns": 9}}]
    method = experiment(method__families__0__changes=changes).method
    before = method.families[0].turn_limit
    limits = []
    for number in (2, 3, 4):
        ctx: Any = SimpleNamespace(method=method, round=number, table=lambda *of: None)
        limits.append(rules_of(ctx, "lake").turns)
    assert limits == [before, 9, 9] and before != 9


def test_a_limit_that_the_model_forgot_costs_as_much_as_one_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """In all ways: by an action, by one that names nothing, or where the actor's context is full."""
    said = {
        "up": Predicted("on", ("up", "end"), "continues", 0.0),
        "end": Predicted("over", (), "turn_limit", -1.0),
    }  # fmt: skip
    model: Any = SimpleNamespace(
        predict=lambda asked: [SimpleNamespace(asked=each, predicted=said[each.situation.action], generation=None)
                               for each in asked]
    )  # fmt: skip
    monkeypatch.setattr("crl.recipes.dreamgym.environment.prediction_row", lambda *of: None)
    monkeypatch.setattr(DreamEnvironment, "_row", lambda *of: None)
    tasks: Any = [
        SimpleNamespace(episode_id=f"e{slot}", family="lake", goal="", first_observation="off", environment_seed=slot)
        for slot in range(3)
    ]
    dream = DreamEnvironment(
        model, tasks, [Start("", "off", ("up", "end"))] * 3, neighbors=lambda family, asked: [[] for _ in asked],
        rules={"lake": Rules(2, (-1.0, 1.0), -1.0)}, history=0, round_number=1,
    )  # fmt: skip
    dream.reset_many([0, 1, 2])
    for first in dream.step_many({0: "up", 1: "up", 2: None}).values():
        assert (first.done, first.reward) == (False, -1.0), "the reward of an episode that has no room for more"
    last = dream.step_many({0: "up", 1: "end", 2: None})
    assert {(step.done, step.stop_reason, step.reward) for step in last.values()} == {(True, "turn_limit", -1.0)}


@pytest.mark.slow
def test_a_reward_that_no_real_episode_had_ends_the_episode(tmp_path: Path) -> None:
    def rich(read: str, generator: np.random.Generator) -> str:
        return "Observation:\n@ F\nF G\nOutcome: success, reward 7"

    run = played(tmp_path, 1, answer=rich, **ALL_SYNTHETIC)
    codes = {row.reason_code for row in run.rows(Prediction, "collect", 1)}
    assert codes == {"reward_out_of_range"}
    assert {row.error for row in run.rows(Episode, "collect", 1)} <= {"prediction_reward_out_of_range", None}


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("method__rollout__environment_lag", 1, "environment_lag"),
        ("method__recipe__synthetic_share", 0.2, "0.2 of any task family's groups is none"),
        ("method__recipe__curriculum__share", 0.2, r"0.2 of the \d synthetic groups of a task family is none"),
        ("method__roles__experience", {"weights": "actor"}, "experience.weights"),
        ("method__families__0__train_seeds__count", 1, "train_seeds"),
    ],
)
def test_what_would_do_nothing_is_refused(key: str, value: Any, where: str) -> None:
    with pytest.raises(BadInput, match=where):
        experiment(**{key: value})


@pytest.mark.slow
def test_metrics_of_a_model_are_not_those_of_the_model_before(tmp_path: Path, monkeypatch: Any) -> None:
    """A metric that the newer validation has not is unknown: that of the fit before is of other weights."""

    def metrics(rows: list[Prediction], true: Any, gamma: float, seen: list[bool]) -> dict[str, float]:
        found = truth_metrics(rows, true, gamma, seen)
        found.pop("ending_accuracy", None)
        return {**found, "ending_accuracy": 0.25} if rows and rows[0].round == 1 else found

    monkeypatch.setattr("crl.recipes.dreamgym.validate.truth_metrics", metrics)
    run = played(tmp_path, 3, method__recipe__explore__every=2)
    known = [{row.name: row.value for row in run.rows(Metric, "health", number)} for number in (1, 2, 3)]
    assert [each.get("ending_accuracy") for each in known] == [0.25, 0.25, None], "round 2 has no fit"
    assert all("observation_agreement" in each for each in known)


def test_a_floor_needs_steps_to_hold_the_model_to() -> None:
    metrics = truth_metrics([], [], 0.9, [])
    assert metrics == {"held_out": 0.0}
    assert list(alarms_of(metrics, ValidateConfig())) == ["held_out"]
    assert (
        alarms_of(
            metrics, ValidateConfig(min_observation_accuracy=None, min_reward_accuracy=None, min_ending_accuracy=None)
        )
        == {}
    )
    found = {"held_out": 4.0, "observation_agreement": 0.5, "reward_accuracy": 0.75}
    assert list(alarms_of(found, ValidateConfig(min_observation_accuracy=0.5, min_reward_accuracy=0.8))) == [
        "reward_accuracy"
    ]
