"""Whole rounds of Experiential RL with models that are told what to say, in this process: seconds, and no torch.

An actor whose instructions begin with `win` wins; by its own instructions it rarely does. The reflector writes good
instructions, bad ones, or none at all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from crl.config import Experiment
from crl.config.load import load_experiment
from tests.unit.recipes.played import Answer, Played, Policy, Services, Trainer, move_to

ROOT = Path(__file__).parents[3]
SETTINGS: dict[str, Any] = {
    "name": "erl-played",
    "method.families.0.environment": {
        "kind": "frozenlake", "masked": True, "size_min": 2, "size_max": 2, "frozen_probability": 1.0, "max_turns": 3,
        "held_out_moves": 1,
    },
    "method.roles.actor.sampling.constrain": "none",
    "method.recipe.reflect.truncated": "malformed",
}  # fmt: skip
OWN = "Answer with one action."
"""System text of the actor's prompt."""
WRITTEN = ("win, this way", "win, that way", "lose", "")
"""What the reflector says; the empty text is malformed."""


def experiment(**changes: Any) -> Experiment:
    """conf/erl_tiny.yaml on maps of four cells; `changes` are dotted keys with `__` for the dot."""
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    return load_experiment(ROOT / "conf/erl_tiny.yaml", {**SETTINGS, **changed})


def actor(luck: float) -> Answer:
    """Wins by good instructions, and without them with a probability of `luck`."""

    def act(read: str, generator: np.random.Generator) -> str:
        if not read.startswith("win") and (read.startswith("lose") or generator.random() >= luck):
            return "wait"
        return move_to(read, "ABD")

    return act


def reflector(read: str, generator: np.random.Generator) -> str:
    """One of :data:`WRITTEN`."""
    return str(generator.choice(WRITTEN))


class ErlServices(Services):
    """What the stages ask an engine for; every prompt that a role was given is kept."""

    def __init__(self, made: Experiment, luck: float = 0.3) -> None:
        super().__init__(made)
        self.read: dict[str, list[str]] = {"actor": [], "reflector": []}
        self._policies = {
            "actor": Policy(self._noting("actor", actor(luck))),
            "reflector": Policy(self._noting("reflector", reflector)),
        }
        self.trainers = {"actor": Trainer()}

    def _noting(self, role: str, answer: Answer) -> Callable[[str, np.random.Generator], str]:
        def noted(read: str, generator: np.random.Generator) -> str:
            self.read[role].append(read)
            return answer(read, generator)

        return noted


def played(root: Path, rounds: int, *, luck: float = 0.3, **changes: Any) -> Played:
    """A run of so many rounds."""
    made = experiment(**changes)
    return Played(root, made, rounds, ErlServices(made, luck))
