"""The two learners of the learning tests, the metrics that are asserted about them, and where each bound lies.

The actor plays six small maps and is trained by GRPO; the extractor writes one of two kinds of experience and is
trained by CISPO. A bound is far from what an intact learner does, however numbers are rounded: see `Bound`. The mean
and the deviation beside each are measured by

    python benchmarks/learning_margins.py
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml

from crl.config import Experiment
from crl.config.load import parse_experiment
from crl.envs.frozenlake import lakes
from crl.records import Credit, Distillation, Episode, Metric, Operation
from crl.run.directory import RunDirectory
from tests.learning import starts
from tests.learning.harness import rows, share, train
from tests.learning.miniature import write_miniature

DEVIATIONS = 3.0
"""Least distance of a bound from the measured mean, in measured standard deviations."""


@dataclass(frozen=True)
class Bound:
    """What a metric has to be above or below, and its mean and standard deviation as measured.

    Measured are ten seeds with one and with two threads each. Other seeds and threads stand for another kind of CPU
    too: the last digits differ, so other tokens are sampled. With the plainest instructions of a CPU in place of its
    own, the means differ by a fifth of a deviation at most.
    """

    mean: float
    deviation: float
    above: float = -np.inf
    below: float = np.inf

    def holds(self, value: float) -> bool:
        """Whether a value is on the right side."""
        return self.above < value < self.below

    def distance(self, mean: float, deviation: float) -> float:
        """How many standard deviations lie between a mean and the nearer end; negative on the wrong side."""
        room = min(mean - self.above, self.below - mean)
        return float(room / deviation) if deviation > 0 else float(np.copysign(np.inf, room))


BOUNDS: dict[str, dict[str, Bound]] = {
    "actor": {
        # It plays at random: form is what the warm start taught, and no answer.
        "start less chance": Bound(-0.032, 0.037, above=-0.2, below=0.12),
        "end": Bound(0.970, 0.023, above=0.75),
    },
    "actor, flipped": {
        "start": Bound(0.239, 0.037, above=0.08),
        "end by start": Bound(0.001, 0.003, below=0.5),
    },
    "extractor": {
        "start": Bound(0.515, 0.051, above=0.25, below=0.75),
        "end": Bound(0.952, 0.022, above=0.8),
        "well formed": Bound(0.970, 0.013, above=0.5),
        # One kind of experience helps the actor, the other harms it.
        "won with the helpful kind": Bound(0.913, 0.056, above=0.5),
        "won with the harmful kind": Bound(0.007, 0.009, below=0.1),
    },
    "extractor, flipped": {
        "start": Bound(0.515, 0.051, above=0.25, below=0.75),
        "end": Bound(0.009, 0.011, below=0.2),
        "well formed": Bound(0.961, 0.030, above=0.5),
    },
}


def check(learner: str, metrics: dict[str, float]) -> None:
    """Fail with every metric that is on the wrong side of its bound."""
    bounds = BOUNDS[learner]
    assert metrics.keys() == bounds.keys()
    missed = {name: (value, bounds[name]) for name, value in metrics.items() if not bounds[name].holds(value)}
    assert not missed, missed


# -- the actor ---------------------------------------------------------------------------------------------------------

ACTOR_ROUNDS, FLIPPED_ACTOR_ROUNDS = 20, 8
GRPO = """
name: grpo
method:
  seed: {seed}
  families:
    - name: lake
      environment:
        {{kind: frozenlake, size_min: 3, size_max: 3, frozen_probability: 0.8, max_turns: 6, held_out_from: null}}
      groups: 6
      train_seeds: {{start: 26, count: 6}}
      evaluation_seeds: {{start: 1000000, count: 1}}
  roles:
    actor:
      model: {model}
      sampling: {{max_new_tokens: 3}}
      optimizer: {{learning_rate: 4.0e-3}}
      deepspeed: {{micro_batch: 32}}
  rollout: {{group_size: 32, wave_groups: 6}}
  evaluation: {{every: 0}}
  recipe:
    kind: baseline
    warm_start:
      {{actor_episodes: 384, extractor_episodes: 0, num_train_epochs: 2, learning_rate: 4.0e-3, demonstrations: random}}
  threads: {threads}
  prompts:
    actor: {{system: move, first: "{{experience}}{{observation}}", following: "{{feedback}}{{observation}}"}}
