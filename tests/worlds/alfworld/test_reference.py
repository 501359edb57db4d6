"""Beside the alfworld package, word for word: every text, list of commands and outcome of random walks.

The package is looked for in this interpreter, or in the one that $CRL_ALFWORLD_PYTHON names; the official games are
those of `../shared/data/alfworld`. What is missing is said where a test is skipped.
"""

from __future__ import annotations

import json
import os
import random
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.environment_systems.alfworld_reference import MISSING, Reference, interpreter
from crl.worlds.alfworld import AlfworldConfig
from crl.worlds.alfworld.files import TASKS, games_of, load
from crl.worlds.alfworld.oracle import next_command
from tests.worlds.alfworld.test_environment import traces
from tests.worlds.alfworld.world import game_texts, write_game

ROOT = Path(__file__).parents[3]
ARCHIVES = ROOT.parent / "shared" / "data" / "alfworld"
STEPS = int(os.environ.get("CRL_ALFWORLD_STEPS", "20"))
SPLITS = {"valid_seen": 140, "valid_train": 200}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    archives = sorted(ARCHIVES.glob("*.tar.xz"))
    if not archives:
        pytest.skip(f"no games of ALFWorld: {ARCHIVES} holds no archive")
    folder = tmp_path_factory.mktemp("games")
    for archive in archives:
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def reference():
    python = interpreter()
    if python is None:
        pytest.skip(MISSING)
    opened = Reference(python, quick=True)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def references(reference):
    """As many processes as there are cores, for all the official games."""
    more = [Reference(str(interpreter()), quick=True) for _ in range(min(8, os.cpu_count() or 1) - 1)]
    yield [reference, *more]
    for each in more:
        each.close()


def walk(reference, path, seed, steps):
    """Play a game with both, now and then toward its end; whether it was won."""
    state, answer = load(path, "file").start(), reference.ask(load=str(path))
    player, done = random.Random(seed), []
    for _ in range(steps):
        assert (state.text, list(state.commands), state.won) == (answer["text"], answer["commands"], answer["won"]), (
            f"{path} after {done}"
        )
        if state.won:
            break
        command = chosen(state, player)
        done.append(command)
        state.do(command)
        answer = reference.ask(do=command)
    assert (state.text, list(state.commands), state.won) == (answer["text"], answer["commands"], answer["won"]), done
    return state.won


def chosen(state, player):
    """The oracle's command, anything, something other than walking, or nothing that there is."""
    kind = player.choices(("oracle", "any", "near", "none"), weights=(8, 6, 5, 1))[0]
    if kind == "oracle":
        return next_command(state) or "look"
    if kind == "none":
        return player.choice(("dance", "take moon 1 from sky 1", "", "look around", "go to nowhere 1"))
    near = [command for command in state.commands if not command.startswith("go to")]
    return player.choice(near if kind == "near" else state.commands)


@pytest.mark.parametrize("split", SPLITS)
def test_every_official_game_equals_the_package(data, references, split):
    games = games_of(data, split, TASKS)
    assert len(games) == SPLITS[split]

    def won(part):
        return sum(
            walk(references[part], games[number].path, number, STEPS)
            for number in range(part, len(games), len(references))
        )

    with ThreadPoolExecutor(len(references)) as pool:
        assert sum(pool.map(won, range(len(references)))) > 10, "walks reach the end of games too"


@pytest.mark.parametrize("task", TASKS)
def test_made_up_games_equal_the_package(tmp_path, reference, task):
    for seed in range(4):
        walk(reference, write_game(tmp_path, game_texts(task, seed), task, seed), seed, 30)


def test_the_grammar_and_the_rules_of_the_installed_package_too(data, reference, tmp_path):
    """alfworld 0.4 moves things and helps; older game files put them and do not."""
    found = reference.ask(logic="")
    for number, game in enumerate(games_of(data, "valid_seen", TASKS)[:12]):
        texts = json.loads(game.path.read_text())
        task = texts["grammar"].partition("Your task is to: ")[2].partition('."')[0]
        texts |= {"grammar": found["grammar"].replace("UNKNOWN GOAL", task), "pddl_domain": found["domain"]}
        newer = write_game(tmp_path, texts, game.task, number)
        state = load(newer, "file").start()
        assert "help" in state.commands
        walk(reference, newer, number, 30)
        older, moved = load(newer, "put").start(), load(game.path, "move").start()
        original = load(game.path, "file").start()
        for _ in range(12):
            assert older.text == original.text and moved.text == state.text
            if (command := next_command(original)) is None or (other := next_command(state)) is None:
                break
            assert next_command(older) == command and next_command(moved) == other
            for each, said in ((original, command), (older, command), (state, other), (moved, other)):
                each.do(said)
        assert original.won and older.won and moved.won and state.won


@pytest.mark.parametrize("split", SPLITS)
def test_the_oracle_solves_every_solvable_game(data, split):
    environment = AlfworldConfig(data=data, train_split=split, held_out_from=None).make()
    number = len(environment.games.training)
    assert number == SPLITS[split]
    lengths = []
    for seed in range(number):
        environment.reset_many([seed])
        step, turns = None, 0
        while (action := environment.oracle(0)) is not None:
            step = environment.step_many({0: action})[0]
            turns += 1
        assert step is not None and step.success, environment.games.of(seed).path
        lengths.append(turns)
    assert max(lengths) <= 15


def test_no_level_is_both_trained_and_held_out(data):
    config = AlfworldConfig(data=data, train_split="valid_train", evaluation_split="valid_seen")
    environment = config.make()
    sides = []
    for first, count in ((0, 200), (1_000_000, 140)):
        environment.reset_many(range(first, first + count))
        sides.append({environment.content(slot) for slot in range(count)})
    assert len(sides[0]) == 200 and len(sides[1]) == 140 and not sides[0] & sides[1]


def test_a_hundred_random_episodes_are_the_same_in_another_order_and_width(data):
    settings = {"train_split": "valid_train", "evaluation_split": "valid_seen"}
    seeds = [*range(60), *range(1_000_000, 1_000_040)]
    assert traces(data, seeds, 32, **settings) == traces(data, seeds[::-1], 7, **settings)
