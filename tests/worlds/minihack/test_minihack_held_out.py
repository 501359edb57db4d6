"""What MiniHack holds out: no level is on both sides, equal seeds are equal levels, held-out ones are worth playing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from crl.envs import check_environment
from crl.envs.levels import BLOCK
from crl.errors import BadInput
from crl.worlds.minihack.environment import MiniHackConfig
from tests.unit.envs.test_held_out import FROM, check_moves, check_order, check_sides, contents, made

pytest.importorskip("minihack", reason="minihack is not installed")

__all__ = ["made"]  # a fixture
ROOM = "MiniHack-Room-Ultimate-5x5-v0"
CASES = [
    (ROOM, 30),
    # The same code over other levels.
    pytest.param("MiniHack-KeyRoom-Dark-S5-v0", 40, marks=pytest.mark.slow),
    pytest.param("MiniHack-MazeWalk-9x9-v0", 40, marks=pytest.mark.slow),
    pytest.param("MiniHack-River-Narrow-v0", 40, marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "levels"), CASES)
def test_no_level_is_both_trained_and_held_out(made, name, levels):
    check_sides(made(MiniHackConfig(id=name)), levels, shows_all=False)


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize(("name", "levels"), CASES)
def test_equal_seeds_are_equal_levels_in_whatever_order_they_are_asked_for(made, name, levels):
    check_order(made, MiniHackConfig(id=name))


@pytest.mark.slow
def test_equal_seeds_are_equal_levels_in_another_process(made):
    program = (
        "from crl.worlds.minihack.environment import MiniHackConfig\n"
        "from tests.unit.envs.test_held_out import contents\n"
        "print(contents(MiniHackConfig().make(), [3, 4, 1_000_001, 1_000_002]))"
    )
    here = contents(made(MiniHackConfig(id=ROOM)), [3, 4, FROM + 1, FROM + 2])
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(here)


@pytest.mark.slow
def test_held_out_rooms_need_three_moves_and_64_of_them_are_64_layouts(made):
    """The moves as somebody counts them who sees the content: those of a king, from @ to >."""
    environment = made(MiniHackConfig(id=ROOM))
    rooms = [content for content, _ in contents(environment, range(FROM, FROM + BLOCK))]
    assert len(set(rooms)) == BLOCK
    cells = [{symbol: divmod(room.replace("\n", "").index(symbol), 5) for symbol in "@>"} for room in rooms]
    moves = [max(abs(at["@"][0] - at[">"][0]), abs(at["@"][1] - at[">"][1])) for at in cells]
    assert min(moves) == 3 and max(moves) == 4
    trained = [content for content, _ in contents(environment, range(100))]
    assert any(re_near(content) for content in trained), "training meets the short ones too"


def re_near(room: str) -> bool:
    return "@>" in room or ">@" in room


def test_the_oracle_finds_the_stairs_of_a_level_where_its_content_says(made):
    """A game that is walked to its end leads over the layout from @ to >."""
    environment = made(MiniHackConfig(id="MiniHack-Room-Dark-5x5-v0", max_turns=40))
    seeds = [*range(10), *range(FROM, FROM + 10)]
    environment.reset_many(seeds)
    walked = 0
    for slot in range(len(seeds)):
        room = environment.content(slot).split("\n")
        start = next((r, row.index("@")) for r, row in enumerate(room) if "@" in row)
        row, column = start
        while (move := environment.oracle(slot)) is not None:
            step = environment.step_many({slot: move})[slot]
            row += ("south" in move) - ("north" in move)
            column += ("east" in move) - ("west" in move)
        assert step.success
        assert room[row][column] == ">"
        walked += 1
    assert walked == len(seeds)


@pytest.mark.slow
def test_a_task_with_one_level_is_refused_unless_it_says_so(made):
    one = MiniHackConfig(id="MiniHack-Room-5x5-v0")
    made(one)
    with pytest.raises(BadInput, match="draws made 1 different level\n") as caught:
        check_environment(one)
    assert "held_out_from: null" in str(caught.value)
    single = one.model_copy(update={"held_out_from": None})
    check_environment(single)
    environment = made(single)
    assert len(set(contents(environment, [0, 5, FROM]))) == 1


def test_held_out_levels_may_not_need_more_moves_than_a_game_has_turns():
    check_moves(MiniHackConfig)
