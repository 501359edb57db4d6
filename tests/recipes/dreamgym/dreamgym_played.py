"""Whole rounds of DreamGym with models that are told what to say, in this process: seconds, and no torch.

The experience model knows the rules of a lake without holes. Now and then its output is malformed, and it never sees
that the turns are over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crl.config import Experiment
from crl.config.load import load_experiment
from tests.unit.recipes.played import Answer, Played, Policy, Services, Session, Trainer
from tests.unit.rollout.fakes import END, CharacterChat

ROOT = Path(__file__).parents[3]
SETTINGS: dict[str, Any] = {
    "name": "dreamgym-played",
    "method.families.0.environment": {
        "kind": "frozenlake", "size_min": 2, "size_max": 2, "frozen_probability": 1.0, "max_turns": 3,
        "held_out_moves": 1,
    },
    "method.roles.actor.sampling.constrain": "none",
    "method.recipe.fit.reasoning": "environment",
    "method.recipe.fit.num_train_epochs": 2,
    "method.recipe.explore.first": 10,
    "method.recipe.explore.further": 5,
    "method.families.0.evaluation_seeds.count": 2,
}  # fmt: skip
ACTIONS = ("up", "down", "left", "right")
OFFSETS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
SECRET = "SECRET"
"""What the experience model's reasoning begins with."""


def experiment(**changes: Any) -> Experiment:
    """conf/dreamgym_tiny.yaml on maps of four cells; `changes` are dotted keys with `__` for the dot."""
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    return load_experiment(ROOT / "conf/dreamgym_tiny.yaml", {**SETTINGS, **changed})


class Chat(CharacterChat):
    """One id a character, line breaks included."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids if token >= 32 or token == ord("\n"))

    def answer(self, text: str) -> list[int]:
        return [*map(ord, text), END]


class Told(Policy):
    """A model that is told what to say."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.chat: Any = Chat()
        self.read: list[str] = []

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Session:
        self.read += [self.chat.decode(prompt) for prompt in prompts]
        return super().open(prompts, seeds, limit)


def cells_of(text: str) -> tuple[dict[str, tuple[int, int]], str]:
    """Where agent and goal are in the last map of a text."""
    first, second = re.findall(r"[@FG] [@FG]", text)[-2:]
    found = {symbol: (row, column) for row, line in enumerate((first, second)) for column, symbol in
             enumerate(line.split())}  # fmt: skip
    return found, f"{first}\n{second}"


def actor(read: str, generator: np.random.Generator) -> str:
    """Walks to the goal three times out of four."""
    if generator.random() < 0.4:
        return str(generator.choice(["wait", *ACTIONS]))
    cells, _ = cells_of(read)
    agent, goal = cells["@"], cells["G"]
    if agent[0] != goal[0]:
        return "down" if goal[0] > agent[0] else "up"
    return "right" if goal[1] > agent[1] else "left"


def dream(read: str, generator: np.random.Generator) -> str:
    """What the rules of the lake say, in the form of an answer; sometimes nothing of use; a new map where it is asked
    for one."""
    if read.startswith("Vary."):
        return "G F\nF @"
    if generator.random() < 0.05:
        return "Who knows?"
    cells, _ = cells_of(read)
    step = OFFSETS[read.rsplit("Action: ", 1)[1].split("\n", 1)[0]]
    agent, goal = cells["@"], cells["G"]
    row, column = agent[0] + step[0], agent[1] + step[1]
    moved = (row, column) if row in (0, 1) and column in (0, 1) else agent
    rows = [
        " ".join("@" if (r, c) == moved else "G" if (r, c) == goal else "F" for c in (0, 1)) for r in (0, 1)
    ]  # fmt: skip
    won = moved == goal
    end = "\nThe goal is reached.\nOutcome: success, reward 1" if won else "\nOutcome: continues"
    return f"Reasoning: {SECRET} rules\nObservation:\n" + "\n".join(rows) + end


def teach(read: str, generator: np.random.Generator) -> str:
    """Why a step is as it is."""
    return "" if generator.random() < 0.3 else "because\nit is so"


class DreamServices(Services):
    """What the stages ask an engine for; every prompt that a role was given is kept."""

    def __init__(self, made: Experiment, answer: Answer = dream) -> None:
        super().__init__(made)
        told: dict[str, Any] = {"actor": Told(actor), "experience": Told(answer), "teacher": Told(teach)}
        self._policies = told
        self.trainers = {"actor": Trainer(), "experience": Trainer()}

    def read(self, role: str) -> list[str]:
        """The prompts that a role was given."""
        policy: Any = self._policies[role]
        return list(policy.read)


def played(root: Path, rounds: int, *, answer: Answer = dream, **changes: Any) -> Played:
    """A run of so many rounds."""
    made = experiment(**changes)
    return Played(root, made, rounds, DreamServices(made, answer))
