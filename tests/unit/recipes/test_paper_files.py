"""The paper's single tasks (`conf/paper`): the settings of MiniHack Room on other tasks, ready to be played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.config.load import load_experiment
from crl.envs import check_environment
from crl.policies import resolve_model
from crl.recipes import recipe_of
from crl.recipes.audit import problems_of
from crl.recipes.complementary.ready import check_placeholders
from crl.records import Episode, Evaluation
from crl.run.verify import verify
from tests.learning.harness import rows, train
from tests.unit.extractor.test_thinking import write_thinking
from tests.unit.policies.test_model_embedder import write_embedder
from tests.unit.recipes.test_paper_method import CUT, PAPER, SMALL

TASKS = {
    "minihack_maze": ("minihack", "MiniHack-MazeWalk-9x9-v0"),
    "minihack_keyroom": ("minihack", "MiniHack-KeyRoom-Dark-S5-v0"),
    "minihack_river": ("minihack", "MiniHack-River-Narrow-v0"),
    "sokoban": ("sokoban", None),
}


def read(name: str) -> Any:
    return yaml.safe_load(PAPER.with_name(f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TASKS)
def test_only_the_task_differs_from_the_room(name: str) -> None:
    room, other = read("minihack_room"), read(name)
    (family,), (of_room,) = other["method"].pop("families"), room["method"].pop("families")
    assert other.pop("name") != room.pop("name") and other == room
    assert family.pop("name") != of_room.pop("name")
    environment, of_room_environment = family.pop("environment"), of_room.pop("environment")
    assert family == of_room, "16 groups, 128 held-out levels"
    assert (environment["kind"], environment.get("id")) == TASKS[name]
    assert environment["max_turns"] == of_room_environment["max_turns"] == 30
    assert environment.get("hints") is (False if TASKS[name][1] else None), "a legend, as in the paper"


@pytest.mark.parametrize("name", TASKS)
def test_the_task_can_be_played_with_its_prompts(name: str) -> None:
    if TASKS[name][1]:
        pytest.importorskip("minihack", reason="minihack is not installed")
    experiment = load_experiment(PAPER.with_name(f"{name}.yaml"))
    check_placeholders(experiment.method)
    check_environment(experiment.method.families[0].environment)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_round_of_the_task_leaves_a_sound_record(name: str, tmp_path: Path) -> None:
    """Models that know nothing, in the switches, prompts and environment of the file."""
    if TASKS[name][1]:
        pytest.importorskip("minihack", reason="minihack is not installed")
    cut = {key: value for key, value in CUT.items() if "train_seeds" not in key}
    overrides = {
        **cut,
        **{f"method.roles.{role}.{key}": value for role in ("actor", "extractor") for key, value in SMALL.items()},
        "method.roles.actor.model": "tiny",
        "method.roles.extractor.model": str(write_thinking(tmp_path / "thinking")),
        "method.recipe.retrieval.embedder": str(
            write_embedder(resolve_model("tiny").path, tmp_path / "embedder", longest=512)
        ),
        "method.evaluation.every": 1,
    }
    run = train(load_experiment(PAPER.with_name(f"{name}.yaml"), overrides), tmp_path / "runs", 1)
    episodes = rows(run, Episode, "collect", [1])
    assert len(episodes) == 8 and {episode.error for episode in episodes} == {None}
    assert rows(run, Evaluation, "evaluate", [1])
    assert verify(run.path) == [] == problems_of(run, recipe_of(run.method))
