"""The prompts of MiniHack: every example is in form, and the actions of a task are listed and described."""

from __future__ import annotations

import pytest

from crl.rollout.prompts import actor_messages, following_text
from crl.worlds.minihack.environment import MiniHackConfig
from tests.unit.recipes.test_environment_prompts import check_examples, prompts
from tests.worlds.minihack.test_minihack import MOVES


@pytest.mark.parametrize(("name", "more"), [("minihack", ()), ("minihack_tasks", ("pick up", "apply"))])
def test_every_example_is_an_answer_in_form(name, more):
    check_examples(name, (*MOVES, *more))


def test_the_actions_of_a_key_room_are_listed_and_described():
    found = prompts("minihack_tasks")["actor"]
    pytest.importorskip("minihack", reason="minihack is not installed")
    environment = MiniHackConfig(id="MiniHack-KeyRoom-Dark-S5-v0", max_turns=30).make()
    start = environment.reset_many([0])[0]
    environment.close()
    messages = actor_messages(
        found, goal=start.goal, observation=start.observation, actions=start.actions, experience="x", placement="user"
    )
    assert "Actions: " + ", ".join(start.actions) + "." in messages[0]["content"]
    assert "`pick up`" in messages[0]["content"] and "`apply`" in messages[0]["content"]
    shown = following_text(found, goal=start.goal, observation="map", actions=start.actions, feedback="")
    assert shown == "map\nAction?", "later turns are short"
