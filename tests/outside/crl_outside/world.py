"""Write a text of a wanted length: free text, and a reward that says how near it came."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from pydantic import Field

from crl.config import EnvironmentConfig
from crl.protocols import FreeText, Start, Step, StopReason

FORM = FreeText("write any text")


class LengthsConfig(EnvironmentConfig):
    """Write a text of a wanted number of characters."""

    kind: str = "lengths"
    longest: int = Field(24, ge=1, le=1000, description="Largest number of characters that may be wanted.")
    attempts: int = Field(2, ge=1, le=100, description="Texts before the episode ends.")

    def make(self) -> Lengths:
        return Lengths(self)


class Lengths:
    """A wave of episodes, one per slot."""

    def __init__(self, config: LengthsConfig) -> None:
        self.config = config

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        self.wanted = [random.Random(seed).randint(1, self.config.longest) for seed in seeds]
        self.used = [0] * len(seeds)
        return [Start(f"Write {wanted} characters.", "Nothing is written.", FORM) for wanted in self.wanted]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        return {slot: self.step(slot, action or "") for slot, action in actions.items()}

    def step(self, slot: int, text: str) -> Step:
        self.used[slot] += 1
        distance = len(text) - self.wanted[slot]
        over = distance == 0 or self.used[slot] >= self.config.attempts
        return Step(
            observation=f"{len(text)} characters are written.",
            actions=FORM,
            legal=bool(text),
            feedback="Exactly." if distance == 0 else "Too long." if distance > 0 else "Too short.",
            done=over,
            success=distance == 0,
            reward=1 / (1 + abs(distance)),
            stop_reason=StopReason.turn_limit if over and distance else None,
        )

    def oracle(self, slot: int) -> str | None:
        return "a" * self.wanted[slot]

    def close(self) -> None:
        pass
