"""Pools of episodes against plain arithmetic: order, caps, shares of batches; capability; a file of given steps."""

from __future__ import annotations

import json
import math
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crl.errors import BadInput
from crl.recipes.dreamgym.config import PoolsConfig
from crl.recipes.dreamgym.given import episodes_of, splits_of
from crl.recipes.dreamgym.plan import mean_capability
from crl.recipes.dreamgym.pools import Parts, drawn, largest, pools_after
from crl.recipes.dreamgym.rows import PooledEpisode, TaskValue
from tests.recipes.dreamgym.dreamgym_played import experiment
from tests.recipes.dreamgym.given_file import write_given


def pooled(number: int, pool: str) -> PooledEpisode:
    return PooledEpisode(
        pool=pool, episode_id=f"{pool}-{number}", family="lake", generation_round=1, generation_stage="collect",
        generation_ids=["g"], reward=1.0, advantage=1.0, entered_order=number, status="held",
    )  # fmt: skip


def test_each_pool_holds_its_newest_and_the_oldest_leave_first() -> None:
    rng, config = np.random.default_rng(1), PoolsConfig(real=5, synthetic=3)
    expected = {"real": deque[str](maxlen=5), "synthetic": deque[str](maxlen=3)}
    left: dict[str, list[str]] = {"real": [], "synthetic": []}
    entered: dict[str, list[str]] = {"real": [], "synthetic": []}
    pools: list[PooledEpisode] = []
    for first in range(0, 200, 10):
        places = range(first, first + int(rng.integers(0, 9)))
        new = [pooled(place, str(rng.choice(["real", "synthetic"]))) for place in places]
        pools = pools_after(pools, new, config)
        for item in new:
            expected[item.pool].append(item.episode_id)
            entered[item.pool].append(item.episode_id)
        for pool, held in expected.items():
            assert [item.episode_id for item in pools if item.pool == pool and item.status == "held"] == list(held)
            left[pool] += [item.episode_id for item in pools if item.pool == pool and item.status == "evicted"]
    for pool, names in left.items():
        assert names and names == entered[pool][: len(names)]


def by_hand(real: int, synthetic: int, batch: int, share: float) -> Parts:
    """The largest batch of the set share, out of all that could be drawn."""
    best = Parts(0, 0)
    for of_real in range(real + 1):
        for of_synthetic in range(synthetic + 1):
            size = of_real + of_synthetic
            both = (of_real > 0 or share == 0) and (of_synthetic > 0 or share == 1)
            nearest = of_real == math.floor(share * size + 0.5)
            if 0 < size <= batch and both and nearest and size > sum(best):
                best = Parts(of_real, of_synthetic)
    return best


@given(
    real=st.integers(0, 12), synthetic=st.integers(0, 12), batch=st.integers(1, 16),
    share=st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.75, 1.0]), seed=st.integers(0, 5),
)  # fmt: skip
def test_a_batch_has_the_set_share_and_repeats_nothing(
    real: int, synthetic: int, batch: int, share: float, seed: int
) -> None:
    expected = by_hand(real, synthetic, batch, share)
    assert largest(Parts(real, synthetic), batch, share) == expected
    held = [pooled(n, "real") for n in range(real)] + [pooled(n, "synthetic") for n in range(synthetic)]
    batches = drawn(held, PoolsConfig(steps=3, batch=batch), share, np.random.default_rng(seed))
    assert len(batches) == (3 if sum(expected) else 0)
    for each in batches:
        names = [item.episode_id for item in each]
        assert len(set(names)) == len(names) == sum(expected)
        assert sum(item.pool == "real" for item in each) == expected.real


def test_every_episode_of_a_pool_is_as_likely_as_another() -> None:
    held = [pooled(n, "real") for n in range(10)] + [pooled(n, "synthetic") for n in range(30)]
    config = PoolsConfig(steps=2000, batch=8)
    counts = dict.fromkeys((item.episode_id for item in held), 0)
    for batch in drawn(held, config, 0.5, np.random.default_rng(3)):
        for item in batch:
            counts[item.episode_id] += 1
    for item in held:
        chance = 4 / (10 if item.pool == "real" else 30)
        assert abs(counts[item.episode_id] / 2000 - chance) <= 5 * math.sqrt(chance * (1 - chance) / 2000)