"""


def train_actor(folder: Path, seed: int, *, threads: int = 1, flipped: bool = False) -> RunDirectory:
    """A random miniature that learned the form from random legal actions, trained for some rounds on six small maps."""
    model = folder / "model"
    model.mkdir(parents=True)
    write_miniature(model, [*starts.ACTIONS, "move"], side=3, seed=seed, spread=0.25)
    method = yaml.safe_load(GRPO.format(seed=seed, model=model, threads=threads))
    experiment = parse_experiment(method, base=folder, where="test")
    if not flipped:
        return train(experiment, folder / "runs", ACTOR_ROUNDS)
    with _reward_of_the_actor_flipped():
        return train(experiment, folder / "runs", FLIPPED_ACTOR_ROUNDS)


def success_by_round(run: RunDirectory) -> list[float]:
    """Success of the training episodes of each round from 1 on."""
    return [
        share([episode.success for episode in rows(run, Episode, "collect", [number])])
        for number in run.rounds()
        if number
    ]


def actor_metrics(run: RunDirectory) -> dict[str, float]:
    """What is asserted of the actor, trained on the reward as it is."""
    success = success_by_round(run)
    return {"start less chance": success[0] - chance(run), "end": float(np.mean(success[-3:]))}


def flipped_actor_metrics(run: RunDirectory) -> dict[str, float]:
    """What is asserted of the actor whose reward has the wrong sign."""
    success = success_by_round(run)
    return {"start": success[0], "end by start": float(np.mean(success[-3:])) / min(success[0], chance(run))}


def chance(run: RunDirectory, episodes: int = 2000) -> float:
    """Success of uniformly random legal actions on the training maps, by simulation apart from the pipeline."""
    family = run.method.families[0]
    random = np.random.default_rng(0)
    drawn = lakes(family.environment)
    won = []
    for index in range(episodes):
        lake = drawn.of(family.train_seeds.start + index % family.train_seeds.count)
        cell = lake.start
        for action in random.choice(starts.ACTIONS, size=family.environment.max_turns):
            cell = lake.moved(cell, action)
            if cell == lake.goal or cell in lake.holes:
                break
        won.append(cell == lake.goal)
    return share(won)


@contextmanager
def _reward_of_the_actor_flipped() -> Iterator[None]:
    import crl.credit.samples as samples

    advantages = samples.subgroup_advantages
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            samples,
            "subgroup_advantages",
            lambda rewards, *rest, **more: advantages([-reward for reward in rewards], *rest, **more),
        )
        yield


# -- the extractor -----------------------------------------------------------------------------------------------------

EXTRACTOR_ROUNDS = 16
HELPFUL, HARMFUL = "right", "up"
"""On map 302 the goal lies three steps to the right; two steps up there is a hole."""
# A round guides 32 episodes by 24 entries, so no more outputs ripen than the batch of 32 takes. Were the batch smaller,
# outputs would wait longer every round and be trained when hardly any probability is what it was.
CISPO = """
name: cispo
method:
  seed: {seed}
  families:
    - name: lake
      environment: {{kind: frozenlake, size_min: 4, size_max: 4, frozen_probability: 0.7, max_turns: 4}}
      groups: 8
      train_seeds: {{start: 302, count: 1}}
      evaluation_seeds: {{start: 1000000, count: 1}}
  roles:
    actor: {{model: {actor}, sampling: {{max_new_tokens: 3}}}}
    extractor:
      model: {extractor}
      sampling: {{max_new_tokens: 8}}
      optimizer: {{learning_rate: 1.0e-3}}
      deepspeed: {{micro_batch: 32}}
  rollout: {{group_size: 8, wave_groups: 8}}
  recipe:
    kind: experience_only
    retrieval: {{embedder: lexical, candidates: 24, rank_score: fraction, threshold: -1.0, count_weight: 1.0}}
    merge: {{every: 0}}
    bank: {{capacity: 24}}
    extractor_objective: {{batch: 32}}
  evaluation: {{every: 0}}
  threads: {threads}
  prompts:
    actor: {{system: move, first: "{{experience}}{{observation}}", following: "{{feedback}}{{observation}}"}}
    distill: {{system: write, first: "{{trajectory}}\\n{{outcome}}"}}
    merge: {{system: s, first: "{{entries}}"}}
