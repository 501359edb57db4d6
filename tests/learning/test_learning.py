"""Learning is real: the stages of training, on a run directory, make a tiny transformer succeed at multi-turn tasks.

The actor (GRPO): from random legal play to more than 0.9 success. The extractor (CISPO): of two kinds of experience,
one helpful and one harmful, the helpful one's share goes from about half to more than 0.9. With only the reward's sign
flipped, and everything else equal, both fall. Figures are those of the rows that training wrote.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from crl.config import Experiment
from crl.envs.frozenlake import draw_lake
from crl.experiment import parse_experiment
from crl.records import BufferItem, Credit, Distillation, Episode, Metric, Operation
from crl.run.directory import RunDirectory
from tests.learning import starts
from tests.learning.harness import rows, share, train
from tests.learning.miniature import write_miniature

SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
ALL_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(3)]

# -- the actor ---------------------------------------------------------------------------------------------------------

GRPO_ROUNDS = 20
GRPO = """
name: grpo
method:
  seed: {seed}
  recipe: baseline
  families:
    - name: lake
      environment:
        {{kind: frozenlake, size_min: 3, size_max: 3, frozen_probability: 0.8, max_turns: 6, held_out_from: null}}
      groups: 6
      train_seeds: {{start: 26, count: 6}}
      evaluation_seeds: {{start: 1000000, count: 1}}
  actor:
    model: {model}
    sampling: {{max_new_tokens: 3}}
    optimizer: {{learning_rate: 4.0e-3}}
    deepspeed: {{micro_batch: 32}}
  extractor: {{model: tiny}}
  rollout: {{group_size: 32, wave_groups: 6}}
  evaluation: {{every: 0}}
  warm_start: {{actor_episodes: 384, extractor_episodes: 0, epochs: 2, learning_rate: 4.0e-3, demonstrations: random}}
  threads: 1
  prompts:
    actor: {{system: move, first: "{{experience}}{{observation}}", following: "{{feedback}}{{observation}}"}}
    distill: {{system: s, first: "{{trajectory}}"}}
    merge: {{system: s, first: "{{entries}}"}}
"""


def grpo_experiment(directory: Path, seed: int) -> Experiment:
    """Six small maps, a random miniature, and demonstrations by random legal actions: it knows the form only."""
    directory.mkdir()
    model = write_miniature(directory, [*starts.ACTIONS, "move"], side=3, seed=seed, spread=0.25)
    return parse_experiment(yaml.safe_load(GRPO.format(seed=seed, model=model)), base=directory, where="test")


def success_by_round(run: RunDirectory, rounds: range) -> list[float]:
    return [share([episode.success for episode in rows(run, Episode, "collect", [number])]) for number in rounds]


def chance(experiment: Experiment, episodes: int = 2000) -> float:
    """Success of uniformly random legal actions on the training maps, by simulation apart from the pipeline."""
    family = experiment.method.families[0]
    random = np.random.default_rng(0)
    won = []
    for index in range(episodes):
        lake = draw_lake(family.environment, family.train_seeds.start + index % family.train_seeds.count)
        cell = lake.start
        for action in random.choice(starts.ACTIONS, size=family.environment.max_turns):
            cell = lake.moved(cell, action)
            if cell == lake.goal or cell in lake.holes:
                break
        won.append(cell == lake.goal)
    return share(won)


@pytest.mark.parametrize("seed", SEEDS)
def test_grpo_raises_success_from_chance(tmp_path: Path, seed: int) -> None:
    experiment = grpo_experiment(tmp_path / "model", seed)
    family = experiment.method.families[0]
    lakes = [draw_lake(family.environment, family.train_seeds.start + index) for index in range(6)]
    assert all(len(lake.path(lake.start) or []) >= 2 for lake in lakes), "no map is won in one turn"
    run = train(experiment, tmp_path / "runs", GRPO_ROUNDS)
    success = success_by_round(run, range(1, GRPO_ROUNDS + 1))
    print(f"GRPO, seed {seed}: success by round {[round(value, 2) for value in success]}")
    assert abs(success[0] - chance(experiment)) < 0.12, "the warm start taught form and no answer"
    assert np.mean(success[-3:]) > 0.9
    turns = [episode.turns for episode in rows(run, Episode, "collect", [GRPO_ROUNDS])]
    assert np.mean(turns) >= 2, "won over several turns"


@pytest.mark.parametrize("seed", ALL_SEEDS)
def test_grpo_with_the_sign_of_the_reward_flipped_lowers_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    import crl.learn.samples as samples

    advantages = samples.subgroup_advantages
    monkeypatch.setattr(
        samples, "subgroup_advantages", lambda rewards, *rest, **more: advantages([-r for r in rewards], *rest, **more)
    )
    experiment = grpo_experiment(tmp_path / "model", seed)
    run = train(experiment, tmp_path / "runs", 8)
    success = success_by_round(run, range(1, 9))
    print(f"GRPO flipped, seed {seed}: success by round {[round(value, 2) for value in success]}")
    assert success[0] > 0.1
    assert np.mean(success[-3:]) < 0.5 * min(success[0], chance(experiment))


# -- the extractor -----------------------------------------------------------------------------------------------------

CISPO_ROUNDS = 16
HELPFUL, HARMFUL = "right", "up"
"""On map 302 the goal lies three steps to the right; two steps up there is a hole."""
# A round guides 32 episodes by 24 entries, so no more outputs ripen than the batch of 32 takes. Were the batch smaller,
# outputs would wait longer every round and be trained when hardly any probability is what it was.
CISPO = """
name: cispo
method:
  seed: {seed}
  recipe: experience_only
  families:
    - name: lake
      environment: {{kind: frozenlake, size_min: 4, size_max: 4, frozen_probability: 0.7, max_turns: 4}}
      groups: 8
      train_seeds: {{start: 302, count: 1}}
      evaluation_seeds: {{start: 1000000, count: 1}}
  actor: {{model: {actor}, sampling: {{max_new_tokens: 3}}}}
  extractor:
    model: {extractor}
    sampling: {{max_new_tokens: 8}}
    optimizer: {{learning_rate: 1.0e-3}}
    deepspeed: {{micro_batch: 32}}
  rollout: {{group_size: 8, wave_groups: 8}}
  retrieval: {{embedder: lexical, candidates: 24, rank_score: fraction, threshold: -1.0, count_weight: 1.0}}
  merge: {{every: 0}}
  bank: {{capacity: 24}}
  extractor_objective: {{batch: 32}}
  evaluation: {{every: 0}}
  threads: 1
  prompts:
    actor: {{system: move, first: "{{experience}}{{observation}}", following: "{{feedback}}{{observation}}"}}
    distill: {{system: write, first: "{{trajectory}}\\n{{outcome}}"}}
    merge: {{system: s, first: "{{entries}}"}}
