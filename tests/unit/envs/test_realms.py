"""Realms: rules that hold for every layout, what is held out, and the metric that knows the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from crl.envs.levels import is_held_out
from crl.envs.realms import (
    PRACTICE_REALMS,
    RealmsConfig,
    RealmsEnvironment,
    experience_text,
    hidden_rule,
    layouts,
    vocabulary,
)
from crl.errors import BadInput
from crl.protocols import KnowsRule, StopReason

CONFIG = RealmsConfig(realm=3, world=7)


def play(environment: RealmsEnvironment, slot: int, actions: list[str | None]) -> tuple[bool, StopReason | None]:
    """Steps until the actions or the episode end."""
    step = None
    for action in actions:
        step = environment.step_many({slot: action})[slot]
        if step.done:
            break
    assert step is not None
    return step.success, step.stop_reason


def way(environment: RealmsEnvironment, slot: int) -> list[str]:
    """The oracle's moves to the end."""
    moves = []
    while (move := environment.oracle(slot)) is not None:
        moves.append(move)
        environment.step_many({slot: move})
    return moves


def test_the_oracle_wins_every_layout_within_the_longest_path() -> None:
    environment = RealmsEnvironment(CONFIG)
    seeds = [*range(100), *range(1_000_000, 1_000_032)]
    environment.reset_many(seeds)
    ways = [way(environment, slot) for slot in range(len(seeds))]
    environment.reset_many(seeds)
    assert all(play(environment, slot, list(moves)) == (True, StopReason.success) for slot, moves in enumerate(ways))
    assert max(map(len, ways)) <= CONFIG.longest_path


def test_equal_seeds_are_equal_episodes_and_realms_of_a_world_differ_in_what_they_hide() -> None:
    first, second = (RealmsEnvironment(CONFIG).reset_many(range(20)) for _ in range(2))
    assert first == second
    rules = {hidden_rule(RealmsConfig(realm=realm, world=7)) for realm in range(8)}
    assert len(rules) > 4
    assert {hidden_rule(RealmsConfig(realm=3, world=world)) for world in range(30)} != {hidden_rule(CONFIG)}


def test_the_goal_before_the_key_and_a_decoy_are_deadly_and_a_wall_costs_a_turn() -> None:
    environment = RealmsEnvironment(RealmsConfig(realm=1, world=2, max_turns=6))
    endings = {}
    for seed in range(200):
        layout = layouts(environment.config).of(seed)
        for action in ("up", "down", "left", "right"):
            environment.reset_many([seed])
            step = environment.step_many({0: action})[0]
            cell = int(step.observation[1:])
            symbol = next((name for name, place in layout.cells.items() if place == cell), None)
            kind = "goal" if symbol == layout.goal else "key" if symbol == layout.key else "decoy" if symbol else "free"
            if cell == layout.start:
                kind = "wall"
            endings.setdefault(kind, set()).add((step.done, step.success, step.stop_reason, step.observation[0]))
    failure = (True, False, StopReason.failure, "p")
    going_on = (False, False, None, "p")
    assert endings == {
        "goal": {failure},
        "decoy": {failure},
        "free": {going_on},
        "wall": {going_on},
        "key": {(False, False, None, "k")},
    }


def test_turns_run_out_and_an_invalid_action_spends_one() -> None:
    environment = RealmsEnvironment(CONFIG)
    environment.reset_many([0])
    steps = [environment.step_many({0: None})[0] for _ in range(CONFIG.max_turns)]
    assert [step.done for step in steps] == [False] * (CONFIG.max_turns - 1) + [True]
    assert steps[-1].stop_reason is StopReason.turn_limit and not steps[0].legal and steps[0].feedback
    with pytest.raises(RuntimeError, match="done"):
        environment.step_many({0: "up"})


@settings(max_examples=40, deadline=None)
@given(
    realm=st.integers(0, 15), world=st.integers(0, 500), side=st.integers(4, 6), objects=st.integers(3, 6),
    practice=st.booleans(),
)  # fmt: skip
def test_layouts_and_rules_of_evaluation_are_held_out(
    realm: int, world: int, side: int, objects: int, practice: bool
) -> None:
    config = RealmsConfig(
        realm=realm, world=world, side=side, objects=objects, longest_path=8, practice=practice, held_out_from=1000
    )
    drawn = layouts(config)
    for seed in (0, 1, 999):
        assert not is_held_out(drawn.of(seed).text())
    for seed in (1000, 1001, 5000):
        assert is_held_out(drawn.of(seed).text())


def test_practice_never_shows_the_rule_of_a_world() -> None:
    practice = RealmsConfig(practice=True)
    shown = {(layout.realm, layout.key, layout.goal) for layout in map(layouts(practice).of, range(6000))}
    worlds = {
        (realm, *hidden_rule(RealmsConfig(realm=realm, world=world))) for realm in range(16) for world in range(200)
    }
    assert not shown & worlds
    pairs = [(key, goal) for _, key, goal in shown]
    assert len(set(pairs)) == 8 * 7, "every pair is practiced in some realm"
    assert {realm for realm, _, _ in shown} == set(range(PRACTICE_REALMS))


def test_practice_in_more_realms_draws_from_all_of_them() -> None:
    practice = RealmsConfig(practice=True, realms=32)
    assert {layout.realm for layout in map(layouts(practice).of, range(600))} == set(range(32))
    assert {f"r{realm}" for realm in range(32)} <= set(vocabulary(practice))
    with pytest.raises(ValidationError, match="realm 16 is none of the 16 there are: r0 to r15"):
        RealmsConfig(realm=16)
    assert "realms" not in RealmsConfig().model_dump(), (
        "experiments begun before there was such a key keep their digest"
    )


def test_truth_counts_key_and_goal() -> None:
    environment = RealmsEnvironment(CONFIG)
    key, goal = hidden_rule(CONFIG)
    other = next(letter for letter in "ABCDEFGH" if letter not in (key, goal))
    assert environment.truth(experience_text(key, goal)) == 1
    assert environment.truth(f"in this realm take {key} then {other} .") == 0.5
    assert environment.truth(f"take {key}") == 0.5
    assert environment.truth(experience_text(other, other)) == 0
    assert environment.truth("be careful") is None


def test_sizes_that_cannot_be_won_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="objects"):
        RealmsConfig(objects=9, symbols=8)
    monkeypatch.setattr("crl.envs.realms._DRAWS", 1)
    with pytest.raises(BadInput, match="finds no level of training"):
        for seed in range(100):
            layouts(RealmsConfig(longest_path=2, held_out_moves=2)).of(seed)


def test_layout_text_lists_symbols_in_order_of_cells() -> None:
    layout = layouts(CONFIG).of(5)
    words = layout.text().split()
    cells = [int(word.split("@")[1]) for word in words[:-2]]
    assert cells == sorted(cells) and words[-2:] == ["at", f"p{layout.start}"]
    assert np.array_equal(sorted(layout.cells.values()), cells)


def test_a_whole_rule_is_key_and_goal_and_nothing_less() -> None:
    environment = RealmsEnvironment(CONFIG)
    key, goal = hidden_rule(CONFIG)
    assert isinstance(environment, KnowsRule)
    assert environment.whole(experience_text(key, goal))
    assert not any(map(environment.whole, (experience_text(goal, key), f"take {key}", "be careful", "")))
    assert not RealmsEnvironment(CONFIG.model_copy(update={"practice": True})).whole(experience_text(key, goal))
