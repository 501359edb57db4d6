"""The prompts of the grids: every example is in form and sound, and none gives a masked rule away."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from crl.config import PromptConfig
from crl.envs.frozenlake import FrozenLakeConfig
from crl.envs.sokoban import SokobanConfig, best_action
from crl.extractor.parse import parse_output
from crl.extractor.prompts import check_prompts as check_extractor_prompts
from crl.rollout.actions import parse_action
from crl.rollout.prompts import actor_messages, check_prompts
from tests.unit.envs.test_sokoban import read_room

FOLDER = Path(__file__).parents[3] / "conf/prompts"
GRID = ("up", "down", "left", "right")
OFFERED = {
    "sokoban": GRID,
    "frozenlake": GRID,
}


def prompts(name):
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return {key: PromptConfig.model_validate(each) for key, each in content.items()}


@pytest.mark.parametrize("name", OFFERED)
def test_every_example_is_an_answer_in_form(name):
    check_examples(name, OFFERED[name])


def check_examples(name, offered):
    found = prompts(name)
    check_prompts(found)
    check_extractor_prompts(found)
    answers = [exchange.assistant for exchange in found["actor"].examples]
    assert [parse_action(answer, offered, "word") for answer in answers] == answers
    assert len(set(answers)) >= 4, "no answer is shown more often than others"
    for exchange in found["distill"].examples:
        guided = "Advice used: none" not in exchange.user
        told = parse_output(exchange.assistant, format="lines", max_operations=1, max_characters=200, guided=guided)
        assert told.reason_code == "ok", exchange
    for exchange in found["merge"].examples:
        told = parse_output(
            exchange.assistant, format="lines", max_operations=3, max_characters=200, kind="merge", source_count=3
        )
        assert told.reason_code == "ok"


def test_the_examples_of_sokoban_are_best_moves_in_rooms_of_its_form():
    for exchange in prompts("sokoban")["actor"].examples:
        text = exchange.user.removesuffix("\nMove?")
        room, state = read_room(text)
        assert len(text.splitlines()) == room.side == 6 and {len(row) for row in text.splitlines()} == {11}
        assert best_action(room, state) == exchange.assistant


@pytest.mark.parametrize("config", [FrozenLakeConfig(masked=True), SokobanConfig(masked=True)], ids=["lake", "sokoban"])
def test_a_masked_game_is_told_nothing_but_the_names_of_its_actions(config):
    found = prompts("frozenlake")["actor"]
    start = config.make().reset_many([3])[0]
    messages = actor_messages(
        found, goal=start.goal, observation=start.observation, actions=start.actions, experience=None, placement="user"
    )
    told = " ".join(each["content"] for each in messages).lower()
    assert not any(word in told for word in ("hole", "box", "wall", "target", "push", "safe", "reach", "frozen"))
    symbols = set(start.observation.split())
    assert not any(symbols & set(exchange.user.removesuffix("\nMove?").split()) for exchange in found.examples)
