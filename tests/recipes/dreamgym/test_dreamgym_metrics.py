"""What a round of DreamGym says about its data and its tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from crl.protocols import Start, Step
from crl.recipes.dreamgym.rows import Transition
from crl.records import Episode, Generation, Metric, Turn
from tests.recipes.dreamgym.dreamgym_played import DreamServices, experiment, played
from tests.unit.recipes.played import Played

pytestmark = pytest.mark.slow


class Blank:
    """A lake that shows nothing once a game is over, nor where a step led up."""

    def __init__(self, lake: Any) -> None:
        self._lake = lake

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        return list(self._lake.reset_many(seeds))

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        return {
            slot: dataclasses.replace(step, observation=" ") if step.done or actions[slot] == "up" else step
            for slot, step in self._lake.step_many(actions).items()
        }

    def oracle(self, slot: int) -> None:
        return None


class BlankServices(DreamServices):
    def environment(self, family: str, round_number: int) -> Any:
        return Blank(super().environment(family, round_number))


def metrics(run: Played, number: int) -> dict[str, Metric]:
    return {row.name: row for row in run.rows(Metric, "health", number)}


def test_steps_to_a_blank_observation_are_counted(tmp_path: Path) -> None:
    made = experiment(method__recipe__synthetic_share=0.0)
    lake = Played(tmp_path / "lake", made, 1, DreamServices(made))
    assert "blank_observations" not in metrics(lake, 1)
    made = experiment(method__recipe__synthetic_share=0.5, method__recipe__truth__min_observation_accuracy=None)
    run = Played(tmp_path / "blank", made, 1, BlankServices(made))
    played = [row for stage in ("explore", "collect") for row in run.rows(Episode, stage, 1)]
    real = {row.episode_id for row in played if row.stream != "synthetic"}
    turns = [row for stage in ("explore", "collect") for row in run.rows(Turn, stage, 1)]
    taken = sum(row.episode_id in real and row.action is not None for row in turns)
    kept = [row for stage in ("explore", "collect") for row in run.rows(Transition, stage, 1) if row.source == "real"]
    endings = sum(row.stop_reason in ("success", "failure") for row in played if row.episode_id in real)
    found = metrics(run, 1)["blank_observations"]
    assert found.value == taken - len(kept) > endings > 0 and not any(row.outcome == "success" for row in kept)
    assert found.alarm is not None and f"{found.value:.0f} real steps, {endings} of them endings" in found.alarm


TAUGHT: dict[str, Any] = {
    "method__recipe__fit__reasoning": "teacher",
    "method__roles__teacher": {"weights": "actor", "sampling": {"temperature": 1.0, "max_new_tokens": 16}},
    "method__prompts__annotate": {"system": "Why?", "first": "{observation} {action} {outcome}"},
}


def test_the_tokens_of_a_round_are_counted_each_once_whatever_stage_took_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crl.recipes.dreamgym.plan.Graded", type("Nothing", (), {}))  # the model writes new tasks
    run = played(tmp_path, 2, method__recipe__explore__every=1, **TAUGHT)
    asked = {"drift", "annotate", "validate", "plan", "collect"}
    for number in (1, 2):
        found = {name: row.value for name, row in metrics(run, number).items()}
        episodes = run.rows(Episode, "collect", number)
        # The first exploration is at random: nobody read or sampled it.
        episodes += run.rows(Episode, "explore", number) if number == 2 else []
        assert found["actor_tokens_read"] == sum(row.tokens_read for row in episodes)
        assert found["actor_tokens_sampled"] == sum(row.tokens_sampled for row in episodes)
        records = [
            row
            for stage in asked & set(run.run.complete_stages(number))
            for row in run.rows(Generation, stage, number)
        ]  # fmt: skip
        for role in ("experience", "teacher"):
            own = [row for row in records if row.role == role]
            assert found[f"{role}_tokens_sampled"] == sum(sum(row.loss_mask) for row in own) > 0
            assert found[f"{role}_tokens_read"] == sum(row.loss_mask.count(0) for row in own) > 0
    kinds = {row.kind for stage in asked for row in run.rows(Generation, stage, 2)}
    assert kinds == {"episode", "predict", "vary", "annotate"}
