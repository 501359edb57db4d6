"""A turn limit for an environment that has none of its own: an episode that is not over by then ends as it stands.

What counts is every turn that the actor spends, an illegal action and a question included. The last observation says
that no turns are left; the reward is that of the last step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

from crl.envs.endings import ENDINGS, ended
from crl.protocols import Environment, Start, Step, StopReason, Teacher, hand_on


class TurnLimit:
    """A wave of another environment in which no episode has more than `limit` turns (protocol `Environment`, and the
    abilities of that one)."""

    def __init__(self, environment: Environment, limit: int) -> None:
        self._environment, self._limit = environment, limit
        self._turns: list[int] = []
        self.steps_together = getattr(environment, "steps_together", False)
        self.steps_apart = getattr(environment, "steps_apart", False)
        hand_on(
            self,
            environment,
            lambda ability: self._practice if ability.name == "practice" else getattr(environment, ability.name),
        )

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seed i."""
        self._turns = [0] * len(seeds)
        return self._environment.reset_many(seeds)

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given. Stepping a slot that is over raises RuntimeError."""
        for slot in actions:
            if self._turns[slot] >= self._limit:
                raise ended(slot)
            self._turns[slot] += 1
        return {slot: self._limited(slot, step) for slot, step in self._environment.step_many(actions).items()}

    def oracle(self, slot: int) -> str | None:
        """The good next action that the environment knows; None when the episode is over."""
        return None if self._turns[slot] >= self._limit else self._environment.oracle(slot)

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()

    def _limited(self, slot: int, step: Step) -> Step:
        if step.done or self._turns[slot] < self._limit:
            return step
        observation = "\n".join([*([step.observation] if step.observation else []), ENDINGS[StopReason.turn_limit]])
        return dataclasses.replace(
            step, observation=observation, actions=(), done=True, success=False, stop_reason=StopReason.turn_limit
        )

    def _practice(self) -> TurnLimit:
        return TurnLimit(cast("Teacher", self._environment).practice(), self._limit)
