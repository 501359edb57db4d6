"""Advantages and weights of eq. 5 against plain sums, on random groups with empty and singleton subgroups."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.credit.advantages import standardized, subgroup_advantages

TOLERANCE = 1e-5
members = st.lists(st.tuples(st.floats(-3, 3, allow_subnormal=False), st.booleans()), min_size=1, max_size=12)


def streams(guided: list[bool]) -> list[str]:
    """The stream of each member."""
    return ["guided" if flag else "free" for flag in guided]


def by_hand(rewards: list[float], scale_rewards: str) -> list[float]:
    """Textbook mean and population standard deviation."""
    if not rewards:
        return []
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    if deviation < 1e-6:
        return [0.0] * len(rewards)
    return [(reward - mean) / (deviation if scale_rewards == "group" else 1.0) for reward in rewards]


@settings(deadline=None, max_examples=200)
@given(members, st.sampled_from(["group", "none"]), st.integers(1, 5))
def test_each_subgroup_has_its_own_baseline(
    group: list[tuple[float, bool]], scale_rewards: Literal["group", "none"], groups: int
) -> None:
    rewards, guided = [reward for reward, _ in group], [flag for _, flag in group]
    spread = [np.std([reward for reward, flag in group if flag == side] or [0.0]) for side in (True, False)]
    if any(1e-7 < value < 1e-5 for value in spread):
        return  # at the threshold itself two ways of summing may fall on different sides
    advantages_G, weights_G = subgroup_advantages(
        rewards, streams(guided), scale_rewards=scale_rewards, mode="subgroup", groups=groups
    )
    for side in (True, False):
        of_side = [index for index, flag in enumerate(guided) if flag == side]
        expected = by_hand([rewards[index] for index in of_side], scale_rewards)
        assert list(advantages_G[of_side]) == pytest.approx(expected, rel=TOLERANCE, abs=1e-9)
        assert list(weights_G[of_side]) == pytest.approx([0.5 / len(of_side) / groups for _ in of_side])
    assert sum(weights_G) * groups == pytest.approx(len(set(guided)) / 2)


@settings(deadline=None, max_examples=100)
@given(members)
def test_pooled_has_one_baseline(group: list[tuple[float, bool]]) -> None:
    rewards, guided = [reward for reward, _ in group], [flag for _, flag in group]
    if 1e-7 < np.std(rewards) < 1e-5:
        return
    advantages_G, weights_G = subgroup_advantages(rewards, streams(guided), scale_rewards="group", mode="pooled")
    assert list(advantages_G) == pytest.approx(by_hand(rewards, "group"), rel=TOLERANCE, abs=1e-9)
    assert list(weights_G) == pytest.approx([1 / len(group)] * len(group))


def test_a_guided_group_that_always_wins_teaches_nothing_about_the_free_one() -> None:
    """Why the split: pooled, guided members look good merely for being guided."""
    rewards, guided = [1, 1, 1, 0], [True, True, False, False]
    split, _ = subgroup_advantages(rewards, streams(guided), scale_rewards="group", mode="subgroup")
    pooled, _ = subgroup_advantages(rewards, streams(guided), scale_rewards="group", mode="pooled")
    assert list(split) == [0, 0, 1, -1]
    assert pooled[0] > 0


@pytest.mark.parametrize(
    ("rewards", "guided", "advantages", "weights"),
    [
        ([1.0, 0.0], [True, False], [0, 0], [0.5, 0.5]),
        ([1.0, 0.0], [False, False], [1, -1], [0.25, 0.25]),
        ([1.0, 1.0, 0.0], [True, True, False], [0, 0, 0], [0.25, 0.25, 0.5]),
        ([0.5, 0.5 + 1e-7], [True, True], [0, 0], [0.25, 0.25]),
        ([], [], [], []),
    ],
    ids=["singletons", "empty guided", "all equal", "below the threshold", "nobody"],
)
def test_edges(rewards: list[float], guided: list[bool], advantages: list[float], weights: list[float]) -> None:
    found, weighed = subgroup_advantages(rewards, streams(guided), scale_rewards="group", mode="subgroup")
    assert list(found) == pytest.approx(advantages)
    assert list(weighed) == pytest.approx(weights)


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rewards"):
        subgroup_advantages([1.0, 0.0], ["guided"], scale_rewards="group", mode="subgroup")


def test_any_number_of_streams_each_with_its_own_baseline_and_an_equal_share() -> None:
    """What guided and free are to the paper, first and second attempts are to another recipe."""
    rewards = [1.0, 0.0, 0.37, 0.12, 0.9, 0.9]
    of = ["first", "first", "second", "second", "reflection", "reflection"]
    found, weighed = subgroup_advantages(rewards, of, streams=("first", "reflection", "second"), groups=2)
    assert list(found) == pytest.approx([1, -1, 1, -1, 0, 0])
    assert list(weighed) == pytest.approx([1 / 3 / 2 / 2] * 6)
    with pytest.raises(ValueError, match="stream third; expected first, second"):
        subgroup_advantages([1.0], ["third"], streams=("first", "second"))


@pytest.mark.parametrize("word", ["std", "mean", "batch", "", None])
def test_another_word_for_the_scale_is_refused(word: Any) -> None:
    """By an older one, or TRL's `batch`, nothing would be scaled and nobody told."""
    with pytest.raises(ValueError, match="expected group or none"):
        standardized(np.array([0.0, 1.0]), word)
