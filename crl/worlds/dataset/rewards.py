"""Reward functions as TRL's GRPOTrainer calls them, for one completion at a time.

A function is given `prompts`, `completions`, `completion_ids` and every other column, each a list of one, and returns a
list of one: a number, or None where it has nothing to say. `log_metric(name, value)` records a part that is not
counted; `log_extra` is taken and dropped. Functions may be async. Nothing is given that says how far training is: a
completion is worth the same in every round.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from crl.config.registry import load_object
from crl.errors import BadInput
from crl.worlds.dataset.rows import WHERE, Task
from crl.worlds.json_files import shown

_RESERVED = ("prompt", "completion", "completion_ids")
_GIVEN = ("prompts", "completions", "completion_ids", "log_extra", "log_metric")
_NOT_GIVEN = {
    "trainer_state": "what a completion is worth may not depend on how far training is",
    "environments": "there are no environments of TRL here",
}
Messages = list[dict[str, str]]


class RewardBroke(Exception):
    """A reward function returned what is no reward."""

    def __init__(self, found: str, code: str = "environment_reward") -> None:
        self.code = code
        super().__init__(found)


@dataclass
class Scored:
    """What a completion is worth."""

    reward: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    """By function, before they are weighted; then what functions have logged."""


class Function:
    """A function that a person named as `module:function`. Raises BadInput where it cannot be called so."""

    def __init__(
        self, target: str, setting: str, columns: Mapping[str, Any], prompt: str, given: Sequence[str]
    ) -> None:
        """`columns`: of the data set, `prompt`: the one of the prompts; `given`: what it is called with besides."""
        self.target, self._prompt = target, prompt
        where = f"{WHERE}.{setting}"
        try:
            self.call: Callable[..., Any] = load_object(target)
        except Exception as error:  # whatever a foreign module does while it is imported
            raise BadInput(
                f"the function {target!r} cannot be imported: {type(error).__name__}: {error}",
                expected="module:function, in the folder that crl is started in, or installed",
                where=where,
                next_step="correct the name, or put the folder of the module on PYTHONPATH",
            ) from error
        if not callable(self.call) or isinstance(self.call, type):
            raise BadInput(
                f"{target!r} is {shown(self.call)}", expected="a function that returns rewards", where=where,
                next_step="name the function itself; one that a call makes needs a name in the module",
            )  # fmt: skip
        self.name = str(getattr(self.call, "__name__", target))
        called = self.call if inspect.isroutine(self.call) else type(self.call).__call__
        self.asynchronous = inspect.iscoroutinefunction(called)
        parameters = inspect.signature(self.call).parameters.values()
        self._any = any(each.kind is each.VAR_KEYWORD for each in parameters)
        self._named = {each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)}
        for each in parameters:
            needed = each.default is each.empty and each.name in self._named
            if needed and each.kind is not each.POSITIONAL_ONLY and each.name in {*columns, *given}:
                continue
            if needed:
                why = _NOT_GIVEN.get(each.name, "the data set has no such column")
                raise BadInput(
                    f"the function {target!r} asks for {each.name!r}, which it is not given: {why}",
                    expected=f"arguments among {', '.join(dict.fromkeys([*given, *columns]))}",
                    where=where,
                    next_step="correct the function, or name the column as it asks for it",
                )

    def of(self, columns: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        """What the call returns: a coroutine, where it is async. It is given the columns that it names, and with
        `**kwargs` all but that of the prompts."""
        values = {name: value for name, value in columns.items() if self._any and name != self._prompt} | {
            name: columns[name] for name in self._named & columns.keys()
        }
        arguments = {**values, **given}
        return self.call(**{name: value for name, value in arguments.items() if self._any or name in self._named})


class Rewards:
    """Reward functions with their weights. Raises BadInput where one cannot be called."""

    def __init__(
        self, targets: Sequence[str], weights: Sequence[float], columns: Mapping[str, Any], prompt: str
    ) -> None:
        others = {name: value for name, value in columns.items() if name not in _RESERVED}
        self._functions = [Function(target, "reward", others, prompt, _GIVEN) for target in targets]
        self._weights = list(weights)
        names = [function.name for function in self._functions]
        self._names = [
            function.target if names.count(function.name) > 1 else function.name for function in self._functions
        ]
        self.asynchronous = any(function.asynchronous for function in self._functions)

    def begin(self, task: Task, completion: str | Messages, token_ids: Sequence[int]) -> Scoring:
        """Call every function; what async ones return is awaited by :meth:`Scoring.awaited`. Raises what they raise."""
        scoring = Scoring()
        # Copies, as `datasets` gives: the row is played again, and a function may change what it is given.
        columns = {name: [deepcopy(value)] for name, value in task.columns.items() if name not in _RESERVED}
        given = {
            "prompts": [deepcopy(task.prompt)],
            "completions": [completion],
            "completion_ids": [list(token_ids)],
            "log_extra": lambda column, values: None,
            "log_metric": scoring.log,
        }
        for name, weight, function in zip(self._names, self._weights, self._functions, strict=True):
            scoring.returned.append((name, weight, function.of(columns, given)))
        return scoring


@dataclass
class Scoring:
    """What functions returned for a completion, and what they logged."""

    returned: list[tuple[str, float, Any]] = field(default_factory=list)
    logged: dict[str, float] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """Whether a function is async, and has to be awaited."""
        return any(inspect.isawaitable(returned) for *_, returned in self.returned)

    def log(self, name: str, value: Any) -> None:
        """`log_metric` of TRL. What is not finite cannot be recorded."""
        if math.isfinite(value):
            self.logged[str(name)] = float(value)

    async def awaited(self) -> Scored:
        """The reward, once every async function has returned. Raises what they raise."""
        import asyncio

        waiting = {at: value for at, (_, _, value) in enumerate(self.returned) if inspect.isawaitable(value)}
        for at, value in zip(waiting, await asyncio.gather(*waiting.values()), strict=True):
            self.returned[at] = (*self.returned[at][:2], value)
        return self.scored()

    def scored(self) -> Scored:
        """The reward. Raises RewardBroke where a function returned something else than a list of one number."""
        parts = {name: value for name, _, returned in self.returned for value in _number(name, returned)}
        if not parts and self.returned:
            names = ", ".join(name for name, *_ in self.returned)
            raise RewardBroke(f"no function has anything to say of this completion: {names} returned None", _NONE)
        reward = sum(weight * parts[name] for name, weight, _ in self.returned if name in parts)
        return Scored(reward, {**{name: value for name, value in self.logged.items() if name not in parts}, **parts})


_NONE = "environment_no_reward"
"""Reason code of a completion that no function scores."""


def _number(name: str, returned: Any) -> Iterator[float]:
    """The number that a function returned; none where it was None."""
    try:
        values = list(returned)
    except TypeError:
        raise RewardBroke(f"{name} returned {shown(returned)}; expected a list with one reward") from None
    if len(values) != 1:
        raise RewardBroke(f"{name} returned {len(values)} rewards for one completion")
    if values[0] is None:
        return
    try:
        value = float(values[0])
    except (TypeError, ValueError):
        raise RewardBroke(f"{name} returned {shown(values[0])} as a reward; expected a number") from None
    if not math.isfinite(value):
        raise RewardBroke(f"{name} returned the reward {value}; expected a finite number, or None")
    yield value
