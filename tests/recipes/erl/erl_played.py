"""Whole rounds of Experiential RL with models that are told what to say, in this process: seconds, and no torch.

An actor whose instructions begin with `win` wins; by its own instructions it rarely does. The reflector writes good
instructions, bad ones, or none at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crl.config import Experiment, Method
from crl.config.load import load_experiment
from crl.protocols import FreeText, Start, Step
from crl.rounds.stage import Recipe
from tests.unit.recipes.played import Answer, Played, Policy, Services, Trainer, move_to, one_by_one

ROOT = Path(__file__).parents[3]
SETTINGS: dict[str, Any] = {
    "name": "erl-played",
    "method.families.0.environment": {
        "kind": "frozenlake", "masked": True, "size_min": 2, "size_max": 2, "frozen_probability": 1.0, "max_turns": 3,
        "held_out_moves": 1,
    },
    "method.roles.actor.sampling.constrain": "none",
    "method.recipe.reflect.truncated": "malformed",
    "method.families.0.evaluation_seeds.count": 2,
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
    """What the stages ask an engine for; every prompt that a role was given is kept, by role and by stage."""

    def __init__(self, made: Experiment, luck: float = 0.3) -> None:
        super().__init__(made)
        self.read: dict[str, list[str]] = {"actor": [], "reflector": []}
        self.read_in: dict[tuple[int, str], list[str]] = defaultdict(list)
        self._policies = {
            "actor": Policy(self._noting("actor", actor(luck))),
            "reflector": Policy(self._noting("reflector", reflector)),
        }
        self.trainers = {"actor": Trainer()}
        self._place = (0, "")

    def watched(self, recipe: Recipe, method: Method, rounds: int) -> Iterator[tuple[int, str]]:
        """Every stage of a run, one after the other; what is read belongs to the one that was given out last."""
        for self._place in one_by_one(recipe, method, rounds):
            yield self._place

    def _noting(self, role: str, answer: Answer) -> Callable[[str, np.random.Generator], str]:
        def noted(read: str, generator: np.random.Generator) -> str:
            self.read[role].append(read)
            self.read_in[self._place].append(read)
            return answer(read, generator)

        return noted


def played(root: Path, rounds: int, *, luck: float = 0.3, **changes: Any) -> Played:
    """A run of so many rounds."""
    made = experiment(**changes)
    services = ErlServices(made, luck)
    return Played(root, made, rounds, services, services.watched)


# -- rewards between 0 and 1 ------------------------------------------------------------------------------------------

EARNED = ("0 lost", "0.25 won", "0.5 lost", "0.5 won", "1 lost", "1 won")
"""What the actor of a till writes: what it earns, and whether that is a success."""
WORDS = ("amber", "birch", "cedar", "dune", "ember", "fjord")


def earner(read: str, generator: np.random.Generator) -> str:
    """One of :data:`EARNED`."""
    return str(generator.choice(EARNED))


class Till:
    """An environment of one turn, which pays what the actor writes (:data:`EARNED`)."""

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        return [Start("Earn.", shown_at(seed), FreeText("a number, and won or lost")) for seed in seeds]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        steps = {}
        for slot, action in actions.items():
            reward, said = str(action).split()
            feedback, won = f"That pays {reward} in all.", said == "won"
            steps[slot] = Step("The till closes.", FreeText(""), True, feedback, True, won, float(reward))
        return steps

    def close(self) -> None:
        """Nothing is held."""


def shown_at(seed: int) -> str:
    """What a till shows: two words."""
    return f"{WORDS[seed % 6]} {WORDS[seed // 6 % 6]}"


class TillServices(ErlServices):
    """Every family is a till; the actor earns by chance, whatever its instructions are."""

    def __init__(self, made: Experiment, write: Answer) -> None:
        super().__init__(made)
        self._policies = {
            "actor": Policy(self._noting("actor", earner)),
            "reflector": Policy(self._noting("reflector", write)),
        }

    def environment(self, family: str, round_number: int) -> Till:
        return Till()


def paid(root: Path, rounds: int, write: Answer = reflector, **changes: Any) -> Played:
    """A run of so many rounds at the till."""
    made = experiment(**changes)
    services = TillServices(made, write)
    return Played(root, made, rounds, services, services.watched)
