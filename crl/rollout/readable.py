"""Text of environments where it enters: made valid Unicode, and bounded, so that whatever one says can be recorded and
read by a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from crl.config.mechanisms import LONGEST_OBSERVATION
from crl.faults import EXPECTED_ACTIONS, flaw_of_actions
from crl.protocols import Actions, Environment, FreeText, Start, Step, ToolCalls
from crl.rollout.environments import broke, starts_or_errors
from crl.text.unicode import valid_text, with_texts

TOO_LONG = "environment_observation_limit"
"""Reason code of an episode that is shown more."""
ODD_ACTIONS = "environment_actions"
"""Reason code of an episode whose actions are of no kind that there is."""


class Readable:
    """A wave of another environment (protocol `Environment`) whose texts are all valid Unicode and of bounded length.

    An action that had to be written otherwise goes back to the environment under its own name.
    """

    def __init__(self, environment: Environment, longest: int | None = None) -> None:
        """`longest`: most characters that are shown at one time; a slot that shows more breaks."""
        self._environment, self._longest = environment, longest or LONGEST_OBSERVATION
        self._names: dict[int, dict[str, str]] = {}

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start one episode per seed; one that cannot be started has no start but its reason."""
        starts = starts_or_errors(self._environment, seeds)
        self._names = {}
        return [self._start(slot, start) for slot, start in enumerate(starts)]

    @property
    def steps_together(self) -> bool:
        """Whether the environment is given all slots in one call."""
        return bool(getattr(self._environment, "steps_together", False))

    @property
    def steps_apart(self) -> bool:
        """Whether slots may be stepped in several threads."""
        return bool(getattr(self._environment, "steps_apart", False))

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given."""
        own = {slot: self._own(slot, action) for slot, action in actions.items()}
        return {slot: self._step(slot, step) for slot, step in self._environment.step_many(own).items()}

    def ended(self, slots: Sequence[int]) -> None:
        """Tell an environment that wants to know it (`KeptSteps`) which episodes are over, whoever ended them."""
        told = getattr(self._environment, "ended", None)
        if callable(told):
            told(slots)

    def oracle(self, slot: int) -> str | None:
        """A good next action."""
        return cast("str | None", _valid(self._environment.oracle(slot)))

    def close(self) -> None:
        """Nothing: the environment belongs to who lent it."""

    def _start(self, slot: int, start: Start) -> Start:
        if start.error is not None:
            return Start.failed(_valid(start.error), start.details)
        if (flaw := flaw_of_actions(start.actions)) is not None:
            return Start.failed(ODD_ACTIONS, f"{flaw}; expected {EXPECTED_ACTIONS}")
        if (shown := _length(start.goal, start.observation, start.actions)) > self._longest:
            return Start.failed(TOO_LONG, self._too_long(shown))
        actions = self._actions(slot, start.actions)
        return Start(_valid(start.goal), _valid(start.observation), actions)

    def _step(self, slot: int, step: Step) -> Step:
        if not step.done and (flaw := flaw_of_actions(step.actions)) is not None:
            return broke(ODD_ACTIONS, f"{flaw}; expected {EXPECTED_ACTIONS}")
        if (shown := _length(step.observation, step.feedback, step.actions)) > self._longest:
            return broke(TOO_LONG, self._too_long(shown))
        return dataclasses.replace(
            step,
            observation=_valid(step.observation),
            actions=self._actions(slot, step.actions),
            feedback=_valid(step.feedback),
            error=_valid(step.error),
        )

    def _too_long(self, shown: int) -> str:
        return f"{shown:,} characters are shown at once; at most {self._longest:,} are read"

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


def _length(first: Any, second: Any, actions: Any) -> int:
    """Characters of what is shown; what is no text, against the protocol, has none."""
    shown = [first, second]
    if isinstance(actions, FreeText):
        shown.append(actions.form)
    elif isinstance(actions, ToolCalls):
        shown += [f"{tool.name}{tool.description}{tool.parameters}" for tool in actions.tools]
    elif isinstance(actions, tuple):
        shown += actions
    return sum(len(each) for each in shown if isinstance(each, str))


def _valid(value: Any) -> Any:
    """A value with every text in it valid; what is no text, against the protocol, stays as it is."""
    return with_texts(value, valid_text)