"""
Starts = tuple[Path, Path]
"""Models that training begins with: an actor that follows advice, an extractor that writes both kinds equally often."""


def make_starts(folder: Path, seed: int = 0, *, threads: int = 1) -> Starts:
    """Both starting models in a folder that is made."""
    base = folder / "base"
    base.mkdir(parents=True)
    method = _cispo_experiment(seed, ("tiny", "tiny"), threads).method
    starts.write_base(base, seed)
    return (
        starts.actor_start(method, base, folder / "actor"),
        starts.extractor_start(method, base, folder / "extractor", [HELPFUL, HARMFUL]),
    )


def train_extractor(folder: Path, start: Starts, seed: int, *, threads: int = 1, flipped: bool = False) -> RunDirectory:
    """The extractor trained for some rounds beside an actor that is not."""
    experiment = _cispo_experiment(seed, start, threads)
    if not flipped:
        return train(experiment, folder / "runs", EXTRACTOR_ROUNDS)
    with _reward_of_the_extractor_flipped():
        return train(experiment, folder / "runs", EXTRACTOR_ROUNDS)


def helpful_by_round(run: RunDirectory) -> list[float]:
    """Share of the helpful kind among the well-formed outputs of each round from 1 on."""
    return [
        share([(row.text or "").startswith(f"go {HELPFUL}") for row in rows(run, Operation, "distill", [number])])
        for number in run.rounds()
        if number
    ]


def extractor_metrics(run: RunDirectory) -> dict[str, float]:
    """What is asserted of the extractor, trained on the reward as it is."""
    credits = rows(run, Credit, "credit", run.rounds()[2:])
    texts = {row.generation_id: row.text for row in rows(run, Operation, "distill", run.rounds()[1:]) if row.text}
    won = {
        kind: share([row.outcome > 0 for row in credits if texts[row.generation_id].startswith(f"go {kind}")])
        for kind in (HELPFUL, HARMFUL)
    }
    return {
        **flipped_extractor_metrics(run),
        "won with the helpful kind": won[HELPFUL],
        "won with the harmful kind": won[HARMFUL],
    }


def flipped_extractor_metrics(run: RunDirectory) -> dict[str, float]:
    """What is asserted of the extractor whose reward has the wrong sign."""
    helpful = helpful_by_round(run)
    return {
        "start": float(np.mean(helpful[:2])),
        "end": float(np.mean(helpful[-3:])),
        "well formed": share([row.reason_code == "ok" for row in rows(run, Distillation, "distill", run.rounds()[1:])]),
    }


def clipped_updates(run: RunDirectory) -> list[float]:
    """Shares of tokens whose ratio was clipped, of each update."""
    return [
        row.value for row in rows(run, Metric, "update_extractor", run.rounds()[2:]) if row.name.startswith("clipped")
    ]


def _cispo_experiment(seed: int, start: tuple[str | Path, str | Path], threads: int) -> Experiment:
    data = yaml.safe_load(CISPO.format(seed=seed, actor=start[0], extractor=start[1], threads=threads))
    return parse_experiment(data, base=Path(), where="test")


@contextmanager
def _reward_of_the_extractor_flipped() -> Iterator[None]:
    import crl.credit.uses as credit

    outcome = credit.outcome
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(credit, "outcome", lambda episode: -outcome(episode))
        yield
