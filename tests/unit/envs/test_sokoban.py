"""Sokoban: solvable with the exact shortest length, the rules of pushing, masked without rules, dead ends."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.envs import check_environment
from crl.envs.frozenlake import FrozenLakeConfig
from crl.envs.sokoban import ACTIONS, MOST_STATES, Room, SokobanConfig, best_action, solutions
from crl.errors import BadInput
from crl.protocols import StopReason

FROM = 1_000_000
PLAIN = "WABGC@."
MASKED = "DABCFGE"
THINGS = ("wall", "agent", "box", "target", "box on target", "agent on target", "floor")
SYMBOLS = dict(zip(THINGS, PLAIN, strict=True))


def read_room(text):
    """A room and a state from its plain text, by the symbols alone."""
    cells = {(r, c): s for r, row in enumerate(text.splitlines()) for c, s in enumerate(row.split()) if s != "W"}
    floor = tuple(sorted(cells))
    room = Room(len(text.splitlines()), floor, frozenset(i for i, cell in enumerate(floor) if cells[cell] in "GC@"))
    state = next(i for i, cell in enumerate(floor) if cells[cell] in "A@")
    for number, cell in enumerate(floor):
        if cells[cell] in "BC":
            state += 1 << (7 + number)
    return room, state


def shortest(text):
    """Moves of the shortest solution of a level's text, searched forward on sets of cells; None without any."""
    rows = [row.split() for row in text.splitlines()]
    cells = {(r, c): symbol for r, row in enumerate(rows) for c, symbol in enumerate(row)}
    boxes = frozenset(cell for cell, symbol in cells.items() if symbol in "BC")
    targets = {cell for cell, symbol in cells.items() if symbol in "GC@"}
    agent = next(cell for cell, symbol in cells.items() if symbol in "A@")
    queue, seen = deque([(agent, boxes, 0)]), {(agent, boxes)}
    while queue:
        (r, c), boxes, moves = queue.popleft()
        if boxes == targets:
            return moves
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            to, beyond, after = (r + down, c + right), (r + 2 * down, c + 2 * right), boxes
            if cells[to] == "W" or (to in boxes and (cells[beyond] == "W" or beyond in boxes)):
                continue
            if to in boxes:
                after = boxes - {to} | {beyond}
            if (to, after) not in seen:
                seen.add((to, after))
                queue.append((to, after, moves + 1))
    return None


def won_by_oracle(environment, seed):
    """The steps of one episode that the oracle plays."""
    environment.reset_many([seed])
    steps = []
    while not steps or not steps[-1].done:
        steps.append(environment.step_many({0: environment.oracle(0)})[0])
    assert environment.oracle(0) is None
    return steps


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1), low=st.integers(5, 7), more=st.integers(0, 2), boxes=st.integers(1, 2),
    masked=st.booleans(), turns=st.integers(8, 40),
)  # fmt: skip
def test_every_level_is_solved_by_its_oracle_in_its_shortest_length(seed, low, more, boxes, masked, turns):
    config = SokobanConfig(size_min=low, size_max=low + more, boxes=boxes, masked=masked, max_turns=turns)
    environment = config.make()
    start = environment.reset_many([seed])[0]
    assert environment.reset_many([seed]) == [start] and start.actions == tuple(ACTIONS)
    rows = [row.split() for row in start.observation.splitlines()]
    assert low <= len(rows) <= low + more and all(len(row) == len(rows) for row in rows)
    steps = won_by_oracle(environment, seed)
    plain = start.observation.translate(str.maketrans(MASKED, PLAIN)) if masked else start.observation
    assert len(steps) == shortest(plain) <= turns
    assert all(step.legal and not step.feedback and step.reward == 0 for step in steps[:-1])
    assert (steps[-1].success, steps[-1].reward, steps[-1].stop_reason) == (True, 1.0, StopReason.success)
    *rows, end = steps[-1].observation.splitlines()
    symbols = "".join(rows)
    assert end == "The goal is reached."
    assert symbols.count("F" if masked else "C") == boxes and "B" not in symbols
    with pytest.raises(RuntimeError):
        environment.step_many({0: "up"})


@pytest.mark.parametrize(
    "config",
    [
        SokobanConfig(),
        SokobanConfig(solution_min=10, solution_max=14),
        SokobanConfig(masked=True, boxes=1, size_min=6, size_max=8, max_turns=8),  # ERL's variant
        pytest.param(SokobanConfig(boxes=3, size_min=7, size_max=7, max_turns=60), marks=pytest.mark.slow),
    ],
)
def test_lengths_are_as_asked_and_those_held_out_take_three_moves(config):
    check_environment(config)
    environment = config.make()
    for first, fewest in ((0, config.solution_min), (FROM, max(config.solution_min, 3))):
        environment.reset_many(range(first, first + 40))
        moves = [slot.level.moves for slot in environment._slots]
        assert fewest <= min(moves) and max(moves) <= config.longest
        assert len(set(moves)) >= 4, "every length that a room has is as likely as another"
    for seed in (0, FROM):
        assert len(won_by_oracle(environment, seed)) == environment._slots[0].level.moves


LEVEL = "W W W W W W\nW . . . W W\nW . B B G W\nW A . G . W\nW . . . . W\nW W W W W W"


def after(text, *actions):
    room, state = read_room(text)
    for action in actions:
        state = room.moved(state, action)
    return room.text(state, SYMBOLS)


