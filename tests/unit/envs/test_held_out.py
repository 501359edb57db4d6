"""Held out means by content: no level lies on both sides, in any environment; and a held-out level is worth playing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from crl.config import ENVIRONMENTS, FamilyConfig, SeedRange
from crl.envs import check_environment
from crl.envs.frozenlake import FrozenLakeConfig, lakes
from crl.envs.levels import BLOCK, REPEATS, Levels, is_held_out
from crl.envs.masked_lake import MaskedLakeConfig
from crl.envs.realms import RealmsConfig, layouts
from crl.envs.shrines import ShrinesConfig
from crl.envs.sokoban import SokobanConfig
from crl.errors import BadInput
from crl.protocols import Leveled
from crl.worlds.minihack.environment import MiniHackConfig
from tests.marks import sampled

FROM = 1_000_000
ROOM = "MiniHack-Room-Ultimate-5x5-v0"
CASES = [
    # Small maps, so that a level comes again and again.
    (FrozenLakeConfig(size_min=3, size_max=3, frozen_probability=0.9), 3000),
    (FrozenLakeConfig(size_min=4, size_max=4), 1000),
    (FrozenLakeConfig(size_min=2, size_max=9, frozen_probability=0.6, masked=True), 1000),
    (MaskedLakeConfig(realm=3, world=7), 1000),
    (RealmsConfig(side=3, symbols=4, objects=2), 1000),
    (RealmsConfig(realm=3, world=7, practice=True), 1000),
    (ShrinesConfig(shrine=2, world=7, things=24, shown=6), 1000),
    (ShrinesConfig(practice=True, things=24, shown=5), 1000),
    (SokobanConfig(size_min=5, size_max=5, boxes=1), 800),
    (SokobanConfig(), 400),
    (MiniHackConfig(id=ROOM), 30),
]
MORE = [  # the same code over other levels
    pytest.param(MiniHackConfig(id="MiniHack-KeyRoom-Dark-S5-v0"), 40, marks=pytest.mark.slow),
    pytest.param(MiniHackConfig(id="MiniHack-MazeWalk-9x9-v0"), 40, marks=pytest.mark.slow),
    pytest.param(MiniHackConfig(id="MiniHack-River-Narrow-v0"), 40, marks=pytest.mark.slow),
]
EVERY = pytest.mark.parametrize(
    ("config", "levels"), [*CASES, *MORE], ids=lambda each: getattr(each, "id", getattr(each, "kind", each))
)


def contents(environment, seeds, width=100):
    """The content of every seed's level, in order, and what is seen of it first."""
    found = []
    for at in range(0, len(seeds), width):
        starts = environment.reset_many(seeds[at : at + width])
        found += [(environment.content(slot), start.observation) for slot, start in enumerate(starts)]
    return found


@pytest.fixture
def made():
    opened = []

    def make(config):
        if config.kind == "minihack":
            pytest.importorskip("minihack", reason="minihack is not installed")
        opened.append(config.make())
        return opened[-1]

    yield make
    for environment in opened:
        environment.close()


# Files, published tasks or packages of others; what is held out of them is proved beside their other tests.
ELSEWHERE = {
    "alfworld", "hotpotqa", "swe", "webshop", "gymnasium", "minigrid", "textarena", "reasoning_gym", "textworld",
}  # fmt: skip


def test_every_registered_environment_is_proved_here():
    assert {config.kind for config, _ in CASES} | ELSEWHERE == set(ENVIRONMENTS.names())


@EVERY
def test_no_level_is_both_trained_and_held_out(made, config, levels):
    environment = made(config)
    assert isinstance(environment, Leveled)
    sides = contents(environment, range(levels)), contents(environment, range(FROM, FROM + min(levels, 128)))
    trained, held_out = ({content for content, _ in side} for side in sides)
    assert len(trained) > 20 and len(held_out) > 8, "there is something to hold apart"
    assert not trained & held_out
    assert all(map(is_held_out, held_out)) and not any(map(is_held_out, trained))
    if config.kind != "minihack":  # where the first observation shows all of the level, it says the same
        assert not {seen for _, seen in sides[0]} & {seen for _, seen in sides[1]}


@pytest.mark.slow
@EVERY
def test_equal_seeds_are_equal_levels_in_whatever_order_they_are_asked_for(made, config, levels):
    seeds = [*range(20), *range(FROM, FROM + 20), FROM + BLOCK + 3]
    first, second = made(config), made(config)
    forward = dict(zip(seeds, contents(first, seeds), strict=True))
    backward = dict(zip(seeds[::-1], contents(second, seeds[::-1]), strict=True))
    assert forward == backward
    assert contents(first, seeds) == [forward[seed] for seed in seeds], "and again from what is kept"


def test_equal_seeds_are_equal_levels_in_another_process(made):
    program = (
        "from crl.worlds.minihack.environment import MiniHackConfig\n"
        "from tests.unit.envs.test_held_out import FROM, ROOM, contents\n"
        "print(contents(MiniHackConfig(id=ROOM).make(), [3, 4, FROM + 1, FROM + 2]))"
    )
    here = contents(made(MiniHackConfig(id=ROOM)), [3, 4, FROM + 1, FROM + 2])
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(here)


