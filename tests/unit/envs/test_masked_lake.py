"""Masked lakes: FrozenLake's own maps in other words, and a meaning that the world hides."""

from __future__ import annotations

import re

import pytest

from crl.envs import check_environment
from crl.envs.frozenlake import FrozenLakeConfig
from crl.envs.levels import is_held_out
from crl.envs.masked_lake import MaskedLakeConfig
from crl.envs.realms import RealmsConfig, experience_text, vocabulary
from crl.protocols import Explains, Graded, KnowsTruth, Leveled, StopReason

CONFIG = MaskedLakeConfig(lake=3, world=7)
SEEDS = [*range(60), *range(1_000_000, 1_000_064)]


def plain():
    """FrozenLake with the same maps."""
    environment = FrozenLakeConfig(frozen_probability=0.7).make()
    environment.reset_many(SEEDS)
    return environment


def test_it_is_frozen_lake_step_for_step_and_only_its_words_differ():
    environment, reference = CONFIG.make(), plain()
    goal, hole = CONFIG.meaning
    for slot, start in enumerate(environment.reset_many(SEEDS)):
        lake = reference.lake(slot)
        words = {f"{hole}@{row * 4 + column}" for row, column in lake.holes} | {
            f"{goal}@{lake.goal[0] * 4 + lake.goal[1]}"
        }
        *shown, at, place = start.observation.split()
        assert set(shown) == words and len(shown) == len(words)
        assert shown == sorted(shown, key=lambda word: int(word.split("@")[1]))
        assert (at, place) == ("at", f"p{lake.start[0] * 4 + lake.start[1]}")
    moves = ("left", "up", "right", None, "jump", "down", "down", "right")
    running = set(range(len(SEEDS)))
    for move in moves:
        asked = dict.fromkeys(running, move)
        found, expected = environment.step_many(asked), reference.step_many(asked)
        for slot in asked:
            mine, theirs = found[slot], expected[slot]
            assert (mine.legal, mine.done, mine.success, mine.reward, mine.stop_reason) == (
                theirs.legal, theirs.done, theirs.success, theirs.reward, theirs.stop_reason,
            )  # fmt: skip
            row, column = reference.cell(slot)
            assert mine.observation == f"p{row * 4 + column}"
            assert mine.feedback == ("" if mine.legal else "invalid")
            running -= {slot} if mine.done else set()
    assert not running


def test_the_oracle_wins_and_what_is_held_out_is_held_out_by_its_map():
    environment = CONFIG.make()
    environment.reset_many(SEEDS)
    contents = [environment.content(slot) for slot in range(len(SEEDS))]
    assert [is_held_out(content) for content in contents] == [seed >= 1_000_000 for seed in SEEDS]
    for slot in range(len(SEEDS)):
        step = None
        while step is None or not step.done:
            step = environment.step_many({slot: environment.oracle(slot)})[slot]
        assert step.success and step.reward == 1.0 and step.stop_reason is StopReason.success
        assert environment.why(slot) == f"{CONFIG.meaning[0]} goal"
        assert environment.oracle(slot) is None
    with pytest.raises(RuntimeError):
        environment.step_many({0: "up"})


def test_why_says_what_was_met_by_the_hidden_meaning():
    environment = CONFIG.make()
    goal, hole = CONFIG.meaning
    met = set()
    for move in ("up", "down", "left", "right", None):
        for slot, start in enumerate(environment.reset_many(SEEDS)):
            step = environment.step_many({slot: move})[slot]
            why = environment.why(slot)
            met.add(why)
            before = start.observation.split()[-1]
            symbol = next(
                (word[0] for word in start.observation.split() if word[1:] == f"@{step.observation[1:]}"), None
            )
            if move is None:
                assert why is None
            elif step.observation == before:
                assert why == "wall"
            else:
                assert why == {goal: f"{goal} goal", hole: f"{hole} deadly", None: "empty"}[symbol]
    assert met == {None, "wall", "empty", f"{goal} goal", f"{hole} deadly"}


def test_every_word_is_one_of_the_miniature_taught_in_realms():
    known = set(vocabulary(RealmsConfig(practice=True)))
    for realm in range(16):
        environment = MaskedLakeConfig(lake=realm, world=realm).make()
        for start in environment.reset_many(range(40)):
            assert {start.goal, *start.observation.split()} <= known


def test_meanings_differ_between_lakes_and_worlds_and_are_two_symbols():
    meanings = {MaskedLakeConfig(lake=realm, world=world).meaning for realm in range(8) for world in range(8)}
    assert len(meanings) > 30
    assert all(goal != hole for goal, hole in meanings)
    assert MaskedLakeConfig(lake=1, world=2).meaning == MaskedLakeConfig(lake=1, world=2, side=5).meaning


def test_truth_is_what_following_a_text_would_meet_first():
    environment, (goal, hole) = CONFIG.make(), CONFIG.meaning
    other = next(letter for letter in "ABCDEFGH" if letter not in (goal, hole))
    for text, worth in (
        (experience_text(goal, hole), 1.0), (f"take {goal}", 1.0), (experience_text(hole, goal), 0.0),
        (experience_text(other, goal), 0.5),
        (experience_text(other, hole), 0.0), (f"take {other}", 0.0), ("walk on", None),
    ):  # fmt: skip
        assert environment.truth(text) == worth


def test_it_is_playable_graded_and_refused_where_nothing_can_be_won():
    check_environment(CONFIG)
    environment = CONFIG.make()
    for protocol in (KnowsTruth, Leveled, Explains, Graded):
        assert isinstance(environment, protocol)
    environment.reset_many(SEEDS)
    assert all(0 < environment.difficulty(slot) <= 1 for slot in range(len(SEEDS)))
    with pytest.raises(ValueError, match=re.escape("held_out_moves 9 is more than max_turns 8")):
        MaskedLakeConfig(held_out_moves=9)
