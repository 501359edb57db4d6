"""FrozenLake: solvable, deterministic, masked without rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.envs import check_environment
from crl.envs.frozenlake import ACTIONS, FrozenLakeConfig, lakes
from crl.protocols import StopReason


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1), low=st.integers(3, 9), more=st.integers(0, 4),
    probability=st.floats(0.05, 1.0), turns=st.integers(1, 20), masked=st.booleans(),
)  # fmt: skip
def test_every_map_is_solved_by_its_oracle_within_the_limit(seed, low, more, probability, turns, masked):
    config = FrozenLakeConfig(
        size_min=low, size_max=low + more, frozen_probability=probability, max_turns=turns, masked=masked,
        held_out_moves=1,
    )  # fmt: skip
    check_environment(config)
    environment = config.make()
    start = environment.reset_many([seed])[0]
    assert low <= len(start.observation.splitlines()) <= low + more
    assert environment.reset_many([seed]) == [start]
    step = None
    while step is None or not step.done:
        action = environment.oracle(0)
        assert action in start.actions
        step = environment.step_many({0: action})[0]
        assert step.legal and step.feedback == ""
    assert (step.success, step.reward, step.stop_reason) == (True, 1.0, StopReason.success)
    *rows, end = step.observation.splitlines()
    assert end == "The goal is reached." and "G" not in step.observation.replace("The goal", "")
    assert sum(row.count("@" if not masked else "A") for row in rows) == 1
    assert environment.oracle(0) is None
    with pytest.raises(RuntimeError):
        environment.step_many({0: "up"})


@pytest.mark.parametrize("probability", [0.6, 0.85])
@pytest.mark.parametrize("masked", [False, True])
def test_the_erl_variant_has_all_its_sides_and_is_won_in_eight_moves(probability, masked):
    """Sides 2 to 9, frozen probability 0.6 to 0.85, 8 actions; both training and held-out maps."""
    environment = FrozenLakeConfig(size_min=2, size_max=9, frozen_probability=probability, masked=masked).make()
    for first in (0, 1_000_000):
        starts = environment.reset_many(range(first, first + 60))
        assert {len(start.observation.splitlines()) for start in starts} >= set(range(3 if first else 2, 9))
        assert set(" ".join(start.observation for start in starts).split()) == set("ABCD" if masked else "@GHF")
        live, won = set(range(60)), 0
        for _ in range(8):
            for slot, step in environment.step_many({slot: environment.oracle(slot) for slot in live}).items():
                live -= {slot} if step.done else set()
                won += step.success
        assert (live, won) == (set(), 60)


def test_oracle_path_is_shortest():
    """Against an independent distance: powers of the adjacency matrix."""
    for seed in range(20):
        lake = lakes(FrozenLakeConfig(size_min=5, size_max=5, max_turns=25, frozen_probability=0.6)).of(seed)
        safe = [(r, c) for r in range(5) for c in range(5) if (r, c) not in lake.holes]
        near = np.array([[abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for b in safe] for a in safe])
        reach, length = np.eye(len(safe), dtype=bool)[safe.index(lake.start)], 0
        while not reach[safe.index(lake.goal)]:
            reach, length = reach | (reach @ near), length + 1
        path = lake.path(lake.start)
        assert path is not None and len(path) == length


def test_known_map_word_for_word():
    environment = FrozenLakeConfig().make()
    masked = FrozenLakeConfig(masked=True).make()
    plain_start, masked_start = environment.reset_many([7])[0], masked.reset_many([7])[0]
    lake = lakes(FrozenLakeConfig()).of(7)
    cells = [row.split() for row in plain_start.observation.splitlines()]
    assert cells[lake.start[0]][lake.start[1]] == "@" and cells[lake.goal[0]][lake.goal[1]] == "G"
    assert {(r, c) for r in range(4) for c in range(4) if cells[r][c] == "H"} == lake.holes
    translated = plain_start.observation.translate(str.maketrans("@GHF", "ABCD"))
    assert masked_start.observation == translated
    assert masked_start.goal == "Actions: up, down, left, right."
    assert "hole" in plain_start.goal


def test_holes_borders_limits_and_illegal_actions():
    config = FrozenLakeConfig(max_turns=4, frozen_probability=0.5)
    environment = config.make()
    fell = stayed = False
    for seed in range(60):
        lake = lakes(config).of(seed)
        for action in ACTIONS:
            start = environment.reset_many([seed])[0]
            step = environment.step_many({0: action})[0]
            target = lake.moved(lake.start, action)
            if target in lake.holes:
                fell = True
                assert (step.done, step.success, step.stop_reason) == (True, False, StopReason.failure)
                *rows, end = step.observation.splitlines()
                assert end == "The game is over." and rows[target[0]].split()[target[1]] == "@"
            elif target == lake.start:
                stayed = True
                assert step.legal and step.observation == start.observation
    assert fell and stayed
    start = environment.reset_many([1])[0]
    for turn in range(4):
        step = environment.step_many({0: (None, "jump", "UP", "")[turn]})[0]
        assert not step.legal and "up, down, left, right" in step.feedback
    assert step.stop_reason is StopReason.turn_limit and step.done
    assert step.observation == f"{start.observation}\nNo turns are left."
    environment.close()


def test_slots_are_independent_and_seeds_matter():
    environment = FrozenLakeConfig(size_min=3, size_max=6).make()
    starts = environment.reset_many(list(range(30)))
    assert len({start.observation for start in starts}) > 25
    environment.step_many({3: "up"})
    assert environment.reset_many([4])[0] == starts[4]


@pytest.mark.parametrize("masked", [False, True])
def test_it_says_why_a_step_leads_where_it_does_and_how_hard_a_level_is(masked):
    symbols = "ABCD" if masked else "@GHF"
    environment = FrozenLakeConfig(size_min=3, size_max=4, max_turns=6, masked=masked).make()
    random, kinds = np.random.default_rng(1), set()
    for seed in range(60):
        [start] = environment.reset_many([seed])
        assert environment.why(0) is None, "nothing has happened yet"
        shown, solved = start.observation.splitlines(), 0
        while (action := environment.oracle(0)) is not None:
            environment.step_many({0: action})
            solved += 1
        assert environment.difficulty(0) == solved / 6
        environment.reset_many([seed])
        step = None
        while step is None or not step.done:
            action = str(random.choice(list(ACTIONS)))
            [step] = environment.step_many({0: action}).values()
            *rows, said = [*step.observation.splitlines(), environment.why(0)]
            row, column = next((r, c) for r, line in enumerate(shown) for c, cell in enumerate(line.split())
                               if cell == symbols[0])  # fmt: skip
            there = f"{symbols[0]} is in row {row + 1}, column {column + 1} and goes {action}"
            assert said.startswith(there)
            moved = (row + ACTIONS[action][0], column + ACTIONS[action][1])
            if not (0 <= moved[0] < len(shown) and 0 <= moved[1] < len(shown)):
                assert said.removeprefix(there).startswith(". The border is there")
                kinds.add("border")
            else:
                assert said.removeprefix(there).startswith(f" to row {moved[0] + 1}, column {moved[1] + 1}, which is ")
                kind = "the goal" if step.success else "a hole" if step.stop_reason is StopReason.failure else "a safe"
                assert kind in said
                kinds.add(kind)
            shown = rows[: len(shown)]
    assert kinds == {"border", "the goal", "a hole", "a safe"}
    environment.reset_many([0])
    environment.step_many({0: None})
    assert environment.why(0) is None, "no action, nothing to say"


def test_each_map_draws_its_own_share_of_safe_cells():
    common = {"size_min": 8, "size_max": 8, "max_turns": 8, "held_out_moves": 1}
    ranged = lakes(FrozenLakeConfig(frozen_probability=0.6, frozen_probability_max=0.85, **common))
    fixed = lakes(FrozenLakeConfig(frozen_probability=0.6, **common))
    safe = [[1 - len(levels.of(seed).holes) / 64 for seed in range(80)] for levels in (fixed, ranged)]
    assert np.mean(safe[0]) < np.mean(safe[1]) - 0.05 and max(safe[1]) > 0.8
    assert np.std(safe[1]) > np.std(safe[0]), "shares differ from map to map"
    with pytest.raises(ValueError, match="larger than frozen_probability_max"):
        FrozenLakeConfig(frozen_probability=0.9, frozen_probability_max=0.85)