# -- what a held-out level is worth ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_held_out_maps_need_three_moves_and_those_of_training_any_number():
    held_out, trained = ([levels.of(seed) for seed in range(first, first + 200)]
                         for levels in [lakes(FrozenLakeConfig())] for first in (FROM, 0))  # fmt: skip
    assert min(lake.moves for lake in held_out) == 3 and min(lake.moves for lake in trained) == 1
    longer = [lakes(FrozenLakeConfig(held_out_moves=5)).of(FROM + seed).moves for seed in range(30)]
    assert min(longer) == 5
    ways = [layouts(RealmsConfig(held_out_moves=4)).of(FROM + seed).moves for seed in range(100)]
    assert min(ways) == 4 and max(ways) <= 6


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
    """Of what was seen in a game that was walked to its end, every floor cell and the way fit the layout."""
    environment = made(MiniHackConfig(id="MiniHack-Room-Dark-5x5-v0", max_turns=40))
    seeds = [*range(10), *range(FROM, FROM + 10)]
    environment.reset_many(seeds)
    walked = 0
    for slot in range(len(seeds)):
        room = environment.content(slot).split("\n")
        start = next((r, row.index("@")) for r, row in enumerate(room) if "@" in row)
        row, column = environment._slots[slot].screen.row, environment._slots[slot].screen.column
        while (move := environment.oracle(slot)) is not None:
            step = environment.step_many({slot: move})[slot]
        assert step.success
        end = environment._slots[slot].screen
        found = start[0] + end.row - row, start[1] + end.column - column
        assert room[found[0]][found[1]] == ">"
        walked += 1
    assert walked == len(seeds)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "found"),
    sampled([
        (FrozenLakeConfig(size_min=2, size_max=2), "takes at least 3 moves"),
        (FrozenLakeConfig(frozen_probability=0.05, held_out_moves=6), "takes at least 6 moves"),
        (RealmsConfig(side=3, objects=2, symbols=4, longest_path=8, held_out_moves=8), "takes at least 8 moves"),
    ], 2),
)  # fmt: skip
def test_settings_without_such_levels_are_refused(config, found):
    with pytest.raises(BadInput, match=found) as caught:
        check_environment(config)
    assert f"seed {FROM}" in str(caught.value) and "held_out_moves" in str(caught.value)


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


@pytest.mark.parametrize(
    ("train", "evaluation", "told"),
    [
        (SeedRange(start=0, count=FROM + 1), SeedRange(start=2 * FROM, count=8), "train_seeds end with 1000000"),
        (SeedRange(start=0, count=100), SeedRange(start=100, count=8), "evaluation_seeds begin with 100"),
    ],
)
def test_seed_ranges_must_lie_on_their_sides(train, evaluation, told):
    for environment in (FrozenLakeConfig(), RealmsConfig(), ShrinesConfig(), MiniHackConfig()):
        with pytest.raises(ValueError, match=told):
            FamilyConfig(name="a", environment=environment, train_seeds=train, evaluation_seeds=evaluation)
    FamilyConfig(
        name="a", environment=MiniHackConfig(held_out_from=None), train_seeds=train, evaluation_seeds=evaluation
    )


# -- the rule itself ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    content: str
    moves: int | None = None


def test_a_block_of_held_out_seeds_repeats_a_level_only_where_there_is_no_other():
    names = [f"level {number}" for number in range(200)]
    held_out = [name for name in names if is_held_out(name)]

    def draws(seed: int) -> Iterator[Named]:
        random = np.random.default_rng(seed)
        while True:
            yield Named(str(random.choice(names)))

    levels = Levels(draws, held_out_from=0, fewest_moves=1, draws=20_000, where="here")
    block = [levels.of(seed).content for seed in range(BLOCK)]
    assert len(held_out) < BLOCK and set(block) <= set(held_out)
    assert len(set(block)) > 0.9 * len(held_out), f"of {REPEATS} levels one is new, mostly"
    assert len(set(block[: len(held_out) // 2])) == len(held_out) // 2


def test_draws_that_make_no_level_are_counted_and_passed_over():
    def draws(seed: int) -> Iterator[Named | None]:
        yield from [None] * 9
        while True:
            yield Named("a")

    for first in (None, 0 if is_held_out("a") else 10**9):
        assert Levels(draws, held_out_from=first, fewest_moves=1, draws=10, where="here").of(5) == Named("a")
        with pytest.raises(BadInput, match="9 draws made 0 different levels"):
            Levels(draws, held_out_from=first, fewest_moves=1, draws=9, where="here").of(5)


@pytest.mark.parametrize("config", [MiniHackConfig, FrozenLakeConfig])
def test_held_out_levels_may_not_need_more_moves_than_a_game_has_turns(config):
    """Every held-out game would be lost, and nothing would say why."""
    with pytest.raises(ValueError, match="held_out_moves 3 is more than max_turns 2"):
        config(max_turns=2)
    assert config(max_turns=3).held_out_moves == 3
    assert config(max_turns=2, held_out_from=None).max_turns == 2, "nothing is held out"
