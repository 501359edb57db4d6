"""Environments as a wave uses them: one that spans several task families, steps that never raise for a slot, and text
made valid and bounded where it enters, so that whatever one says can be recorded and read by a model."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from crl.config.mechanisms import LONGEST_OBSERVATION
from crl.errors import CrlError, EnvironmentBroken
from crl.faults import EXPECTED_ACTIONS, Fault, attempt, broke, flaw_of_actions, of_run
from crl.protocols import Actions, Environment, FreeText, Leveled, Start, Step, ToolCalls
from crl.rollout.actions import NO_ACTION
from crl.text.unicode import valid_text, with_texts

TOO_LONG = "environment_observation_limit"
"""Reason code of an episode that is shown more."""
NO_TEXT = "environment_no_text"
"""Reason code of an episode that is shown an image, or anything else that is no text."""
ODD_ACTIONS = "environment_actions"
"""Reason code of an episode whose actions are of no kind that there is."""
_OTHERS = 3
"""Seeds that are tried where none of a wave can be started."""


class MixedEnvironment:
    """The `Environment` of a wave of several task families: each slot lives in the environment of its family.

    The environments are borrowed: each holds its own slots, in the order of the wave, and is closed by who made it.
    """

    steps_together = True
    spans_families = True
    """A wave of several task families may be played in it."""

    def __init__(self, families: Sequence[str], environment_of: Callable[[str], Environment]) -> None:
        """`families` is the family of each slot of the wave."""
        self._families = list(families)
        self._slots: dict[str, list[int]] = {}
        for slot, family in enumerate(families):
            self._slots.setdefault(family, []).append(slot)
        self._environments = {family: environment_of(family) for family in self._slots}
        self._inner = {slot: inner for slots in self._slots.values() for inner, slot in enumerate(slots)}

    @property
    def steps_apart(self) -> bool:
        """Whether slots may be stepped in several threads: where those of every family may."""
        return all(getattr(environment, "steps_apart", False) for environment in self._environments.values())

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start one episode per slot. Raises ValueError unless there is one seed for each slot of the wave."""
        if len(seeds) != len(self._families):
            raise ValueError(f"a wave of {len(self._families)} slots was given {len(seeds)} seeds")
        starts: dict[int, Start] = {}
        for family, slots in self._slots.items():
            begun = starts_or_errors(self._environments[family], [seeds[slot] for slot in slots], family)
            starts.update(zip(slots, begun, strict=True))
        return [starts[slot] for slot in range(len(seeds))]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given. A family that breaks ends its own slots and no others."""
        return dict(self.step_as_completed(actions))

    def step_as_completed(self, actions: Mapping[int, str | None]) -> Iterator[tuple[int, Step]]:
        """As :meth:`step_many`: each slot with its step, when it is there."""
        of_family: dict[str, dict[int, int]] = {}
        for slot in actions:
            of_family.setdefault(self._families[slot], {})[self._inner[slot]] = slot
        for family, slot_of in of_family.items():
            wanted = {inner: actions[slot] for inner, slot in slot_of.items()}
            for inner, step in steps_as_they_come(self._environments[family], wanted):
                yield slot_of[inner], step

    def oracle(self, slot: int) -> str | None:
        """The good next action that the slot's family knows."""
        return self._environments[self._families[slot]].oracle(self._inner[slot])

    def content(self, slot: int) -> str | None:
        """What the level of a slot holds; None where its family does not say."""
        environment = self._environments[self._families[slot]]
        return environment.content(self._inner[slot]) if isinstance(environment, Leveled) else None

    def close(self) -> None:
        """Nothing: the environments belong to who lent them."""


def starts_or_errors(environment: Environment, seeds: Sequence[int], family: str = "") -> list[Start]:
    """`reset_many`; a slot whose seed cannot be started has no start but its reason.

    Where a reset of all seeds raises, each is tried alone, and those that raise again give their place to one that does
    not. Where several seeds were tried and neither they nor a few others can be started, it is the environment that is
    out of order, for now perhaps. Raises EnvironmentBroken then, or what the environment raised where that is an error
    of ours; `family` names it.
    """
    starts, fault = _starts(environment, seeds)
    tried = len(set(seeds))
    if tried < 2 or any(start.error is None for start in starts) or _starts_others(environment, seeds):
        return starts
    with of_run():
        if fault is not None and isinstance(fault.error, CrlError):
            raise fault.error
        raise EnvironmentBroken(
            f"none of {tried} episodes could be started: {starts[0].error}\n{starts[0].details or ''}".rstrip(),
            where=f"environment of family {family}" if family else None,
            next_step=EnvironmentBroken.ADVICE,
        )


def _starts(environment: Environment, seeds: Sequence[int]) -> tuple[list[Start], Fault | None]:
    """The starts, and what the last reset raised."""
    begun = _begun(environment, seeds)
    if not isinstance(begun, Fault):
        return begun, None
    alone = {seed: _begun(environment, [seed]) for seed in dict.fromkeys(seeds)}
    failed = {
        seed: Start.failed(fault.code, fault.details) for seed, fault in alone.items() if isinstance(fault, Fault)
    }
    sound = next((seed for seed in seeds if seed not in failed), None)
    if sound is not None:
        begun = _begun(environment, [sound if seed in failed else seed for seed in seeds])
        if not isinstance(begun, Fault):
            return [failed.get(seed, start) for seed, start in zip(seeds, begun, strict=True)], None
    return [failed.get(seed, Start.failed(begun.code, begun.details)) for seed in seeds], begun


