"""ALFWorld as an environment, on made-up games: which game a seed plays, what an episode is, and its oracle."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from crl.config import ENVIRONMENTS, FamilyConfig
from crl.envs import check_environment, make_environment
from crl.protocols import Instructive, Leveled, StopReason
from crl.worlds.alfworld import AlfworldConfig
from crl.worlds.alfworld.files import TASKS
from tests.worlds.alfworld.world import game_texts, make_data, write_game

FROM = 1_000_000
TRAIN, EVALUATION = 12, 6


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("alfworld"), train=TRAIN, evaluation=EVALUATION)


def traces(data: Path, seeds: list[int], width: int, **settings) -> dict[int, list[str]]:
    """What a player who chooses at random, by its seed, sees in the games of these seeds; `width` at a time."""
    environment = AlfworldConfig(data=data, max_turns=12, **settings).make()
    seen: dict[int, list[str]] = {}
    for at in range(0, len(seeds), width):
        wave = seeds[at : at + width]
        starts = environment.reset_many(wave)
        players = {slot: random.Random(seed) for slot, seed in enumerate(wave)}
        actions = {slot: start.actions for slot, start in enumerate(starts)}
        lines = {slot: [start.goal, start.observation, *start.actions] for slot, start in enumerate(starts)}
        while actions:
            chosen = {slot: players[slot].choice([*legal, None, "sing"]) for slot, legal in actions.items()}
            for slot, step in environment.step_many(chosen).items():
                lines[slot] += [str(chosen[slot]), repr(step)]
                actions[slot] = step.actions
                if step.done:
                    del actions[slot]
        seen |= {seed: lines[slot] for slot, seed in enumerate(wave)}
    return seen


@pytest.mark.slow
def test_a_random_player_sees_the_same_in_another_process_order_and_width(data):
    seeds = [*range(12), *range(FROM, FROM + 8)]
    here = traces(data, seeds, 20)
    program = (
        "import json, sys\nfrom pathlib import Path\n"
        "from tests.worlds.alfworld.test_environment import traces\n"
        f"print(json.dumps(traces(Path({str(data)!r}), {seeds[::-1]!r}, 3)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert {int(seed): lines for seed, lines in json.loads(found.stdout).items()} == here
    assert len({tuple(lines) for lines in here.values()}) > 15


def test_seeds_are_games_and_held_out_seeds_play_each_game_once(data):
    environment = AlfworldConfig(data=data).make()
    assert isinstance(environment, Leveled) and isinstance(environment, Instructive)
    seeds = [*range(TRAIN), *range(FROM, FROM + EVALUATION)]
    environment.reset_many(seeds)
    contents = [environment.content(slot) for slot in range(len(seeds))]
    assert len(set(contents)) == TRAIN + EVALUATION, "each seed of a block has a game of its own, on its side"
    environment.reset_many([seed + TRAIN for seed in range(TRAIN)] + [FROM + EVALUATION + s for s in range(EVALUATION)])
    assert [environment.content(slot) for slot in range(len(seeds))] == contents, "and so on from the beginning"
    assert environment.config.held_out_levels == EVALUATION
    assert AlfworldConfig(data=data, held_out_from=None).held_out_levels is None
    order = [game.task for game in environment.games.training]
    assert set(order[: TRAIN // 2]) != {order[0]}, "the families are mixed"


def test_slots_of_one_seed_share_a_game_and_nothing_else(data):
    environment = AlfworldConfig(data=data).make()
    starts = environment.reset_many([5, 5, 6])
    assert starts[0] == starts[1] != starts[2]
    walk = next(action for action in starts[0].actions if action.startswith("go to"))
    step = environment.step_many({0: walk})[0]
    assert step.actions != starts[1].actions
    assert environment.step_many({1: walk})[1] == step


@pytest.mark.parametrize("padded", ["{} ", "\n{}", "\t{}\r\n"])
def test_blanks_beside_a_command_are_no_part_of_it(data, padded):
    environment = AlfworldConfig(data=data).make()
    first = environment.reset_many([5])[0]
    plain = environment.step_many({0: first.actions[0]})[0]
    environment.reset_many([5])
    step = environment.step_many({0: padded.format(first.actions[0])})[0]
    assert step.legal and step == plain
    assert not environment.step_many({0: first.actions[0].replace(" ", "  ", 1)})[0].legal


@pytest.mark.parametrize("task", TASKS)
def test_the_oracle_solves_every_family(data, task):
    config = AlfworldConfig(data=data, tasks=(task,))
    check_environment(config)
    environment = config.make()
    seeds = [0, 1, FROM]
    environment.reset_many(seeds)
    for slot in range(len(seeds)):
        assert environment.content(slot).count("\n") > 50
        turns = 0
        while (action := environment.oracle(slot)) is not None:
            step = environment.step_many({slot: action})[slot]
            turns += 1
            assert step.legal and step.feedback == ""
        assert (step.done, step.success, step.reward, step.stop_reason) == (True, True, 1.0, StopReason.success)
        assert step.observation.endswith("\nThe goal is reached.") and step.actions == () and 2 <= turns <= 12


def test_the_oracle_finds_its_way_from_wherever_one_has_wandered(data):
    """With something useless in the hand, doors open, and the thing of the task somewhere else."""
    environment = AlfworldConfig(data=data, max_turns=100).make()
    for seed in range(24):
        start = environment.reset_many([seed])[0]
        player, actions, step = random.Random(seed), start.actions, None
        for _ in range(25):
            useful = [action for action in actions if not action.startswith(("look", "inventory", "examine", "help"))]
            step = environment.step_many({0: player.choice(useful)})[0]
            actions = step.actions
            if step.done:
                break
        turns = 0
        while (action := environment.oracle(0)) is not None:
            step = environment.step_many({0: action})[0]
            turns += 1
        assert step.success and turns <= 16


def test_what_is_not_admissible_spends_a_turn_and_a_lost_game_costs_one(data):
    environment = AlfworldConfig(data=data, max_turns=3).make()
    start = environment.reset_many([0])[0]
    for action in ("sing", None):
        step = environment.step_many({0: action})[0]
        assert (step.legal, step.observation, step.reward, step.done) == (False, "Nothing happens.", -1.0, False)
        assert step.feedback == "That names no possible action." and step.actions == start.actions
    step = environment.step_many({0: "look"})[0]
    assert (step.done, step.success, step.reward, step.stop_reason) == (True, False, -1.0, StopReason.turn_limit)
    assert step.observation.endswith("\nNo turns are left.") and step.actions == ()
    assert environment.oracle(0) is None
    with pytest.raises(RuntimeError, match="slot 0 is done"):
        environment.step_many({0: "look"})
    none = AlfworldConfig(data=data, max_turns=1, failure_reward=0.0).make()
    none.reset_many([0])
    assert none.step_many({0: "look"})[0].reward == 0.0


def test_a_game_that_is_held_out_is_in_no_training_split(tmp_path):
    for split, seeds in (("train", (0, 1, 2)), ("valid_train", (1, 2))):
        for seed in seeds:
            write_game(tmp_path / split, game_texts(TASKS[0], seed), TASKS[0], seed)
    environment = AlfworldConfig(data=tmp_path, evaluation_split="valid_train").make()
    assert [game.name[-1] for game in environment.games.training] == ["0"]
    assert sorted(game.name[-1] for game in environment.games.evaluation) == ["1", "2"]
    both = AlfworldConfig(data=tmp_path, evaluation_split="valid_train", held_out_from=None).make()
    assert len(both.games.training) == 3


def test_the_config_is_registered_and_checks_itself(data, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(data))
    family = FamilyConfig(name="house", environment={"kind": "alfworld"})
    assert ENVIRONMENTS.load("alfworld") is AlfworldConfig and family.environment == AlfworldConfig()
    assert family.environment.max_turns == 40 and family.environment.tasks == TASKS
    assert make_environment(family).reset_many([0])[0].goal
    for settings, found in (
        ({"train_split": "a", "evaluation_split": "a"}, "nothing would be held out"),
        ({"tasks": ["pick_two_obj_and_place"] * 2}, "named twice"),
        ({"tasks": []}, "at least 1"),
        ({"tasks": ["cook"]}, "pick_and_place_simple"),
        ({"train_split": "../train"}, "pattern"),
        ({"wording": "drop"}, "wording"),
    ):
        with pytest.raises(ValidationError, match=found):
            AlfworldConfig(**settings)
