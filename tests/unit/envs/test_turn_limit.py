"""A family's turn limit on an environment that has none of its own."""

from __future__ import annotations

import pytest

from crl.config import FamilyConfig, SeedRange
from crl.envs import make_environment
from crl.envs.frozenlake import FrozenLakeConfig
from crl.envs.shrines import ShrinesConfig, ShrinesEnvironment
from crl.envs.slots import TurnLimit
from crl.protocols import Explains, Graded, KnowsTruth, StopReason, Teacher
from tests.unit.recipes.endless import Endless, EndlessConfig


def family(**keys):
    seeds = {"train_seeds": SeedRange(start=0, count=9), "evaluation_seeds": SeedRange(start=9, count=1)}
    return FamilyConfig(name="walk", environment=EndlessConfig(), **seeds, **keys)


def test_an_episode_ends_at_the_limit_and_one_that_is_won_before_does_not():
    environment = make_environment(family(max_turns=2))
    environment.reset_many([0, 2])
    first = environment.step_many({0: None, 1: "right"})
    assert not first[0].done and not first[1].done and environment.oracle(0) == "right"
    last = environment.step_many({0: "right", 1: "right"})
    over, won = last[0], last[1]
    assert (over.done, over.success, over.stop_reason, over.reward) == (True, False, StopReason.turn_limit, 0.25)
    assert over.observation == "place 1\nNo turns are left." and over.actions == () and over.legal
    assert (won.done, won.success, won.stop_reason, won.observation) == (True, True, None, "place 4")
    assert environment.oracle(0) is None
    with pytest.raises(RuntimeError, match="slot 0 is done"):
        environment.step_many({0: "right"})
    environment.reset_many([0])
    assert not environment.step_many({0: "right"})[0].done, "a reset begins a new count"


def test_without_a_limit_there_is_no_end_and_nothing_around_the_environment():
    environment = make_environment(family())
    assert isinstance(environment, Endless)
    environment.reset_many([0])
    assert not any(environment.step_many({0: "left"})[0].done for _ in range(50))


def test_what_an_environment_knows_it_knows_with_a_limit_too():
    limited = TurnLimit(ShrinesEnvironment(ShrinesConfig()), 1)
    assert isinstance(limited, KnowsTruth) and isinstance(limited, Teacher)
    assert not isinstance(TurnLimit(Endless(), 1), KnowsTruth | Teacher)
    assert isinstance(TurnLimit(FrozenLakeConfig().make(), 1), Explains)
    assert isinstance(TurnLimit(FrozenLakeConfig().make(), 1), Graded) and not isinstance(limited, Explains | Graded)
    practice = limited.practice()
    practice.reset_many([0])
    assert practice.step_many({0: None})[0].done
    limited.close()