def test_pushing_word_for_word():
    assert after(LEVEL) == LEVEL, "what is read is written"
    assert after(LEVEL, "up", "right") == LEVEL.replace("W A", "W .").replace("W . B B", "W A B B"), "two boxes hold"
    assert after(LEVEL, "left") == LEVEL, "a wall holds the agent back"
    up = after(LEVEL, "right", "up")
    assert up.splitlines()[1:4] == ["W . B . W W", "W . A B G W", "W . . G . W"], "one box is pushed"
    assert after(LEVEL, "right", "up", "up") == up, "a wall behind a box holds it"
    pushed = after(LEVEL, "right", "up", "right")
    assert pushed.splitlines()[2] == "W . . A C W", "a box on its target"
    assert after(LEVEL, "right", "right").splitlines()[3] == "W . . @ . W", "the agent on a target"
    assert not read_room(pushed)[0].is_solved(read_room(pushed)[1])


def test_the_search_knows_which_states_are_dead():
    room, state = read_room(LEVEL)
    assert solutions(room)[state] == shortest(LEVEL) and len(solutions(room)) < MOST_STATES
    dead = after(LEVEL, "right", "up")  # a box against the upper wall, where no target is
    assert shortest(dead) is None and best_action(*read_room(dead)) is None
    states = {}
    for state in solutions(room):
        for action in ACTIONS:
            following = room.moved(state, action)
            states[following] = room.text(following, SYMBOLS)
    sample = list(states)[:: max(1, len(states) // 60)]
    assert [solutions(room).get(state) for state in sample] == [shortest(states[state]) for state in sample]
    assert any(state not in solutions(room) for state in states), "some moves are fatal"


def dead_end(environment, seeds):
    """A slot with its box pushed out of reach by a walk, and that walk; None where the oracle always had a way."""
    for seed in seeds:
        environment.reset_many([seed])
        for turn in range(20):
            action = ("up", "left", "down", "right")[turn // 3 % 4]
            step = environment.step_many({0: action})[0]
            if step.done:
                break
            if environment.oracle(0) is None:
                return seed, turn, step
    raise AssertionError("no walk led into a dead end")


def test_a_dead_end_goes_on_unless_it_is_said_to_end():
    environment = SokobanConfig(max_turns=24).make()
    seed, turn, step = dead_end(environment, range(40))
    assert not step.done and step.feedback == "" and environment.step_many({0: "up"})[0].legal
    for masked, told in ((False, "The boxes can no longer all be brought to targets."), (True, "")):
        ending = SokobanConfig(max_turns=24, ends_when_stuck=True, masked=masked).make()
        ending.reset_many([seed])
        for before in range(turn + 1):
            last = ending.step_many({0: ("up", "left", "down", "right")[before // 3 % 4]})[0]
            assert last.done == (before == turn)
        assert (last.success, last.stop_reason, last.feedback) == (False, StopReason.failure, told)
        assert last.observation.endswith("\nThe game is over.")


def test_masked_levels_are_the_plain_ones_in_other_symbols_without_a_rule():
    plain, masked = SokobanConfig().make(), SokobanConfig(masked=True).make()
    for start, hidden in zip(plain.reset_many(range(20)), masked.reset_many(range(20)), strict=True):
        assert hidden.observation == start.observation.translate(str.maketrans(PLAIN, MASKED))
        assert hidden.goal == "Actions: up, down, left, right." and "pushes" in start.goal
        assert all(f"{symbol} " in start.goal for symbol in PLAIN)


def test_limits_and_illegal_actions():
    environment = SokobanConfig(max_turns=4).make()
    start = environment.reset_many([1, 2])[0]
    for turn in range(4):
        step = environment.step_many({0: (None, "jump", "UP", "")[turn]})[0]
        assert not step.legal and "up, down, left, right" in step.feedback
    assert step.stop_reason is StopReason.turn_limit and step.done and not step.success
    assert step.observation == f"{start.observation}\nNo turns are left."
    assert environment.step_many({1: "up"})[1].legal, "the other slot plays on"
    environment.close()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"size_min": 7}, "size_min 7 is larger than size_max 6"),
        ({"solution_max": 31}, "solution_max 31 is more than max_turns 30"),
        ({"solution_min": 9, "solution_max": 8}, "solution_min 9 is more than the 8 moves"),
        ({"size_min": 5, "boxes": 4}, "boxes 4 need 10 cells of floor, found 8 at most in a room of size_min 5"),
        ({"solution_max": 2}, "held_out_moves 3 is more than the 2 moves"),
        ({"boxes": 5}, "less than or equal to 4"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, told):
    with pytest.raises(ValueError, match=told):
        SokobanConfig(**settings)


@pytest.mark.slow
def test_lengths_that_no_room_has_are_refused_before_work_starts():
    with pytest.raises(BadInput, match="seed 0 finds no level of training") as caught:
        check_environment(SokobanConfig(boxes=1, size_min=5, size_max=5, solution_min=150, max_turns=200))
    assert "solution_min" in str(caught.value)


def digest():
    """Of the first observations of training and of what is held out."""
    configs = SokobanConfig(), SokobanConfig(masked=True, boxes=1, size_max=8), FrozenLakeConfig(size_max=9)
    seeds = [*range(30), *range(FROM, FROM + 30)]
    starts = [start for config in configs for start in config.make().reset_many(seeds)]
    return hashlib.sha256(repr(starts).encode()).hexdigest()


def test_levels_are_equal_in_another_process():
    program = "from tests.unit.envs.test_sokoban import digest; print(digest())"
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == digest()
