"""Find a number: the actor writes `guess[42]` and is told whether that is too low or too high."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from pydantic import Field

from crl.config import EnvironmentConfig
from crl.protocols import FreeText, Start, Step, StopReason

GUESS = re.compile(r"guess\[(\d{1,9})\]")
FORM = FreeText("write guess[number], such as guess[42]")


class GuessConfig(EnvironmentConfig):
    """Find a number."""

    kind: str = "guess"
    highest: int = Field(100, ge=2, le=10**6, description="Largest number that may be hidden.")
    max_turns: int = Field(5, ge=1, le=100, description="Guesses before the episode ends.")

    def make(self) -> GuessEnvironment:
        return GuessEnvironment(self)


class GuessEnvironment:
    """A wave of episodes. What an episode is worth is how near the last guess was; without one, nothing."""

    def __init__(self, config: GuessConfig) -> None:
        self.config = config

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        self.hidden = [random.Random(seed).randint(1, self.config.highest) for seed in seeds]
        self.turns, self.worth = [0] * len(seeds), [0.0] * len(seeds)
        self.seen = ["No guess yet."] * len(seeds)
        return [Start(f"Find a number from 1 to {self.config.highest}.", seen, FORM) for seen in self.seen]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        return {slot: self.step(slot, action or "") for slot, action in actions.items()}

    def step(self, slot: int, action: str) -> Step:
        self.turns[slot] += 1
        found = GUESS.search(action)
        success, feedback = False, "That is no guess."
        if found is not None:
            distance = int(found[1]) - self.hidden[slot]
            success = distance == 0
            feedback = "Found!" if success else "Too low." if distance < 0 else "Too high."
            self.seen[slot] = f"Your last guess was {int(found[1])}."
            self.worth[slot] = max(0.0, 1.0 - abs(distance) / self.config.highest)
        over = self.turns[slot] >= self.config.max_turns and not success
        return Step(
            observation=self.seen[slot],
            actions=FORM,
            legal=found is not None,
            feedback=feedback,
            done=success or over,
            success=success,
            reward=self.worth[slot],
            stop_reason=StopReason.turn_limit if over else None,
        )

    def oracle(self, slot: int) -> str | None:
        return f"guess[{self.hidden[slot]}]"

    def close(self) -> None:
        pass