def value(seed: int, success: float, *, number: int = 1, synthetic: bool = True, family: str = "lake") -> TaskValue:
    return TaskValue(
        round=number, family=family, group=0, environment_seed=seed, first_observation=f"o{seed}", synthetic=synthetic,
        made="drawn", difficulty=0.5, rollouts=4, mean=success, variance=0.1, success=success,
    )  # fmt: skip


def test_capability_is_the_mean_success_of_tasks_that_were_completed_in_the_model() -> None:
    assert mean_capability([], "lake", 0.7) == 0.5
    values = [value(1, 0.6), value(2, 0.5, synthetic=False), value(3, 1.0, family="pond")]
    assert mean_capability(values, "lake", 0.7) == 0.5, "not completed, played in reality, another family"
    values += [value(1, 0.75, number=2), value(4, 1.0, number=2), value(1, 0.25, number=3)]
    assert mean_capability(values, "lake", 0.7) == pytest.approx((0.75 + 1.0) / 2), "what was completed stays so"
    assert mean_capability([*values, value(1, 1.0, number=4)], "lake", 0.7) == 1.0, "by its latest such group"


def test_a_file_is_read_as_episodes_and_its_last_ones_are_held_out(tmp_path: Path) -> None:
    made = experiment(method__recipe__given="any", method__families__0__train_seeds={"start": 0, "count": 10})
    [family] = made.method.families
    rows = write_given(tmp_path / "given.jsonl", family, [0, 1, 9, 20, 21])
    episodes = episodes_of(made.method, tmp_path / "given.jsonl")["lake"]
    assert [step.action for steps in episodes for step in steps] == [row["action"] for row in rows]
    assert [steps[-1].outcome for steps in episodes] == ["success", "turn_limit"] * 5
    # Seeds 8 and 9 are held out; of the four episodes on other seeds the last one, a fifth rounded up.
    assert splits_of(made.method, family, episodes) == ["fit"] * 4 + ["held_out"] * 2 + ["fit"] * 3 + ["held_out"]


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (1, {"turn": 5}, "turn 5 of episode"),
        (0, {"outcome": "won"}, "outcome: Input should be"),
        (0, {"observation": " "}, "observation: String should match"),
        (1, {"observation": "elsewhere"}, "its observation is not the next_observation"),
        (0, {"family": "pond"}, "it is of the task family pond"),
        (0, {"environment_seed": 1_000_000}, "seed 1000000 is held out for evaluation"),
        (0, {"reward": 1.0, "outcome": "continues"}, "a step that ends nothing has a reward"),
        (0, {"episode_id": None}, "episode_id: Input should be"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, place: int, change: dict[str, Any], message: str) -> None:
    made = experiment(method__recipe__given="any")
    [family] = made.method.families
    rows = write_given(tmp_path / "given.jsonl", family, [3])
    lost = [row for row in rows if row["episode_id"].endswith("lost")]
    lost[place] |= change
    (tmp_path / "given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lost))
    with pytest.raises(BadInput, match=message) as refused:
        episodes_of(made.method, tmp_path / "given.jsonl")
    assert f"line {place + 1}" in (refused.value.where or "")


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"pools": {}, "synthetic_share": 1.0}, "recipe.pools.real_share"),
        ({"pools": {}, "synthetic_share": 0.0, "curriculum": None}, "recipe.pools.real_share"),
        ({"pools": {"real_share": 0.1, "batch": 4}}, "recipe.pools.real_share"),
        ({"curriculum": {"share": 0.5, "capability": "mean"}}, "recipe.curriculum.capability"),
        ({"explore": {"first": 0}}, "recipe.explore.first"),
    ],
)
def test_pools_that_stay_empty_are_refused(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(BadInput) as refused:
        experiment(**{f"method__recipe__{key}": value for key, value in settings.items()})
    assert refused.value.where is not None and where in refused.value.where
