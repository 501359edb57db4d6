"""The slots of a wave, as every environment of ours has them: stepped one by one and never after their end. And how an
episode ended, in words: they follow what the last action did.

:class:`TurnLimit` is for an environment that has no limit of its own: an episode that is not over by then ends as it
stands. What counts is every turn that the actor spends, an illegal action and a question included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar, cast

from crl.protocols import Actions, Environment, FreeText, Start, Step, StopReason, Teacher, hand_on

ENDINGS: Mapping[StopReason, str] = {
    StopReason.success: "The goal is reached.",
    StopReason.failure: "The game is over.",
    StopReason.turn_limit: "No turns are left.",
}
NO_ACTION = "That names no possible action."
"""Feedback on an answer that names nothing."""


class Slot(Protocol):
    """An episode of a wave."""

    turns: int
    done: bool


S = TypeVar("S", bound=Slot)


class Slots(Generic[S]):
    """Base of an environment: `reset_many` fills its slots, `_step` does a turn in one of them."""

    def __init__(self) -> None:
        self._slots: list[S] = []

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given. Stepping a slot that is done raises RuntimeError."""
        return {index: self._step(slot, actions[index]) for index, slot in self._turns_of(actions).items()}

    def _turns_of(self, actions: Mapping[int, str | None]) -> dict[int, S]:
        """The slots that are stepped, each a turn further. Raises RuntimeError for one that is done."""
        for index in actions:
            if self._slots[index].done:
                raise ended(index)
        for index in actions:
            self._slots[index].turns += 1
        return {index: self._slots[index] for index in actions}

    def _step(self, slot: S, action: str | None) -> Step:
        raise NotImplementedError(f"{type(self).__name__} has to say what a turn does")

    def close(self) -> None:
        """Nothing is held."""
        self._slots = []


def stepped(
    slot: Slot,
    reason: StopReason | None,
    observation: str,
    actions: Actions,
    feedback: str = "",
    *,
    legal: bool,
    reward: float | None = None,
) -> Step:
    """The step of a slot, which is done where there is a `reason`. `actions` are those of an episode that goes on, and
    `reward` None is 1 of a success, else 0."""
    slot.done, success = reason is not None, reason is StopReason.success
    if slot.done:
        actions = () if isinstance(actions, tuple) else FreeText("")
    worth = float(success) if reward is None else reward
    return Step(observation, actions, legal, feedback, slot.done, success, worth, reason)


def with_ending(observation: str, reason: StopReason | None) -> str:
    """What is seen, and below it how the episode ended, if it did."""
    return observation if reason is None else f"{observation}\n{ENDINGS[reason]}"


def refusal(actions: Iterable[str]) -> str:
    """Feedback on an answer that names none of the actions."""
    return f"{NO_ACTION} Possible: {', '.join(actions)}."


def ended(index: int) -> RuntimeError:
    """The error of a step after the end."""
    return RuntimeError(f"slot {index} is done; reset before stepping it again")


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
