"""A walk along a line that nothing ends but its goal: an environment without a turn limit, with a graded reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from crl.config import EnvironmentConfig
from crl.protocols import Start, Step

ACTIONS = ("left", "right")
GOAL = 4


class EndlessConfig(EnvironmentConfig):
    """A walk to the fourth place of a line."""

    kind: Literal["tests.unit.recipes.endless:EndlessConfig"] = "tests.unit.recipes.endless:EndlessConfig"

    def make(self) -> Endless:
        """A wave of walks."""
        return Endless()


class Endless:
    """Seed s starts at place s modulo 3; the reward is how much of the way is done."""

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        self.places = [seed % 3 for seed in seeds]
        return [Start(f"Walk to place {GOAL}.", f"place {place}", ACTIONS) for place in self.places]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        return {slot: self._step(slot, action) for slot, action in actions.items()}

    def _step(self, slot: int, action: str | None) -> Step:
        self.places[slot] += {"left": -1, "right": 1}.get(action or "", 0)
        place = self.places[slot]
        feedback = "" if action else "left or right?"
        return Step(f"place {place}", ACTIONS, action is not None, feedback, place == GOAL, place == GOAL, place / GOAL)

    def oracle(self, slot: int) -> str | None:
        return "right"

    def close(self) -> None:
        pass
