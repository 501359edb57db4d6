"""What a round of DreamGym says about its data and its tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crl.protocols import Start, Step
from crl.recipes.dreamgym.rows import Transition
from crl.records import Episode, Metric, Turn
from tests.unit.recipes.dreamgym_played import DreamServices, experiment
from tests.unit.recipes.played import Played


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
    made = experiment(method__recipe__mix=0.0)
    lake = Played(tmp_path / "lake", made, 1, DreamServices(made))
    assert "blank_observations" not in metrics(lake, 1)
    made = experiment(method__recipe__mix=0.5, method__recipe__truth__observation_floor=None)
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