def _starts_others(environment: Environment, seeds: Sequence[int]) -> bool:
    """Whether some other seed can be started: then it is the tasks of these seeds that are bad."""
    if getattr(environment, "spans_families", False):  # the environment of each was asked
        return True
    for seed in range(max(seeds) + 1, max(seeds) + 1 + _OTHERS):
        begun = _begun(environment, [seed])
        if not isinstance(begun, Fault) and begun[0].error is None:
            return True
    return False


def _begun(environment: Environment, seeds: Sequence[int]) -> list[Start] | Fault:
    return attempt(lambda: environment.reset_many(seeds))


def step_or_error(environment: Environment, actions: Mapping[int, str | None]) -> dict[int, Step]:
    """`step_many`, one slot at a time unless the environment steps together; what raises becomes an error step of its
    slots, and a reward that is no finite number, or no step, one of its slot."""
    steps = dict(steps_as_they_come(environment, actions))
    return {slot: steps[slot] for slot in actions}


def steps_as_they_come(environment: Environment, actions: Mapping[int, str | None]) -> Iterator[tuple[int, Step]]:
    """As :func:`step_or_error`: each slot with its step, as soon as the environment gives it."""
    if not actions:
        return
    if hasattr(environment, "step_as_completed"):
        yield from _stepped(environment.step_as_completed, actions)
        return
    together = len(actions) == 1 or getattr(environment, "steps_together", False)
    for part in [actions] if together else [{slot: action} for slot, action in actions.items()]:
        yield from _stepped(lambda given: environment.step_many(given).items(), part)


def _stepped(
    step: Callable[[Mapping[int, str | None]], Iterable[tuple[int, Step]]], actions: Mapping[int, str | None]
) -> Iterator[tuple[int, Step]]:
    left = dict(actions)
    steps = attempt(lambda: iter(step(actions)))

    def following() -> tuple[int, Step] | None:
        found = next(steps, None)  # type: ignore[arg-type]
        if found is None:
            return None
        slot, done = found
        del left[slot]
        return slot, done if is_finite(done) else broke("environment_reward", f"no step with a finite reward: {done}")

    # Around the calls alone: what is thrown into this generator where it waits is nothing of the environment's.
    given = steps if isinstance(steps, Fault) else attempt(following)
    while given is not None and not isinstance(given, Fault):
        yield given
        given = attempt(following)
    missing = broke("environment_no_step") if given is None else broke(given.code, given.details)
    yield from dict.fromkeys(left, missing).items()


def is_finite(step: Step) -> bool:
    """Whether an environment gave rewards that can be counted with; what a user's gives may be anything."""
    try:
        parts = step.reward_parts or {}
        return all(map(math.isfinite, [step.reward, step.turn_reward or 0.0, *parts.values()]))
    except (TypeError, OverflowError, AttributeError):
        return False


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
        """A good next action; None where none is known, or the environment raises."""
        found = attempt(lambda: self._environment.oracle(slot))
        return None if isinstance(found, Fault) else cast("str | None", _valid(found))

    def close(self) -> None:
        """Nothing: the environment belongs to who lent it."""

    def _start(self, slot: int, start: Start) -> Start:
        if start.error is not None:
            return Start.failed(_valid(start.error), start.details)
        if (flaw := _no_text(start.goal, start.observation, *chain(*start.messages))) is not None:
            return Start.failed(NO_TEXT, flaw)
        if (fault := _fault_of(start.actions)) is not None:
            return Start.failed(*fault)
        if (shown := _length(start.actions, start.goal, start.observation, *chain(*start.messages))) > self._longest:
            return Start.failed(TOO_LONG, self._too_long(shown))
        return Start(
            _valid(start.goal),
            _valid(start.observation),
            self._actions(slot, start.actions),
            messages=_valid(start.messages),
            task_digest=self._task_digest(slot),
        )

    def _task_digest(self, slot: int) -> str:
        """SHA-256 of what the level holds; empty where the environment does not say."""
        content = getattr(self._environment, "content", None)
        found = attempt(lambda: content(slot)) if callable(content) else None
        if not isinstance(found, str):
            return ""
        return hashlib.sha256(found.encode("utf-8", "backslashreplace")).hexdigest()

    def _step(self, slot: int, step: Step) -> Step:
        if step.error is None and (flaw := _no_text(step.observation)) is not None:
            return broke(NO_TEXT, flaw)
        if not step.done and (fault := _fault_of(step.actions)) is not None:
            return broke(*fault)
        if (shown := _length(step.actions, step.observation, step.feedback)) > self._longest:
            return broke(TOO_LONG, self._too_long(shown))
        return dataclasses.replace(
            step,
            observation=_valid(step.observation),
            actions=self._actions(slot, step.actions),
            feedback=_valid(step.feedback),
            error=_valid(step.error),
            reward_parts=_valid(step.reward_parts),
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


def _fault_of(actions: Any) -> tuple[str, str] | None:
    """Why an episode cannot go on with these actions: reason code and details; None where it can."""
    if (flaw := flaw_of_actions(actions)) is not None:
        return ODD_ACTIONS, f"{flaw}; expected {EXPECTED_ACTIONS}"
    if actions == ():
        return NO_ACTION, "the environment names no possible action, and the episode is not over"
    return None


def _no_text(*shown: Any) -> str | None:
    """What is wrong where something that is shown is no text, an image for example; None where all of it is."""
    odd = next((each for each in shown if not isinstance(each, str)), None)
    if odd is None:
        return None
    return f"{type(odd).__module__}.{type(odd).__qualname__} is shown; a model reads text only: describe it in words"


def _length(actions: Any, *texts: str) -> int:
    """Characters of what is shown; an action that is no text, against the protocol, has none."""
    shown = [*texts]
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
