"""Held out means by content: no level lies on both sides, in any environment; and a held-out level is worth playing."""

from __future__ import annotations

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
from tests.marks import sampled

FROM = 1_000_000
CASES = [
    # Small maps, so that a level comes again and again.
    (FrozenLakeConfig(size_min=3, size_max=3, frozen_probability=0.9), 3000),
    (FrozenLakeConfig(size_min=4, size_max=4), 1000),
    (FrozenLakeConfig(size_min=2, size_max=9, frozen_probability=0.6, masked=True), 1000),
    (MaskedLakeConfig(lake=3, world=7), 1000),
    (RealmsConfig(side=3, symbols=4, objects=2), 1000),
    (RealmsConfig(realm=3, world=7, practice=True), 1000),
    (ShrinesConfig(shrine=2, world=7, things=24, choices=6), 1000),
    (ShrinesConfig(practice=True, things=24, choices=5), 1000),
    (SokobanConfig(size_min=5, size_max=5, boxes=1), 800),
    (SokobanConfig(), 400),
]
EVERY = pytest.mark.parametrize(("config", "levels"), CASES, ids=lambda each: getattr(each, "kind", each))


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
        opened.append(config.make())
        return opened[-1]

    yield make
    for environment in opened:
        environment.close()


def test_every_environment_of_the_core_is_proved_here():
    """What guests hold out is proved beside their other tests."""
    assert {config.kind for config, _ in CASES} == set(ENVIRONMENTS.built_in())


@EVERY
def test_no_level_is_both_trained_and_held_out(made, config, levels):
    check_sides(made(config), levels)


def check_sides(environment, levels, *, shows_all=True):
    """No level of an environment is on both sides."""
    assert isinstance(environment, Leveled)
    sides = contents(environment, range(levels)), contents(environment, range(FROM, FROM + min(levels, 128)))
    trained, held_out = ({content for content, _ in side} for side in sides)
    assert len(trained) > 20 and len(held_out) > 8, "there is something to hold apart"
    assert not trained & held_out
    assert all(map(is_held_out, held_out)) and not any(map(is_held_out, trained))
    seen, unseen = ({observation for _, observation in side} for side in sides)
    assert not shows_all or not seen & unseen, "the first observation shows all of the level"


@pytest.mark.slow
@EVERY
def test_equal_seeds_are_equal_levels_in_whatever_order_they_are_asked_for(made, config, levels):
    check_order(made, config)


def check_order(made, config):
    """Two environments of a config draw equal levels for equal seeds."""
    seeds = [*range(20), *range(FROM, FROM + 20), FROM + BLOCK + 3]
    first, second = made(config), made(config)
    forward = dict(zip(seeds, contents(first, seeds), strict=True))
    backward = dict(zip(seeds[::-1], contents(second, seeds[::-1]), strict=True))
    assert forward == backward
    assert contents(first, seeds) == [forward[seed] for seed in seeds], "and again from what is kept"


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


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("train", "evaluation", "told"),
    [
        (SeedRange(start=0, count=FROM + 1), SeedRange(start=2 * FROM, count=8), "train_seeds end with 1000000"),
        (SeedRange(start=0, count=100), SeedRange(start=100, count=8), "evaluation_seeds begin with 100"),
    ],
)
def test_seed_ranges_must_lie_on_their_sides(train, evaluation, told):
    for environment in (FrozenLakeConfig(), RealmsConfig(), ShrinesConfig()):
        with pytest.raises(ValueError, match=told):
            FamilyConfig(name="a", environment=environment, train_seeds=train, evaluation_seeds=evaluation)
    FamilyConfig(
        name="a", environment=FrozenLakeConfig(held_out_from=None), train_seeds=train, evaluation_seeds=evaluation
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


def test_held_out_levels_may_not_need_more_moves_than_a_game_has_turns():
    check_moves(FrozenLakeConfig)


def check_moves(config):
    """Every held-out game would be lost, and nothing would say why."""
    with pytest.raises(ValueError, match="held_out_moves 3 is more than max_turns 2"):
        config(max_turns=2)
    assert config(max_turns=3).held_out_moves == 3
    assert config(max_turns=2, held_out_from=None).max_turns == 2, "nothing is held out"
