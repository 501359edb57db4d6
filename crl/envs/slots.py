"""The slots of a wave, as every environment of ours has them: stepped one by one and never after their end. And how an
episode ended, in words: they follow what the last action did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from crl.protocols import Actions, FreeText, Step, StopReason

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
        for index in actions:
            if self._slots[index].done:
                raise ended(index)
        steps = {}
        for index, action in actions.items():
            self._slots[index].turns += 1
            steps[index] = self._step(self._slots[index], action)
        return steps

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
