"""MiniHack as a text environment: determinism, legality, endings, texts, refusals."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from crl.envs import check_environment
from crl.errors import BadInput
from crl.protocols import StopReason
from crl.worlds.minihack.environment import MiniHackConfig, goal_of

pytest.importorskip("minihack", reason="minihack is not installed")

ROOM = "MiniHack-Room-Ultimate-5x5-v0"
MOVES = ("north", "east", "south", "west", "northeast", "southeast", "southwest", "northwest")


@pytest.fixture(scope="module")
def room():
    environment = MiniHackConfig(id=ROOM, max_turns=10).make()
    yield environment
    environment.close()


def play(environment, seeds, choose):
    """Every step of every slot until all are done; `choose(slot, actions)` acts."""
    starts = environment.reset_many(seeds)
    live = {slot: start.actions for slot, start in enumerate(starts)}
    steps = [[] for _ in seeds]
    while live:
        for slot, step in environment.step_many({slot: choose(slot, live[slot]) for slot in live}).items():
            steps[slot].append(step)
            if step.done:
                del live[slot]
            else:
                live[slot] = step.actions
    return starts, steps


def random_play(environment, seeds, stream=0):
    generators = [np.random.default_rng([stream, seed]) for seed in seeds]
    return play(environment, seeds, lambda slot, actions: str(generators[slot].choice(actions)))


def digest(environment, seeds):
    starts, steps = random_play(environment, seeds)
    return hashlib.sha256(repr((starts, steps)).encode()).hexdigest()


def test_equal_seeds_give_equal_episodes_in_fresh_and_used_instances(room):
    seeds = [5, 6, 5, 7]
    first = random_play(room, seeds)
    random_play(room, [9, 10, 11, 12], stream=1)
    assert random_play(room, seeds) == first
    assert first[0][0] == first[0][2] and first[1][0] == first[1][2]
    assert first[0][0] != first[0][1]
    fresh = MiniHackConfig(id=ROOM, max_turns=10).make()
    assert random_play(fresh, list(reversed(seeds)))[1][::-1] == first[1]
    fresh.close()


@pytest.mark.slow
def test_episodes_are_equal_in_another_process(room):
    program = (
        "from tests.worlds.minihack.test_minihack import digest, ROOM\n"
        "from crl.worlds.minihack.environment import MiniHackConfig\n"
        "print(digest(MiniHackConfig(id=ROOM, max_turns=10).make(), [1, 2, 3]))"
    )
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == digest(room, [1, 2, 3])


def test_python_random_state_is_left_alone(room):
    import random

    random.seed(1)
    before = random.getstate()
    room.reset_many([3])
    assert random.getstate() == before


@pytest.mark.slow
def test_random_play_reaches_the_goal_about_as_often_as_measured(room):
    steps = [step for first in range(0, 100, 20) for step in random_play(room, list(range(first, first + 20)))[1]]
    wins = sum(each[-1].success for each in steps)
    assert 10 <= wins <= 35
    for each in steps:
        assert len(each) <= 10
        assert not any(step.done for step in each[:-1])
        last = each[-1]
        assert last.reward == float(last.success)
        assert last.stop_reason in (StopReason.success, StopReason.failure, StopReason.turn_limit)
        assert (last.stop_reason is StopReason.success) == last.success
        assert all(step.reward == 0 and step.stop_reason is None for step in each[:-1])


def test_oracle_is_far_better_than_chance(room):
    _, steps = play(room, list(range(20)), lambda slot, actions: room.oracle(slot))
    assert sum(each[-1].success for each in steps) >= 16
    assert room.oracle(0) is None


@pytest.mark.parametrize(
    "task_id", ["MiniHack-MazeWalk-9x9-v0", "MiniHack-KeyRoom-Dark-S5-v0", "MiniHack-Room-Random-15x15-v0"]
)
def test_oracle_solves_other_levels(task_id):
    environment = MiniHackConfig(id=task_id, max_turns=60).make()
    _, steps = play(environment, list(range(10)), lambda slot, actions: environment.oracle(slot))
    environment.close()
    assert sum(each[-1].success for each in steps) >= 9


def test_texts_are_short_and_say_what_is_in_sight(room):
    starts = room.reset_many(list(range(30)))
    assert {start.actions for start in starts} == {MOVES}
    assert len({start.goal for start in starts}) == 1 and "(>)" in starts[0].goal
    for start in starts:
        *_, sight = [line for line in start.observation.splitlines() if ">" in line]
        assert ("No > in sight." in sight) != ("> is " in sight)
        assert "@" in start.observation and "Hello" not in start.observation
        assert len(start.observation) < 200
    assert any("> is " in start.observation for start in starts)
    for start in starts:
        if "> is " not in start.observation:
            continue
        rows = start.observation.split("\n> is ")[0].splitlines()
        cells = {char: (r, row.index(char)) for r, row in enumerate(rows) for char in "@>" if char in row}
        (row, column), (goal_row, goal_column) = cells["@"], cells[">"]
        said = start.observation.split("> is ")[1].split(".")[0]
        assert ("north" in said) == (goal_row < row) and ("south" in said) == (goal_row > row)
        assert ("west" in said) == (goal_column < column) and ("east" in said) == (goal_column > column)


@pytest.mark.slow
def test_without_hints_a_legend_explains_every_symbol_and_nothing_says_where_it_lies(room):
    plain = MiniHackConfig(id=ROOM, hints=False).make()
    _, steps = random_play(plain, list(range(30)))
    shown = [step.observation for each in steps for step in each] + [
        start.observation for start in plain.reset_many(list(range(30)))
    ]
    plain.close()
    symbols = set()
    for text in shown:
        rows, told = text.split("\nLegend: ")
        legend = told.split("\n")[0].removesuffix(".").split(", ")
        explained = {entry[0] for entry in legend if entry[1:2] == " "}
        assert set(rows) - {" ", "\n"} == explained and legend[0] == "@ you"
        assert not any(word in told.split("\n")[0].split() for word in MOVES), told
        assert "in sight" not in text
        symbols |= set(legend)
    assert {". floor", "> stairs down", "< stairs up", "where you began"} <= symbols
    assert any(entry[:2] == "^ " for entry in symbols) and any(entry[0].isalpha() for entry in symbols)
    # It is the same game: only the telling differs.
    rows = [text.split("\nLegend: ")[0] for text in shown[-30:]]
    assert all(start.observation.startswith(seen) for start, seen in zip(room.reset_many(range(30)), rows, strict=True))


def test_where_the_agent_began_is_explained(room):
    assert "< is the stairs up, where you began" in room.goal
    start = room.reset_many([11])[0]
    assert "<" not in start.observation
    _, steps = play(room, [11], lambda slot, actions: room.oracle(slot))
    assert "<" in steps[0][-1].observation


@pytest.mark.slow
def test_the_last_observation_shows_what_the_last_action_did(room):
    starts, steps = random_play(room, list(range(60)))
    won = limited = 0
    for start, each in zip(starts, steps, strict=True):
        *rows, end = each[-1].observation.split("\n")
        before = each[-2].observation if len(each) > 1 else start.observation
        assert any("@" in row for row in rows), "the last map"
        if each[-1].stop_reason is StopReason.success:
            won += 1
            assert end == "The goal is reached." and "> is 1 " in before
            assert not any(">" in row for row in rows), "the agent stands on the stairs, and no hint says they are gone"
        elif each[-1].stop_reason is StopReason.turn_limit:
            limited += 1
            assert end == "No turns are left." and any("> is" in row or "No > in sight" in row for row in rows)
    assert won >= 5 and limited >= 20


@pytest.mark.slow
def test_the_last_observation_tells_of_a_death():
    environment = MiniHackConfig(id="MiniHack-Room-Ultimate-15x15-v0", max_turns=120).make()
    _, steps = random_play(environment, list(range(24)))
    environment.close()
    deaths = [each[-1].observation for each in steps if each[-1].stop_reason is StopReason.failure]
    assert len(deaths) >= 3
    for text in deaths:
        *rows, message, end = text.split("\n")
        assert end == "The game is over." and message.endswith("You die...") and len(message) > len("You die...")
        assert any("@" in row for row in rows) and "\0" not in text


def test_invalid_actions_spend_turns_and_change_nothing(room):
    start = room.reset_many([4])[0]
    for action in (None, "fly", "NORTH", ""):
        step = room.step_many({0: action})[0]
        assert not step.legal and not step.done
        assert "north, east" in step.feedback
        assert step.observation == start.observation
    for _ in range(5):
        room.step_many({0: None})
    last = room.step_many({0: None})[0]
    assert last.done and not last.success and last.stop_reason is StopReason.turn_limit
    assert last.observation == f"{start.observation}\nNo turns are left."
    with pytest.raises(RuntimeError, match="slot 0 is done"):
        room.step_many({0: "north"})


def test_more_turns_than_the_task_itself_allows():
    environment = MiniHackConfig(id="MiniHack-Room-5x5-v0", max_turns=130, held_out_from=None).make()
    environment.reset_many([0])
    for _ in range(129):
        assert not environment.step_many({0: "west"})[0].done
    assert environment.step_many({0: "west"})[0].stop_reason is StopReason.turn_limit
    environment.close()


def test_an_exception_inside_the_game_ends_its_slot_only(monkeypatch):
    environment = MiniHackConfig(id=ROOM).make()
    before = environment.reset_many([1, 2])

    def broken(action):
        raise OSError("lost")

    monkeypatch.setattr(environment._slots[0].env, "step", broken)
    steps = environment.step_many({0: "north", 1: "north"})
    assert (steps[0].stop_reason, steps[0].error) == (StopReason.error, "environment_OSError")
    assert steps[0].done and not steps[0].success and steps[1].error is None
    assert environment.reset_many([1, 2]) == before
    assert environment.step_many({0: "north"})[0].error is None
    environment.close()


def test_key_room_shows_what_was_picked_up():
    environment = MiniHackConfig(id="MiniHack-KeyRoom-Dark-S5-v0", max_turns=60).make()
    start = environment.reset_many([1])[0]
    assert {"pick up", "apply"} < set(start.actions) and "You carry" not in start.observation
    seen = []
    while True:
        step = environment.step_many({0: environment.oracle(0)})[0]
        seen.append(step.observation)
        if step.done:
            break
    assert any("You carry: key" in text or "You carry: a key" in text for text in seen)
    environment.close()


def test_questions_of_the_game_are_answered_by_name():
    environment = MiniHackConfig(id="MiniHack-Eat-Fixed-v0", max_turns=30, held_out_from=None).make()
    start = environment.reset_many([0])[0]
    assert "You carry: a a +1 club" in start.observation and {"eat", "zap", "wield"} < set(start.actions)
    step = environment.step_many({0: "wield"})[0]
    assert "What do you want to wield?" in step.observation
    assert {"item a", "item b", "cancel"} <= set(step.actions) and "north" not in step.actions
    assert "north" in environment.step_many({0: "cancel"})[0].actions
    assert set(MOVES) | {"cancel"} == set(environment.step_many({0: "kick"})[0].actions)
    environment.step_many({0: "cancel"})
    for _ in range(2):
        environment.step_many({0: "northwest"})
    step = environment.step_many({0: "eat"})[0]
    assert "eat" in step.observation and {"yes", "no"} <= set(step.actions)
    step = environment.step_many({0: "yes"})[0]
    assert step.success and step.reward == 1.0 and step.observation.endswith("The goal is reached.")
    environment.close()


def test_check_passes_and_refuses():
    check_environment(MiniHackConfig(id=ROOM))
    with pytest.raises(BadInput, match="unknown MiniHack task") as caught:
        check_environment(MiniHackConfig(id="MiniHack-Room-Ultimte-5x5-v0"))
    assert ROOM in str(caught.value) and caught.value.exit_code == 2
    with pytest.raises(BadInput, match="cannot be built"):
        check_environment(MiniHackConfig(id="MiniHack-Skill-Custom-v0"))


def test_missing_package_says_what_to_install(monkeypatch):
    import importlib

    real = importlib.import_module

    def without(name, *rest):
        if name == "minihack":
            raise ModuleNotFoundError("No module named 'pkg_resources'", name="pkg_resources")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(BadInput, match="cannot be imported") as caught:
        MiniHackConfig(id=ROOM).make()
    assert "setuptools<81" in str(caught.value)


def test_goals_are_particular_where_the_stairs_are_not_all():
    assert goal_of("MiniHack-Eat-Distr-v0").startswith("Eat the apple.")
    assert goal_of("MiniHack-KeyRoom-Dark-S5-v0").startswith("Pick up the key")
    assert goal_of("MiniHack-WoD-Hard-Full-v0") != goal_of("MiniHack-WoD-Easy-Full-v0")
    assert goal_of("MiniHack-Corridor-R2-v0").startswith("Reach the stairs")
    assert goal_of("MiniHack-CorridorBattle-v0").startswith("Survive")


def test_importing_the_package_is_light():
    program = "import sys, crl.envs; print(sorted({'minihack', 'nle', 'gymnasium', 'torch'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout.replace("'", '"')) == []
