"""Whole rounds of importance-weighted replay with an actor that is told what to do: seconds, and no language model.

How often the actor wins depends on how many updates it has had (:data:`LUCK`), so that updates help, harm, or leave
things as they are. An update takes a step and writes a checkpoint that says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crl.config import Experiment
from crl.config.load import load_experiment
from crl.records import Weights
from tests.unit.recipes.played import Answer, Played, Policy, Services, Trainer, move_to

ROOT = Path(__file__).parents[3]
SETTINGS: dict[str, Any] = {
    "name": "replay-played",
    "method.families.0.environment": {
        "kind": "frozenlake", "masked": True, "size_min": 2, "size_max": 2, "frozen_probability": 1.0, "max_turns": 3,
        "held_out_moves": 1,
    },
    "method.roles.actor.sampling.constrain": "none",
}  # fmt: skip
LUCK = (0.3, 0.7, 0.2, 0.2, 0.5)
"""Probability of the right move by number of updates; the last one from there on."""
IMPROVED, WORSE, TIE = 1, 2, 3
"""Rounds whose update helps, harms, and changes nothing."""


def experiment(**changes: Any) -> Experiment:
    """conf/importance_replay_tiny.yaml on maps of four cells; `changes` are dotted keys with `__` for the dot."""
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    return load_experiment(ROOT / "conf/importance_replay_tiny.yaml", {**SETTINGS, **changed})


def actor(luck: float) -> Answer:
    """Moves toward the goal with a probability of `luck`, else waits."""

    def act(read: str, generator: np.random.Generator) -> str:
        if generator.random() >= luck:
            return "wait"
        return move_to(read, "ABD")

    return act


class SteppingTrainer(Trainer):
    """Takes a step for every batch that carries a gradient; its checkpoint is the number of updates."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = 0

    def update(self, samples: Sequence[Any], objective: Any, **more: Any) -> dict[str, float]:
        super().update(samples, objective, **more)
        stepped = any(sample.weight * sample.advantage for sample in samples)
        self.updates += stepped
        return {"samples": float(len(samples)), "stepped": float(stepped), "loss": 0.25, "tokens": 1.0}

    def save(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "updates.txt").write_text(f"{self.updates}\n")


class ReplayServices(Services):
    """What the stages ask an engine for."""

    def __init__(self, made: Experiment, trainer: Trainer | None = None) -> None:
        super().__init__(made)
        self.stepping = trainer or SteppingTrainer()
        self.trainers = {"actor": self.stepping}

    def policy(self, role: str, weights: Weights) -> Policy:
        return Policy(actor(LUCK[min(weights.updates, len(LUCK) - 1)]))

    def trainer(self, role: str, weights: Weights) -> Trainer:
        if isinstance(self.stepping, SteppingTrainer):
            self.stepping.updates = weights.updates
        return self.stepping


def played(root: Path, rounds: int, *, trainer: Trainer | None = None, **changes: Any) -> Played:
    """A run of so many rounds."""
    made = experiment(**changes)
    return Played(root, made, rounds, ReplayServices(made, trainer))


def by_id(rows: Sequence[Any], name: str) -> Mapping[str, Any]:
    """Rows by a column."""
    return {getattr(row, name): row for row in rows}
