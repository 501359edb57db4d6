"""Environments as a wave uses them: one that spans several task families, and steps that never raise for a slot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from crl.errors import CrlError
from crl.protocols import Environment, Start, Step, StopReason


class MixedEnvironment:
    """The `Environment` of a wave of several task families: each slot lives in the environment of its family.

    The environments are borrowed: each holds its own slots, in the order of the wave, and is closed by who made it.
    """

    steps_together = True

    def __init__(self, families: Sequence[str], environment_of: Callable[[str], Environment]) -> None:
        """`families` is the family of each slot of the wave."""
        self._families = list(families)
        self._slots: dict[str, list[int]] = {}
        for slot, family in enumerate(families):
            self._slots.setdefault(family, []).append(slot)
        self._environments = {family: environment_of(family) for family in self._slots}
        self._inner = {slot: inner for slots in self._slots.values() for inner, slot in enumerate(slots)}

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start one episode per slot. Raises ValueError unless there is one seed for each slot of the wave."""
        if len(seeds) != len(self._families):
            raise ValueError(f"a wave of {len(self._families)} slots was given {len(seeds)} seeds")
        starts: dict[int, Start] = {}
        for family, slots in self._slots.items():
            begun = starts_or_errors(self._environments[family], [seeds[slot] for slot in slots])
            starts.update(zip(slots, begun, strict=True))
        return [starts[slot] for slot in range(len(seeds))]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given. A family that breaks ends its own slots and no others."""
        of_family: dict[str, dict[int, int]] = {}
        for slot in actions:
            of_family.setdefault(self._families[slot], {})[slot] = self._inner[slot]
        steps: dict[int, Step] = {}
        for family, inner_of in of_family.items():
            done = step_or_error(self._environments[family], {inner: actions[slot] for slot, inner in inner_of.items()})
            steps.update((slot, done[inner]) for slot, inner in inner_of.items())
        return steps

    def oracle(self, slot: int) -> str | None:
        """The good next action that the slot's family knows."""
        return self._environments[self._families[slot]].oracle(self._inner[slot])

    def close(self) -> None:
        """Nothing: the environments belong to who lent them."""


def starts_or_errors(environment: Environment, seeds: Sequence[int]) -> list[Start]:
    """`reset_many`; a slot whose seed cannot be started has no start but its reason.

    Where a reset of all seeds raises, each is tried alone, and those that raise again give their place to one that does
    not. Raises what the reset raised where no seed can be started, and the project's own errors.
    """
    try:
        return environment.reset_many(seeds)
    except (CrlError, MemoryError):
        raise
    except Exception:
        failed: dict[int, str] = {}
        for seed in dict.fromkeys(seeds):
            try:
                environment.reset_many([seed])
            except (CrlError, MemoryError):
                raise
            except Exception as error:
                failed[seed] = f"environment_{type(error).__name__}"
        sound = next((seed for seed in seeds if seed not in failed), None)
        if sound is None:
            raise
        starts = environment.reset_many([sound if seed in failed else seed for seed in seeds])
    return [Start.failed(failed[seed]) if seed in failed else starts[slot] for slot, seed in enumerate(seeds)]


def step_or_error(environment: Environment, actions: Mapping[int, str | None]) -> dict[int, Step]:
    """`step_many`, one slot at a time unless the environment steps together; what raises becomes an error step of its
    slots, and a reward that is no finite number one of its slot."""
    if not actions:
        return {}
    together = len(actions) == 1 or getattr(environment, "steps_together", False)
    parts = [actions] if together else [{slot: action} for slot, action in actions.items()]
    steps: dict[int, Step] = {}
    for part in parts:
        steps |= _stepped(environment, part)
    return steps


def _stepped(environment: Environment, actions: Mapping[int, str | None]) -> dict[int, Step]:
    try:
        steps = environment.step_many(actions)
    except (CrlError, MemoryError):
        raise
    except Exception as error:
        return dict.fromkeys(actions, broken(type(error).__name__))
    return {slot: step if math.isfinite(step.reward) else broken("reward") for slot, step in steps.items()}


def broken(what: str) -> Step:
    """The last step of a slot whose environment broke; `what` is the end of its reason code."""
    return broke(f"environment_{what}")


def broke(code: str) -> Step:
    """The last step of a slot whose environment broke, with its reason code."""
    return Step("", (), False, "", True, False, 0.0, StopReason.error, code)
