"""The ids sampled are the ids trained: a run's token records against teacher forcing under its stored checkpoints.

Everything is read back from the run directory: the weights row with a generation's digest names the checkpoint. It is
loaded by transformers (and peft) alone and reads each stored sequence in one pass, without a cache and without a batch.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from crl.config import Experiment
from crl.config.load import parse_experiment
from crl.policies import resolve_model
from crl.records import Episode, Generation, Task, Turn, Weights
from crl.rollout.play import waves_of
from crl.run.directory import RunDirectory
from tests.learning.harness import rows, train
from tests.marks import NEEDS_BFLOAT16

pytestmark = pytest.mark.slow

EXPERIMENT = """
name: exact
method:
  seed: 5
  families:
    - name: plain
      environment: {kind: frozenlake, size_min: 2, size_max: 4, frozen_probability: 0.7, max_turns: 6}
      groups: 9
      evaluation_seeds: {start: 1000000, count: 2}
    - name: masked
      environment: {kind: frozenlake, size_min: 3, size_max: 3, masked: true, max_turns: 5}
      groups: 4
      evaluation_seeds: {start: 1000000, count: 2}
  roles:
    actor: {model: tiny, sampling: {temperature: 0.8, max_new_tokens: 4}, optimizer: {learning_rate: 1.0e-3}}
    extractor: {model: tiny, sampling: {temperature: 1.2, max_new_tokens: 24}, optimizer: {learning_rate: 1.0e-3}}
  rollout: {group_size: 8, wave_groups: 3}
  recipe:
    kind: complementary
    retrieval: {embedder: lexical, threshold: -1.0}
    merge: {every: 2, chunk: 3}
    extractor_objective: {batch: 92}
    warm_start:
      {actor_episodes: 48, extractor_episodes: 48, num_train_epochs: 4, learning_rate: 4.0e-3, demonstrations: random}
  evaluation: {every: 0}
  threads: 1
  prompts:
    actor:
      system: Answer with one action.
      first: "{goal}\\n{experience}{observation}\\n"
      following: "{feedback}{observation}\\n"
    distill: {system: "Answer with ADD: text.", first: "{goal}\\nAdvice: {experience}\\n{trajectory}\\n{outcome}\\n"}
    merge: {system: "Answer with KEEP n.", first: "{entries}\\n"}
"""
FIRST, LAST = 2, 3
"""Rounds compared: both sample with weights that an RL update wrote."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """Stored and teacher-forced log-probabilities of sampled tokens."""

    stored: NDArray[np.float64]
    forced: NDArray[np.float64]

    @property
    def gaps(self) -> NDArray[np.float64]:
        return np.abs(self.stored - self.forced)

    @property
    def root_mean_square(self) -> float:
        return float(np.sqrt((self.gaps**2).mean()))

    def __str__(self) -> str:
        middle, high = np.quantile(self.gaps, [0.5, 0.99])
        return (
            f"{len(self.gaps)} tokens: |stored - forced| median {middle:.1e}, rms {self.root_mean_square:.1e}, "
            f"99 % {high:.1e}, largest {self.gaps.max():.1e}; mean {(self.stored - self.forced).mean():+.1e}"
        )


def make_experiment(dtype: str, bases: dict[str, Path] | None = None, constrain: str = "none") -> Experiment:
    """Full weights after a warm start, or with `bases` adapters on models that know the form."""
    data = yaml.safe_load(EXPERIMENT)
    roles = data["method"]["roles"]
    roles["actor"]["sampling"]["constrain"] = constrain
    for name, role in roles.items():
        role["dtype"] = dtype
        if bases is not None:
            role |= {"model": str(bases[name]), "lora": {"r": 4, "lora_alpha": 16}}
            data["method"]["recipe"]["warm_start"] = None
    return parse_experiment(data, base=Path(), where="test")


def warm_models(run: RunDirectory, directory: Path) -> dict[str, Path]:
    """The models after the warm start of a run, as model directories."""
    tokenizer = [path for path in resolve_model("tiny").path.iterdir() if path.suffix != ".safetensors"]
    found = {}
    for role in ("actor", "extractor"):
        found[role] = directory / role
        shutil.copytree(run.stage_path(0, f"warm_start_{role}") / "checkpoint", found[role])
        for file in tokenizer:
            if not (found[role] / file.name).exists():
                shutil.copy(file, found[role])
    return found


def compare(run: RunDirectory, generations: Sequence[Generation], *, under: Weights | None = None) -> Compared:
    """Every sampled token of the generations under the checkpoint that its weights digest names, or under another."""
    import torch

    models: dict[str, Any] = {}
    stored: list[float] = []
    forced: list[float] = []
    weights = weights_by_digest(run)
    with torch.inference_mode():
        for generation in generations:
            if generation.weights_digest not in models:
                models = {generation.weights_digest: load(run, under or weights[generation.weights_digest])}
            logits_TV = models[generation.weights_digest](torch.tensor([generation.token_ids])).logits[0]
            logprobs_TV = torch.log_softmax(logits_TV.double() / generation.temperature, dim=-1)
            places = np.flatnonzero(generation.loss_mask).tolist()
            for place, choices in zip(places, generation.choices or [None] * len(places), strict=True):
                over = 0.0 if choices is None else float(logprobs_TV[place - 1, choices].logsumexp(0))
                stored.append(generation.logprobs[place])
                forced.append(float(logprobs_TV[place - 1, generation.token_ids[place]]) - over)
    return Compared(np.array(stored), np.array(forced))


def weights_by_digest(run: RunDirectory) -> dict[str, Weights]:
    stages = ("initialize", "warm_start_actor", "warm_start_extractor", "update_actor", "update_extractor")
    written = [(number, stage) for number in run.rounds() for stage in run.complete_stages(number) if stage in stages]
    return {row.weights_digest: row for number, stage in written for row in rows(run, Weights, stage, [number])}


def load(run: RunDirectory, weights: Weights) -> Any:
    """The model of a weights row, by the libraries alone."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    config = run.method.role(weights.role)
    base, dtype = resolve_model(config.model).path, getattr(torch, config.dtype)
    if config.lora is None or weights.checkpoint is None:
        path = base if weights.checkpoint is None else run.path / weights.checkpoint
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        model = PeftModel.from_pretrained(model, run.path / weights.checkpoint)
        if config.dtype != "float32":  # float32 stays unmerged: another order of the same sums
            model = model.merge_and_unload().to(dtype)
    return model.eval()