"""


def cispo_experiment(seed: int, actor: str | Path, extractor: str | Path) -> Experiment:
    data = yaml.safe_load(CISPO.format(seed=seed, actor=actor, extractor=extractor))
    return parse_experiment(data, base=Path(), where="test")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Actor that follows advice, extractor that writes both kinds equally often."""
    directory = tmp_path_factory.mktemp("starts")
    method = cispo_experiment(0, "tiny", "tiny").method
    (directory / "base").mkdir()
    base = starts.write_base(directory / "base")
    return (
        starts.actor_start(method, base, directory / "actor"),
        starts.extractor_start(method, base, directory / "extractor", [HELPFUL, HARMFUL]),
    )


def helpful_by_round(run: RunDirectory, rounds: range) -> list[float]:
    """Share of the helpful kind among the well-formed outputs of each round."""
    shares = []
    for number in rounds:
        texts = [row.text or "" for row in rows(run, Operation, "distill", [number])]
        outputs = rows(run, Distillation, "distill", [number])
        well_formed = [row for row in outputs if row.reason_code == "ok"]
        assert len(texts) == len(well_formed) > 0.7 * len(outputs)
        shares.append(share([text.startswith(f"go {HELPFUL}") for text in texts]))
    return shares


@pytest.mark.parametrize("seed", SEEDS)
def test_cispo_raises_the_share_of_the_helpful_experience(tmp_path: Path, start: tuple[Path, Path], seed: int) -> None:
    run = train(cispo_experiment(seed, *start), tmp_path / "runs", CISPO_ROUNDS)
    helpful = helpful_by_round(run, range(1, CISPO_ROUNDS + 1))
    print(f"CISPO, seed {seed}: helpful share by round {[round(value, 2) for value in helpful]}")
    assert 0.35 < np.mean(helpful[:2]) < 0.65
    assert np.mean(helpful[-3:]) > 0.9
    everything = range(2, CISPO_ROUNDS + 1)
    credits = rows(run, Credit, "credit", everything)
    texts = {
        row.generation_id: row.text for row in rows(run, Operation, "distill", range(1, CISPO_ROUNDS + 1)) if row.text
    }
    won = {
        kind: share([row.outcome > 0 for row in credits if texts[row.generation_id].startswith(f"go {kind}")])
        for kind in (HELPFUL, HARMFUL)
    }
    assert won[HELPFUL] > 0.5 > 0.1 > won[HARMFUL], "one kind helps the actor, the other harms it"
    guided = [episode for episode in rows(run, Episode, "collect", everything) if episode.guided]
    assert np.mean([episode.turns for episode in guided]) >= 2, "advice acts over several turns"
    waits = [
        item.generation_round < number
        for number in everything
        for item in rows(run, BufferItem, "credit", [number])
        if item.status == "selected" and item.kind == "used"
    ]
    assert waits, "experiences are trained after later episodes used them"
    assert all(waits), "experiences are trained after later episodes used them"
    clipped = [row.value for row in rows(run, Metric, "update_extractor", everything) if row.name.startswith("clipped")]
    assert max(clipped) > 0, "ratios are those of stored behaviour log-probabilities, some updates old"


@pytest.mark.parametrize("seed", ALL_SEEDS)
def test_cispo_with_the_sign_of_the_reward_flipped_lowers_it(
    tmp_path: Path, start: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    import crl.learn.credit as credit

    outcome = credit.outcome
    monkeypatch.setattr(credit, "outcome", lambda episode: -outcome(episode))
    run = train(cispo_experiment(seed, *start), tmp_path / "runs", CISPO_ROUNDS)
    helpful = helpful_by_round(run, range(1, CISPO_ROUNDS + 1))
    print(f"CISPO flipped, seed {seed}: helpful share by round {[round(value, 2) for value in helpful]}")
    assert 0.35 < np.mean(helpful[:2]) < 0.65
    assert np.mean(helpful[-3:]) < 0.1
