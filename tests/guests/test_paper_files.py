"""The paper's single tasks (`conf/paper`): the settings of MiniHack Room on other tasks, ready to be played."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from crl.config.load import load_experiment
from crl.envs import check_environment
from crl.rounds.ready import check_placeholders
from tests.worlds.minihack.test_paper_method import PAPER

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


def test_the_shop_and_the_household_differ_from_the_room_as_the_paper_says() -> None:
    room, shop, house = (
        load_experiment(PAPER.with_name(f"{name}.yaml")) for name in ("minihack_room", "webshop", "alfworld")
    )
    for other in (shop, house):
        assert other.method.recipe == room.method.recipe
        waves = {"wave_groups": room.method.rollout.wave_groups}  # how many play at once goes by the group's size
        assert other.method.rollout.model_copy(update=waves) == room.method.rollout
        assert other.method.roles["extractor"] == room.method.roles["extractor"]
        check_placeholders(other.method)
    (of_shop,), (of_house,) = shop.method.families, house.method.families
    assert (shop.method.episodes, of_shop.turn_limit) == (64, 30)
    assert (house.method.episodes, of_house.turn_limit) == (128, 40)
    assert [each.method.roles["actor"].sampling.max_new_tokens for each in (room, shop, house)] == [4096, 4096, 2048]


@pytest.mark.parametrize("name", ["webshop", "mixture3", "mixture6"])
def test_the_shop_shows_no_attributes_as_the_benchmarks_text_environment(name: str) -> None:
    families = {family["name"]: family for family in read(name)["method"]["families"]}
    assert families["webshop"]["environment"]["attributes_page"] is False


@pytest.mark.parametrize("name", ["mixture3", "mixture6"])
def test_the_papers_mixtures(name: str) -> None:
    path = PAPER.with_name(f"{name}.yaml")
    listed = yaml.safe_load(path.read_text())["method"]["families"]
    kinds = [family["environment"]["kind"] for family in listed]
    assert (
        sorted(kinds)
        == {
            "mixture3": ["alfworld", "minihack", "webshop"],
            "mixture6": ["alfworld", "minihack", "minihack", "minihack", "sokoban", "webshop"],
        }[name]
    )
    method = load_experiment(path).method
    assert sum(family.groups * method.group_size(family) for family in method.families) == 128 * len(listed)
    assert {family.turn_limit for family in method.families} == {30, 40}
    for family in method.families:
        new = method.sampling("actor", family.name).max_new_tokens
        assert new == (2048 if family.environment.kind == "alfworld" else 4096)
    room = load_experiment(PAPER).method
    assert method.recipe == room.recipe and method.roles == room.roles and method.prompts == room.prompts