def tokenizer_of(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve_model(model).path)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunDirectory]:
    """A run of the whole recipe with the tiny model, made once a precision and kind of weights."""
    made: dict[tuple[str, bool], RunDirectory] = {}

    def make(dtype: str, lora: bool) -> RunDirectory:
        if (dtype, lora) not in made:
            root = tmp_path_factory.mktemp("exact")
            bases = warm_models(make("float32", False), root / "models") if lora else None
            made[dtype, lora] = train(make_experiment(dtype, bases), root, LAST)
        return made[dtype, lora]

    return make


VARIANTS = [
    pytest.param("float32", False, id="float32"),
    pytest.param("bfloat16", False, id="bfloat16", marks=NEEDS_BFLOAT16),
    pytest.param("float32", True, id="float32-lora"),
    pytest.param("bfloat16", True, id="bfloat16-lora", marks=NEEDS_BFLOAT16),
]

# Measured on a CPU with `pytest -s tests/learning/test_token_exactness.py -m "slow or not slow"`. In bfloat16 (8 bits
# of mantissa) a sum rounds otherwise with the shape of the pass it is part of: some tokens beside a cache, or a whole
# sequence. The gaps have no preferred sign. |stored - forced| in nats:
#
#                                    root mean square   99 % below   largest
#   float32   tiny                   5e-7               2e-6         7e-6
#             SmolLM2                1e-5               2e-5         2e-5
#   bfloat16  tiny                   0.002 to 0.003     0.015        0.061
#             SmolLM2 (30 layers)    0.07               0.21         0.33
#
# Over ten seeds (5 to 14) with one and two threads each, the tiny model's largest gap was 0.0000045 ± 0.0000014 in
# float32 and 0.051 ± 0.003 in bfloat16 (mean ± standard deviation), its root mean square 0.0000005 ± 0.0000001 and
# 0.0030 ± 0.0002; weights one update old are off by 40 times that or more.
#
# For scale: SmolLM2 in bfloat16 and the same in float32, both teacher-forced, differ by 0.36 (root mean square), 1.2 at
# most.
LARGEST = {"float32": 1e-4, "bfloat16": 0.15, "SmolLM2 bfloat16": 0.8}
ROOT_MEAN_SQUARE = {"float32": 5e-5, "bfloat16": 0.01, "SmolLM2 bfloat16": 0.15}


def played(run: RunDirectory) -> list[Generation]:
    return rows(run, Generation, "collect", range(FIRST, LAST + 1))


