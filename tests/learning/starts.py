"""Starting models for the test of the extractor's learning: supervised on form, before any run exists.

The actor follows whatever advice stands in its prompt and plays at random without one. The extractor answers any
episode with one of two kinds of advice, half and half; words without meaning make each text its own entry of the bank.
Neither knows which kind helps.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from crl.config import Method, WarmStartConfig
from crl.envs import make_environment
from crl.extractor.distill import distill_wave, items_of
from crl.extractor.outputs import Distilled
from crl.learn.warm_start import run_warm_start
from crl.policies.chat import ChatFormat
from crl.records import Generation, Sample, Task
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave
from crl.rounds.demonstrations import ScriptedPolicy
from tests.learning.miniature import write_miniature

ACTIONS = ("up", "down", "left", "right")
WORDS = (
    "red", "green", "blue", "gold", "pink", "grey", "teal", "plum",
    "lime", "rose", "sand", "snow", "rust", "mint", "jade", "coal",
)  # fmt: skip
"""Words without meaning: 256 texts a kind of advice."""


def advice(action: str, random: np.random.Generator) -> str:
    """An experience that recommends an action."""
    first, second = random.choice(WORDS, size=2)
    return f"go {action} {first} {second}"


def write_base(directory: Path, seed: int) -> Path:
    """The random miniature both roles begin as: a word, a row of a map is a token."""
    words = (
        *("Advice: go", "ADD: go", "Turn 1: Turn 2: Turn 3: Turn 4:", "Action:", "success failure (turn limit)"),
        *(" (unchanged)", "move write", *ACTIONS, *(f" {word}" for word in (*WORDS, *ACTIONS))),
    )
    return write_miniature(directory, words, side=4, seed=seed)


def actor_start(method: Method, base: Path, directory: Path) -> Path:
    """An actor that does what its advice says."""
    played = _play(method, base, episodes=192)
    records = [record for each in played for record in each.generations]
    return _trained(method, "actor", base, records, directory, epochs=10)


def extractor_start(method: Method, base: Path, directory: Path, kinds: Sequence[str]) -> Path:
    """An extractor that recommends one of two actions, whatever it read."""
    random = np.random.default_rng(1)
    played = _play(method, base, episodes=384)
    items = items_of(
        [each.episode for each in played], [turn for each in played for turn in each.turns], method.recipe.distill
    )
    # Shuffled, so that the kind says nothing about the episode.
    order = np.random.default_rng(1).permutation(len(items))
    random = np.random.default_rng(2)
    said = [f"ADD: {advice(kinds[place % len(kinds)], random)}" for place in order]
    written: list[Distilled] = []
    size = method.recipe.distill.batch
    for first in range(0, len(items), size):  # a session is a batch, and its rows are counted from 0
        speaker = _speaker(method, base, said[first : first + size].__getitem__)
        batch = items[first : first + size]
        written += distill_wave(
            speaker, batch, role=method.role("extractor"), prompt=method.prompts["distill"],
            config=method.recipe.distill, seed_of=_seed_of, weights_digest="", round=0,
        )  # fmt: skip
    return _trained(method, "extractor", base, [each.generation for each in written], directory, epochs=6)


def _play(method: Method, base: Path, *, episodes: int) -> list[PlayedEpisode]:
    """Scripted episodes on training maps: three of four guided by a random recommendation, which they follow."""
    random = np.random.default_rng(0)
    family = method.families[0]
    environment = make_environment(family)
    seeds = [family.train_seeds.start + index % family.train_seeds.count for index in range(episodes)]
    followed: list[str | None] = [ACTIONS[index // 4 % 4] if index % 4 else None for index in range(episodes)]
    slots = []
    for index, (start, action) in enumerate(zip(environment.reset_many(seeds), followed, strict=True)):
        task = Task(
            episode_id=f"start-{index}", round=0, family=family.name, group=index, member=0,
            environment_seed=seeds[index], stream="free" if action is None else "guided", goal=start.goal,
            first_observation=start.observation, query="",
        )  # fmt: skip
        text = None if action is None else advice(action, random)
        slots.append(EpisodeSlot(task, () if text is None else (Guide(text, text, text),)))
    return play_wave(
        _speaker(method, base, lambda row: followed[row] or str(random.choice(ACTIONS))),
        environment,
        slots,
        method=method,
        seed_of=_seed_of,
        sampling=method.role("actor").sampling,
        weights_digest="",
        stage="start",
    )


def _speaker(method: Method, base: Path, script: Callable[[int], str]) -> ScriptedPolicy:
    from transformers import AutoTokenizer

    return ScriptedPolicy(
        ChatFormat(AutoTokenizer.from_pretrained(base), "start"), method.role("actor").context, script
    )


def _seed_of(_name: str) -> np.random.SeedSequence:
    return np.random.SeedSequence(0)


def _trained(
    method: Method, role: str, base: Path, rows: Sequence[Generation], directory: Path, *, epochs: int
) -> Path:
    samples = [
        Sample(
            sample_id=str(index), round=0, role=role, objective="nll", source="", generation_id=row.generation_id,
            reward=0.0, advantage=1.0, weight=1.0, temperature=1.0, token_ids=row.token_ids, loss_mask=row.loss_mask,
            logprobs=row.logprobs,
        )
        for index, row in enumerate(rows)
    ]  # fmt: skip
    config = method.role(role)
    config = config.model_copy(update={"deepspeed": config.deepspeed.model_copy(update={"micro_batch": 64})})
    run_warm_start(
        config,
        base,
        samples,
        WarmStartConfig(num_train_epochs=epochs, learning_rate=3e-3),
        seed=0,
        threads=1,
        output_dir=directory,
    )
    for file in base.iterdir():
        if not (directory / file.name).exists():
            shutil.copy(file, directory)
    return directory
