"""What an environment must not give: the slot ends with a reason code, others go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crl.errors import EnvironmentBroken
from crl.protocols import Start
from crl.rollout.environments import MixedEnvironment, starts_or_errors, step_or_error
from tests.unit.envs.misbehaving import Misbehaving
from tests.unit.rollout.fakes import Corridor

ACTIONS = {0: "right", 1: "right", 2: "right"}


class Odd(Corridor):
    """Gives slot 1 another reward, or no step."""

    def __init__(self, *reward: Any, together: bool) -> None:
        super().__init__()
        self.reward, self.steps_together = reward, together
        self.reset_many([3, 3, 3])

    def step_many(self, actions):
        steps = super().step_many(actions)
        if 1 in steps:
            own = steps.pop(1)
            for value in self.reward:
                steps[1] = replace(own, reward=value)
        return steps


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("reward", [None, "much", float("nan"), float("inf"), [1.0], 10**400])
def test_a_reward_that_is_no_finite_number_ends_its_slot_alone(reward: Any, together: bool) -> None:
    steps = step_or_error(Odd(reward, together=together), ACTIONS)
    assert [steps[slot].error for slot in ACTIONS] == [None, "environment_reward", None]
    assert steps[1].done and steps[1].reward == 0.0


@pytest.mark.parametrize("together", [False, True])
def test_a_slot_without_a_step_ends_with_a_reason(together: bool) -> None:
    steps = step_or_error(Odd(together=together), ACTIONS)
    assert [steps[slot].error for slot in ACTIONS] == [None, "environment_no_step", None]


@pytest.mark.parametrize("reward", [1, True, np.float32(0.5), np.int64(2)])
def test_other_kinds_of_numbers_are_rewards(reward: Any) -> None:
    assert step_or_error(Odd(reward, together=True), ACTIONS)[1].error is None


def test_seeds_that_do_not_start_cost_their_own_episodes_even_where_no_other_is_there() -> None:
    rough, failed = Misbehaving(["reset_raise", "reset_raise", "well"]), Start.failed("environment_KeyError")
    assert starts_or_errors(rough, [0]) == starts_or_errors(rough, [1]) == [failed]
    assert starts_or_errors(rough, [0, 0]) == [failed] * 2
    # Several seeds: where others start, it is these that are bad.
    assert starts_or_errors(rough, [0, 1, 0]) == [failed] * 3
    with pytest.raises(EnvironmentBroken, match="KeyError"):  # else it is the environment: the stage is tried again
        starts_or_errors(Misbehaving(["reset_raise"] * 5), [0, 1, 0])
    assert [start.error for start in starts_or_errors(rough, [0, 2, 1])] == [failed.error, None, failed.error]
    mixed = MixedEnvironment(["rough", "sound"], {"rough": rough, "sound": Corridor()}.__getitem__)
    assert [start.error for start in starts_or_errors(mixed, [0, 3])] == [failed.error, None]
    assert starts_or_errors(MixedEnvironment(["rough", "rough"], {"rough": rough}.__getitem__), [0, 1]) == [failed] * 2
    both = MixedEnvironment(["rough", "rough"], {"rough": Misbehaving(["reset_raise"] * 5)}.__getitem__)
    with pytest.raises(EnvironmentBroken, match="none of 2 episodes"):
        starts_or_errors(both, [0, 1])
