"""Lessons about games of ALFWorld: they say what was so, and nothing that a room's numbering would make wrong."""

from __future__ import annotations

import re

import pytest

from crl.protocols import Lesson
from crl.records import Episode, Turn
from crl.worlds.alfworld import AlfworldConfig
from crl.worlds.alfworld.lessons import lesson_of, wanted
from tests.worlds.alfworld.world import make_data

KITCHEN = "You arrive at loc 3. On the countertop 1, you see a mug 2, a pan 1, and a potato 1."


def played(goal, turns, *, success=False, note=None, last="You arrive at loc 1. The cabinet 1 is closed."):
    shown = [] if note is None else ["x"]
    episode = Episode(
        episode_id="e", round=1, family="f", group=0, member=0, environment_seed=0, guided=note is not None,
        entry_ids=shown, content_digests=shown, experiences=[] if note is None else [note], goal=goal, success=success,
        reward=1.0 if success else -1.0, turns=len(turns), invalid_actions=0, tokens_read=0, tokens_sampled=0,
        stop_reason="success" if success else "turn_limit", last_observation=last, error=None, generation_ids=["g"],
    )  # fmt: skip
    return episode, [
        Turn(
            episode_id="e", turn=number, observation=seen, output=action or "", action=action, valid=action is not None,
            feedback=None, generation_id="g", first_token=0, last_token=1, stop_reason="end_of_turn",
        )
        for number, (seen, action) in enumerate(turns)
    ]  # fmt: skip


def test_a_won_game_tells_what_was_done():
    goal = "put a clean mug in cabinet."
    turns = [
        ("A room.", "go to countertop 1"), (KITCHEN, "take mug 2 from countertop 1"), ("Taken.", "go to sinkbasin 1"),
        ("There.", "clean mug 2 with sinkbasin 1"), ("Clean.", "go to cabinet 4"), ("Shut.", "open cabinet 4"),
        ("Open.", "put mug 2 in/on cabinet 4"),
    ]  # fmt: skip
    told = "To put a clean mug in cabinet: take mug from countertop, clean mug with sinkbasin, put mug in/on cabinet."
    assert lesson_of(*played(goal, turns, success=True)) == Lesson("add", told)
    assert lesson_of(*played(goal, turns, success=True, note="a note")) == Lesson("return")


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ([("A room.", None)], "must be one command"),
        ([("A room.", "go to shelf 2"), ("Nothing.", "go to desk 1")], "No mug was seen at shelf, desk: look"),
        ([("A room.", "look"), ("Nothing.", "inventory")], "without going anywhere"),
        ([("A room.", "go to countertop 1"), (KITCHEN, "go to shelf 1")], "seen at a countertop and never taken"),
        ([("A room.", "take pan 1 from stove 2"), ("Taken.", "look")], "asks for a mug: taking a pan did not help"),
        ([(KITCHEN, "take mug 2 from countertop 1"), ("Taken.", "look")], "Holding the mug was not enough"),
    ],
)
def test_a_lost_game_tells_what_was_missing(turns, told):
    lesson = lesson_of(*played("put a hot mug in cabinet.", turns))
    assert lesson.kind == "add" and told in str(lesson.text) and not re.search(r"\b\w+ \d", str(lesson.text)[:60])
    assert lesson_of(*played("put a hot mug in cabinet.", turns, note="a note")) == Lesson("update", lesson.text)


@pytest.mark.parametrize(
    ("goal", "thing"),
    [
        ("put a clean plate in fridge.", "plate"),
        ("find two keychain and put them in sofa.", "keychain"),
        ("look at cd under the desklamp.", "cd"),
        ("examine the book with the desklamp.", "book"),
        ("cool some apple and put it in microwave.", "apple"),
        ("clean some apple and put it in fridge.", "apple"),
        ("tidy up", "thing"),
    ],
)
def test_the_thing_that_a_task_asks_for(goal, thing):
    assert wanted(goal) == thing


def test_every_oracle_game_has_a_lesson(tmp_path):
    environment = AlfworldConfig(data=make_data(tmp_path, train=6, evaluation=1)).make()
    for seed in range(6):
        start = environment.reset_many([seed])[0]
        turns, seen = [], start.observation
        while (action := environment.oracle(0)) is not None:
            turns.append((seen, action))
            seen = environment.step_many({0: action})[0].observation
        lesson = environment.lesson(*played(start.goal, turns, success=True, last=seen))
        assert lesson.kind == "add" and str(lesson.text).startswith("To ") and len(str(lesson.text)) < 200
