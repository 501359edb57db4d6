"""Held-out steps that the experience model could copy, those that it could not, and which of them floors are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.errors import BadInput
from crl.recipes.dreamgym.config import ValidateConfig
from crl.recipes.dreamgym.report import truth_rows
from crl.recipes.dreamgym.rows import PoolItem, Prediction, Transition
from crl.recipes.dreamgym.validate import alarms_of
from crl.records import Episode, Metric
from crl.report.summary import summarize
from crl.run.directory import RunDirectory
from tests.recipes.dreamgym.dreamgym_played import cells_of, dream, played
from tests.unit.recipes.played import Played

MOST_HELD_OUT: dict[str, Any] = {
    "method__recipe__explore__first": 30, "method__recipe__explore__further": 30,
    "method__recipe__explore__held_out": 0.8, "method__recipe__truth__max_transitions": 50,
}  # fmt: skip


def never_ends(read: str, generator: np.random.Generator) -> str:
    """Right about every cell, and no episode is ever over."""
    return dream(read, generator).replace("Outcome: success, reward 1", "Outcome: continues")


def metrics(run: Played, number: int, stage: str) -> dict[str, float]:
    return {row.name: row.value for row in run.rows(Metric, stage, number)}


def share(right: list[bool | None]) -> Any:
    return pytest.approx(sum(bool(each) for each in right) / len(right))


@pytest.mark.slow
def test_unseen_are_the_held_out_steps_whose_state_and_action_were_never_in_the_store(tmp_path: Path) -> None:
    run = played(tmp_path, 2, method__recipe__store__real=9, **MOST_HELD_OUT)
    steps: dict[str, Transition] = {}
    stored: list[set[str]] = [set()]
    for number in (1, 2):
        earlier = run.rows(Transition, "collect", number - 1) if number > 1 else []
        steps |= {row.transition_id: row for row in (*earlier, *run.rows(Transition, "explore", number))}
        stored.append({item.transition_id for item in run.rows(PoolItem, "gather", number) if item.pool == "real"})
    assert stored[1] - stored[2], "some of what was fitted has left the store"
    for number, stage, rounds in ((1, "validate", (1,)), (2, "validate", (1, 2)), (2, "drift", (1,))):
        known = {(steps[name].observation, steps[name].action) for each in rounds for name in stored[each]}
        rows = run.rows(Prediction, stage, number)
        true = [steps[row.held_to or ""] for row in rows]
        new = [
            (row, step) for row, step in zip(rows, true, strict=True) if (step.observation, step.action) not in known
        ]
        assert 10 <= len(new) < len(rows), "both kinds"
        found = metrics(run, number, stage)
        found = {name.removeprefix("drift_"): value for name, value in found.items()}
        assert found["seen_share"] == pytest.approx((len(rows) - len(new)) / len(rows))
        assert found["unseen_observation_agreement"] == share([row.observation_agrees for row, _ in new])
        assert found["unseen_reward_accuracy"] == share([row.outcome_agrees for row, _ in new])
        assert found["observation_agreement"] == share([row.observation_agrees for row in rows])
        won = [row.outcome_agrees for row, step in zip(rows, true, strict=True) if step.outcome == "success"]
        assert won and found["ending_accuracy"] == share(won), "the turn limit ends others, and is no outcome to learn"
        new_won = [row.outcome_agrees for row, step in new if step.outcome == "success"]
        assert ("unseen_ending_accuracy" in found) == (len(new_won) >= 10)
        if stage == "validate":
            [shown] = [row for row in truth_rows(summarize(run.run.path)) if row["round"] == str(number)]
            assert shown["seen"] == f"{100 * found['seen_share']:.3g} %"
            assert shown["unseen next state"] == f"{100 * found['unseen_observation_agreement']:.3g} %"


@pytest.mark.slow
def test_a_model_that_never_ends_an_episode_is_stopped_by_the_floor_of_endings_alone(tmp_path: Path) -> None:
    floors = {"method__recipe__truth__min_observation_accuracy": 0.5, "method__recipe__truth__min_reward_accuracy": 0.5}
    enough = {
        **MOST_HELD_OUT, "method__recipe__explore__first": 150, "method__recipe__store__held_out": 400,
        "method__recipe__truth__max_transitions": 400,
    }  # fmt: skip
    with pytest.raises(BadInput, match=r"not true enough to play in: (unseen_)?ending_accuracy is 0\.00\n") as caught:
        played(tmp_path, 1, answer=never_ends, method__recipe__truth__min_ending_accuracy=0.25, **floors, **enough)
    assert "below the minimum of 0.25 on " in (caught.value.expected or "")
    [path] = [each for each in tmp_path.iterdir() if each.is_dir()]
    run = RunDirectory.open(path)
    assert "plan" not in run.complete_stages(1)
    alarms = {row["name"]: row["alarm"] for row in run.read(1, "validate", Metric).to_pylist()}
    assert [name.removeprefix("unseen_") for name, alarm in alarms.items() if alarm] == ["ending_accuracy"]


@pytest.mark.slow
def test_without_the_floor_it_is_said_that_such_a_model_teaches_nothing(tmp_path: Path) -> None:
    free = {f"method__recipe__truth__min_{name}_accuracy": None for name in ("observation", "reward", "ending")}

    def stays(read: str, generator: np.random.Generator) -> str:
        """The goal is never reached: a step toward it changes nothing."""
        said = dream(read, generator)
        here = cells_of(read)[1]
        return f"Reasoning: so\nObservation:\n{here}\nOutcome: continues" if "Outcome: success" in said else said

    run = played(tmp_path, 1, answer=stays, **free, **MOST_HELD_OUT)
    synthetic = [row for row in run.rows(Episode, "collect", 1) if row.stream == "synthetic"]
    assert len(synthetic) >= 8 and {row.reward for row in synthetic} == {0.0}
    [summary] = [each for each in summarize(run.run.path) if each.round == 1]
    assert [
        alarm
        for alarm in summary.alarms
        if "every episode in the experience model" in alarm and "success_synthetic 0)" in alarm
    ]


def test_a_floor_is_for_the_unseen_steps_where_they_have_a_metric() -> None:
    config = ValidateConfig(min_observation_accuracy=0.5, min_reward_accuracy=0.8, min_ending_accuracy=0.5)
    copied = {
        "held_out": 50.0, "observation_agreement": 0.9, "reward_accuracy": 0.9, "ending_accuracy": 0.9, "endings": 12.0,
    }  # fmt: skip
    assert alarms_of(copied, config) == {}, "too few are unseen: all count"
    alarms = alarms_of({**copied, "unseen_observation_agreement": 0.4, "unseen_ending_accuracy": 0.1}, config)
    assert list(alarms) == ["unseen_observation_agreement", "unseen_ending_accuracy"]
    assert alarms["unseen_ending_accuracy"].startswith("below the minimum of 0.5 on unseen held-out steps")
    alarms = alarms_of({**copied, "reward_accuracy": 0.7, "unseen_observation_agreement": 0.6}, config)
    assert list(alarms) == ["reward_accuracy"] and "on all held-out steps" in alarms["reward_accuracy"]
    assert list(alarms_of({**copied, "ending_accuracy": 0.4}, config)) == ["ending_accuracy"]
    assert alarms_of({**copied, "ending_accuracy": 0.0, "endings": 9.0}, config) == {}, "so few may be wrong by chance"
    without_endings = {name: value for name, value in copied.items() if name != "ending_accuracy"}
    assert alarms_of(without_endings, config) == {}, "none of the steps ends its episode"
