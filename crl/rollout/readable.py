"""Text of environments made valid Unicode where it enters: whatever one says can be recorded and read by a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from crl.protocols import Actions, Environment, Start, Step
from crl.text.unicode import valid_text, with_texts


class Readable:
    """A wave of another environment (protocol `Environment`) whose texts are all valid Unicode.

    An action that had to be written otherwise goes back to the environment under its own name.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._names: dict[int, dict[str, str]] = {}

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start one episode per seed."""
        starts = self._environment.reset_many(seeds)
        self._names = {}
        return [self._start(slot, start) for slot, start in enumerate(starts)]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given."""
        own = {slot: self._own(slot, action) for slot, action in actions.items()}
        return {slot: self._step(slot, step) for slot, step in self._environment.step_many(own).items()}

    def oracle(self, slot: int) -> str | None:
        """A good next action."""
        return cast("str | None", _valid(self._environment.oracle(slot)))

    def close(self) -> None:
        """Nothing: the environment belongs to who lent it."""

    def _start(self, slot: int, start: Start) -> Start:
        actions = self._actions(slot, start.actions)
        return Start(_valid(start.goal), _valid(start.observation), actions)

    def _step(self, slot: int, step: Step) -> Step:
        return dataclasses.replace(
            step,
            observation=_valid(step.observation),
            actions=self._actions(slot, step.actions),
            feedback=_valid(step.feedback),
            error=_valid(step.error),
        )

    def _actions(self, slot: int, actions: Actions) -> Actions:
        """The actions to show; the names that the environment has for them are kept."""
        shown = cast("Actions", _valid(actions))
        self._names.pop(slot, None)
        if shown != actions and isinstance(shown, tuple) and isinstance(actions, tuple):
            # Of two that look alike, the first one is meant.
            self._names[slot] = dict(zip(reversed(shown), reversed(actions), strict=True))
        return shown

    def _own(self, slot: int, action: str | None) -> str | None:
        return None if action is None else self._names.get(slot, {}).get(action, action)


def _valid(value: Any) -> Any:
    """A value with every text in it valid; what is no text, against the protocol, stays as it is."""
    return with_texts(value, valid_text)