@pytest.mark.parametrize(("dtype", "lora"), VARIANTS)
def test_stored_logprobs_are_those_of_the_stored_checkpoint(
    run_of: Callable[..., RunDirectory], dtype: str, lora: bool
) -> None:
    run = run_of(dtype, lora)
    weights = weights_by_digest(run)
    generations = played(run)
    assert len(generations) >= 200
    updates = {weights[generation.weights_digest].updates for generation in generations}
    assert updates == {FIRST - 1, LAST - 1}, "sampled by what RL updates wrote"
    compared = compare(run, generations)
    written = [
        generation
        for number in range(FIRST, LAST + 1)
        for stage in ("distill", "merge")
        if run.is_complete(number, stage)
        for generation in rows(run, Generation, stage, [number])
    ]
    assert {generation.kind for generation in written} == {"distill", "merge"}
    extracted = compare(run, written)
    print(f"{dtype}{' LoRA' if lora else ''}, {len(generations)} episodes: {compared}")
    print(f"{dtype}{' LoRA' if lora else ''}, {len(written)} extractor outputs: {extracted}")
    for metrics in (compared, extracted):
        assert metrics.gaps.max() < LARGEST[dtype]
        assert metrics.root_mean_square < ROOT_MEAN_SQUARE[dtype]
    [before] = [row for row in weights.values() if row.role == "actor" and row.updates == LAST - 2]
    stale = compare(run, rows(run, Generation, "collect", [LAST])[:20], under=before)
    assert stale.root_mean_square > 3 * compared.root_mean_square, "weights one update old are told apart"


@pytest.mark.parametrize(("dtype", "lora"), VARIANTS)
def test_the_compared_episodes_are_of_every_kind(run_of: Callable[..., RunDirectory], dtype: str, lora: bool) -> None:
    """Guided and free, several waves of several groups, ragged: otherwise the comparison says less than it seems to."""
    run = run_of(dtype, lora)
    numbers = range(FIRST, LAST + 1)
    episodes = rows(run, Episode, "collect", numbers)
    assert {episode.guided for episode in episodes} == {True, False}
    waves = waves_of(rows(run, Task, "plan", [LAST]), run.method.rollout.wave_groups)
    assert len(waves) == 5 and {len({task.group for task in wave}) for wave in waves} == {1, 3}
    for wave in waves:
        ids = {task.episode_id for task in wave}
        assert len({episode.turns for episode in episodes if episode.episode_id in ids}) > 1, "rows end at other turns"
    reasons = {turn.stop_reason for turn in rows(run, Turn, "collect", numbers)}
    assert "end_of_turn" in reasons
    assert {episode.stop_reason for episode in episodes} >= {"success", "failure", "turn_limit"}
    used = {generation.weights_digest for generation in played(run)}
    assert len(used) == LAST - FIRST + 1, "each update changed the weights"


def test_the_mask_marks_the_sampled_tokens_and_nothing_else(run_of: Callable[..., RunDirectory]) -> None:
    run = run_of("float32", False)
    tokenizer = tokenizer_of("tiny")
    turns: dict[str, list[Turn]] = {}
    for turn in rows(run, Turn, "collect", range(FIRST, LAST + 1)):
        turns.setdefault(turn.episode_id, []).append(turn)
    episodes = {row.generation_ids[0]: row for row in rows(run, Episode, "collect", range(FIRST, LAST + 1))}
    for generation in played(run):
        episode, ids = episodes[generation.generation_id], generation.token_ids
        said = turns[episode.episode_id]
        sampled = {place for turn in said for place in range(turn.first_token, turn.last_token)}
        assert {place for place, mask in enumerate(generation.loss_mask) if mask} == sampled
        assert all((value == 0.0) == (place not in sampled) for place, value in enumerate(generation.logprobs))
        assert [tokenizer.decode(ids[t.first_token : t.last_token], skip_special_tokens=True) for t in said] == [
            turn.output for turn in said
        ]
        prompt = tokenizer.decode(ids[: said[0].first_token], skip_special_tokens=True)
        shown = re.split(r"(?:^|\n\n)\[(?:system|user|assistant)\]\n", generation.prompt)[1:]
        assert prompt == "".join(shown)
        assert (episode.experience is not None and f"Advice: {episode.experience}" in prompt) == episode.guided
        for before, turn in pairwise(said):
            between = tokenizer.decode(ids[before.last_token : turn.first_token], skip_special_tokens=True)
            assert between == f"{before.feedback or ''}{turn.observation}\n"


