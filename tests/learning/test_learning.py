"""Learning is real: the stages of training, on a run directory, make a tiny transformer succeed at multi-turn tasks.

The actor (GRPO): from random legal play to winning nearly always. The extractor (CISPO): of two kinds of experience,
one helpful and one harmful, the helpful one's share goes from about half to nearly all. With only the reward's sign
flipped, and everything else equal, both fall. Metrics are those of the rows that training wrote; `learners.py` holds
the bounds, with the mean and the spread that were measured beside each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from crl.envs.frozenlake import lakes
from crl.records import BufferItem, Distillation, Episode, Operation
from tests.learning import learners
from tests.learning.harness import rows
from tests.learning.learners import BOUNDS, DEVIATIONS, Starts, check

SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(3)]
"""Slow: `make test` sees both models learn in `test_one_round.py`."""


def told(what: str, seed: int, by_round: Sequence[float]) -> None:
    print(f"{what}, seed {seed}, by round {[round(value, 2) for value in by_round]}")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    return learners.make_starts(tmp_path_factory.mktemp("starts") / "models")


@pytest.mark.parametrize(
    ("learner", "metric"), [(learner, metric) for learner, bounds in BOUNDS.items() for metric in bounds]
)
def test_every_bound_is_far_from_what_was_measured(learner: str, metric: str) -> None:
    bound = BOUNDS[learner][metric]
    assert bound.distance(bound.mean, bound.deviation) >= DEVIATIONS


@pytest.mark.parametrize("seed", SEEDS)
def test_grpo_raises_success_from_chance(tmp_path: Path, seed: int) -> None:
    run = learners.train_actor(tmp_path, seed)
    told("GRPO: success", seed, learners.success_by_round(run))
    family = run.method.families[0]
    drawn = lakes(family.environment)
    maps = [drawn.of(family.train_seeds.start + index) for index in range(6)]
    assert all(len(lake.path(lake.start) or []) >= 2 for lake in maps), "every map is won over several turns"
    check("actor", learners.actor_metrics(run))


@pytest.mark.parametrize("seed", SEEDS)
def test_grpo_with_the_sign_of_the_reward_flipped_lowers_success(tmp_path: Path, seed: int) -> None:
    run = learners.train_actor(tmp_path, seed, flipped=True)
    told("GRPO flipped: success", seed, learners.success_by_round(run))
    check("actor, flipped", learners.flipped_actor_metrics(run))


@pytest.mark.parametrize("seed", SEEDS)
def test_cispo_raises_the_share_of_the_helpful_experience(tmp_path: Path, start: Starts, seed: int) -> None:
    run = learners.train_extractor(tmp_path, start, seed)
    told("CISPO: helpful share", seed, learners.helpful_by_round(run))
    check("extractor", learners.extractor_metrics(run))
    advised = [each for each in rows(run, Episode, "collect", run.rounds()[2:]) if each.guided and each.success]
    assert advised and all(each.turns >= 3 for each in advised), "advice acts over several turns"
    for number in run.rounds()[1:]:
        written = [row for row in rows(run, Distillation, "distill", [number]) if row.reason_code == "ok"]
        assert len(rows(run, Operation, "distill", [number])) == len(written)
    waits = [
        item.generation_round < number
        for number in run.rounds()[2:]
        for item in rows(run, BufferItem, "credit", [number])
        if item.status == "selected" and item.kind == "used"
    ]
    assert waits and all(waits), "experiences are trained after later episodes used them"
    assert max(learners.clipped_updates(run)) > 0, "ratios are those of stored log-probabilities, some updates old"


@pytest.mark.parametrize("seed", SEEDS)
def test_cispo_with_the_sign_of_the_reward_flipped_lowers_it(tmp_path: Path, start: Starts, seed: int) -> None:
    run = learners.train_extractor(tmp_path, start, seed, flipped=True)
    told("CISPO flipped: helpful share", seed, learners.helpful_by_round(run))
    check("extractor, flipped", learners.flipped_extractor_metrics(run))