def test_extractor_outputs_are_recorded_alike(run_of: Callable[..., RunDirectory]) -> None:
    run = run_of("float32", False)
    tokenizer = tokenizer_of("tiny")
    for generation in rows(run, Generation, "distill", [LAST]):
        first = generation.loss_mask.index(1)
        assert generation.loss_mask == [0] * first + [1] * (len(generation.token_ids) - first)
        # Words on both sides of a control token do not run together.
        parts = groupby(generation.token_ids[first:], lambda index: index in tokenizer.all_special_ids)
        written = " ".join(tokenizer.decode(list(ids)) for special, ids in parts if not special)
        assert written.encode("utf-8", "replace").decode() == generation.output
        prompt = tokenizer.decode(generation.token_ids[:first], skip_special_tokens=True)
        assert prompt == "".join(re.split(r"(?:^|\n\n)\[(?:system|user)\]\n", generation.prompt)[1:])


def test_answers_restricted_to_the_legal_actions_are_recorded_with_their_choices(tmp_path: Path) -> None:
    """Every turn is legal; what was drawn is trained, under the distribution it was drawn from; the rest is not."""
    experiment = make_experiment("float32", constrain="actions")
    run = train(experiment, tmp_path, FIRST)
    turns = rows(run, Turn, "collect", [1, FIRST])
    assert turns and all(turn.valid and turn.stop_reason == "end_of_turn" for turn in turns)
    generations = rows(run, Generation, "collect", [FIRST])
    assert {len(choices) for generation in generations for choices in generation.choices} == {4}, "four moves"
    compared = compare(run, generations)
    print(f"restricted, {len(generations)} episodes: {compared}")
    assert compared.gaps.max() < LARGEST["float32"]
    assert compared.root_mean_square < ROOT_MEAN_SQUARE["float32"]
    assert compared.stored.min() < -0.5, "there was something to choose"
    whole = compare(run, [dataclasses.replace(generation, choices=[]) for generation in generations])
    assert whole.root_mean_square > 100 * compared.root_mean_square, "not the distribution over the vocabulary"
    for generation in generations:
        assert len(generation.choices) == sum(generation.loss_mask)
    assert weights_by_digest(run)[generations[0].weights_digest].updates == 1


SMOLLM = """
name: exact-smollm2
method:
  seed: 3
  recipe: baseline
  families:
    - name: plain
      environment: {kind: frozenlake, size_min: 2, size_max: 3, frozen_probability: 0.7, max_turns: 4}
      groups: 4
      evaluation_seeds: {start: 1000000, count: 1}
  roles:
    actor:
      model: smollm2-135m-instruct
      context: 512
      sampling: {max_new_tokens: 4}
      optimizer: {kind: sgd, learning_rate: 1.0e-2}
  rollout: {group_size: 6, wave_groups: 2}
  evaluation: {every: 0}
  threads: 1
  prompts:
    actor:
      system: "You walk on a map. Answer with one move: up, down, left or right."
      examples:
        - {user: "@ F\nF G", assistant: right}
        - {user: "H G\nF @", assistant: up}
        - {user: "@ H\nG F", assistant: down}
        - {user: "G @\nF H", assistant: left}
      first: "{experience}{observation}"
      following: "{feedback}{observation}"
"""


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=NEEDS_BFLOAT16)])
def test_smollm2(tmp_path: Path, dtype: str) -> None:
    """24 episodes sampled after an update: a real model, and fewer episodes for the time it takes."""
    data = yaml.safe_load(SMOLLM)
    data["method"]["roles"]["actor"] |= {
        "dtype": dtype,
        "deepspeed": {"autocast": "none" if dtype == "float32" else dtype},
    }
    try:
        run = train(parse_experiment(data, base=Path(), where="test"), tmp_path, 2)
        weights = weights_by_digest(run)
        generations = rows(run, Generation, "collect", [2])
        assert len(generations) == 24
        assert {weights[generation.weights_digest].updates for generation in generations} == {1}
        compared = compare(run, generations)
    finally:
        shutil.rmtree(tmp_path)  # checkpoints of half a gigabyte
    print(f"SmolLM2, {dtype}, {len(generations)} episodes: {compared}")
    bound = dtype if dtype == "float32" else "SmolLM2 bfloat16"
    assert compared.gaps.max() < LARGEST[bound]
    assert compared.root_mean_square < ROOT_MEAN_SQUARE[bound]
