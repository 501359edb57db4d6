"""Gymnasium: any registered id that shows text and takes numbered or written actions.

What is shown is a `Text` observation, the texts (and small numbers) of a `Dict` observation, or what a text mode of
`render` draws. A field named mission, goal, task or instruction is the goal. The actions of a `Discrete` space have the
names that are given, those that the environment knows, or their numbers; a `Text` action space takes what is written.

Gymnasium asks environments to draw from `np_random` alone. One that draws from Python's or NumPy's global generator is
found out when it is made, and refused unless `global_random` says so.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from crl.errors import BadInput
from crl.protocols import Actions, FreeText
from crl.worlds.bridges.packages import WHERE, Argument, BridgeConfig, Real, Whole, check_known, package
from crl.worlds.bridges.wave import Episode, GlobalStreams, Outcome, Untouched, Wave, seed_of

_GOAL_FIELDS = ("mission", "goal", "task", "instruction")
_PROBES = 16
"""Steps in which it is found out whether the global generators are drawn from."""
_HIGHLIGHT = re.compile(r"\x1b\[(?:\d+;)*(?:4[0-7]|7)m(.*?)\x1b\[0m")
"""What a text mode marks with a background: the place of the player, mostly."""
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class GymnasiumConfig(BridgeConfig):
    """A registered Gymnasium environment with text observations."""

    model_config = ConfigDict(title="Gymnasium")

    PACKAGES: ClassVar[tuple[str, ...]] = ("gymnasium",)

    kind: Literal["gymnasium"] = "gymnasium"
    id: str = Field(description="Registered id, or module:id to import the module first.")
    arguments: dict[str, Argument | list[str | Whole | Real]] = Field(
        default_factory=dict, description="Arguments of the environment."
    )
    goal: str = Field(
        "Solve the task.",
        min_length=1,
        max_length=4000,
        description="The goal, if no field of the observation (mission, goal, task, instruction) says it.",
    )
    action_names: tuple[str, ...] = Field(
        (), description="Names of the numbered actions, in order; []: the environment's."
    )
    form: str = Field(
        "write the action",
        min_length=1,
        max_length=500,
        description="Where actions are text: what a prompt shows for {actions}.",
    )
    max_turns: int = Field(
        50, ge=1, le=10_000, description="Turns after which an episode is lost; the game's own limit holds, too."
    )
    success_above: float = Field(
        0.0, ge=-1e9, le=1e9, description="A terminated episode with a larger total reward is won."
    )
    global_random: bool = Field(
        False,
        description="Set it if the environment draws from Python's or NumPy's global generator; one episode then "
        "steps at a time.",
    )

    @model_validator(mode="after")
    def _levels(self) -> GymnasiumConfig:
        if self.held_out_from is not None:
            raise ValueError("held_out_from has to be null: a Gymnasium environment does not say which level it drew")
        if len(set(self.action_names)) < len(self.action_names) or not all(map(str.strip, self.action_names)):
            raise ValueError("action_names have to differ, and none may be blank")
        return self

    @property
    def global_streams(self) -> bool:
        """As it is set."""
        return self.global_random

    def make(self) -> Wave:
        """A wave of episodes. Raises BadInput for an unknown id, and for spaces that are no text and no names."""
        games = _Games(self)
        return Wave(games.begin, max_turns=self.max_turns, global_streams=self.global_streams, free=games.close)


class _Games:
    """Instances of one id, one per slot."""

    def __init__(self, config: GymnasiumConfig) -> None:
        self._config = config
        self._gymnasium = package("gymnasium", extra="gymnasium")
        self._pool: list[_Screen] = []
        first = self._screen()
        self._pool.append(first)
        if not config.global_random:
            self._refuse_global_draws(first)

    def _refuse_global_draws(self, screen: _Screen) -> None:
        with GlobalStreams(0).installed():
            untouched = Untouched()
            _, info = screen.reset(0)
            space = screen.env.action_space
            space.seed(0)
            with contextlib.suppress(Exception):  # what it does not take it may refuse
                for step in range(_PROBES):
                    mask = info.get("action_mask") if screen.names else None
                    open_ = space.sample() if mask is None else space.sample(np.asarray(mask, np.int8))
                    *_, terminated, truncated, info = screen.env.step(open_)
                    if terminated or truncated:
                        _, info = screen.reset(step)
            drawn = not untouched
        if drawn:
            raise BadInput(
                f"{self._config.id!r} draws from Python's or NumPy's global random generator",
                expected="an environment that draws from its own np_random",
                where=f"{WHERE}.global_random",
                next_step="set global_random: true; its slots are then stepped one at a time",
            )

    def _screen(self) -> _Screen:
        config = self._config
        module, _, name = config.id.rpartition(":")
        if module:
            package(module, extra="gymnasium")
        known = self._gymnasium.registry
        next_step = "correct the id, or write module:id with the module that registers it"
        check_known(name, known, "Gymnasium id", field="id", next_step=next_step)
        try:
            env = self._gymnasium.make(name, **config.arguments)
            draws = env.render_mode is None and "ansi" in env.metadata.get("render_modes", ())
            if draws and not _texts(env.observation_space):
                env.close()
                env = self._gymnasium.make(name, render_mode="ansi", **config.arguments)
        except Exception as error:
            raise BadInput(
                f"{name!r} cannot be made: {type(error).__name__}: {error}",
                expected="an id that needs nothing further",
                where=f"{WHERE}.id",
                next_step="install what the message names, or correct `arguments`",
            ) from error
        return _Screen(env, config)

    def begin(self, slot: int, seed: int) -> _Play:
        """The episode of a seed, in the instance of its slot."""
        while len(self._pool) <= slot:
            # Its constructor may draw, too: never from the streams of the episode that happens to be its first.
            with GlobalStreams(0).installed():
                self._pool.append(self._screen())
        return _Play(self._pool[slot], seed_of(seed))

    def close(self) -> None:
        for screen in self._pool:
            screen.env.close()


def _texts(space: Any) -> list[str]:
    """Names of the text fields of an observation space; "" where it is text itself."""
    fields: Mapping[str, Any] = getattr(space, "spaces", None) or {"": space}
    return [name for name, field in fields.items() if _is_text(field)] if isinstance(fields, Mapping) else []


def _is_text(space: Any) -> bool:
    # Text, and spaces of others whose samples are strings (MiniGrid's missions).
    if type(space).__name__ == "Text":
        return True
    return not hasattr(space, "n") and isinstance(getattr(space, "shape", None), type(None)) and _samples_text(space)


def _samples_text(space: Any) -> bool:
    try:
        return isinstance(space.sample(), str)
    except Exception:
        return False


class _Screen:
    """One instance: how it is read and what its actions are called."""

    def __init__(self, env: Any, config: GymnasiumConfig) -> None:
        self.env, self.config = env, config
        self.texts = _texts(env.observation_space)
        self.drawn = not self.texts and env.render_mode == "ansi"
        if not self.texts and not self.drawn:
            raise BadInput(
                f"{config.id!r} shows no text: its observation space is {env.observation_space}",
                expected="a Text space, a Dict with a Text field, or the render mode ansi",
                where=f"{WHERE}.id",
                next_step="choose another id, or wrap it in an environment that shows text",
            )
        self.names = self._names()

    def _names(self) -> tuple[str, ...] | None:
        """Names of the numbered actions, in their order; None where actions are written."""
        space, config = self.env.action_space, self.config
        if type(space).__name__ == "Text":
            return None
        count = getattr(space, "n", None)
        if type(space).__name__ != "Discrete" or count is None:
            raise BadInput(
                f"{config.id!r} takes actions of {space}",
                expected="a Discrete or a Text action space",
                where=f"{WHERE}.id",
                next_step="choose another id, or wrap it in an environment that takes names or text",
            )
        first = int(getattr(space, "start", 0))
        names = config.action_names or _known_names(self.env.unwrapped, int(count))
        names = names or tuple(str(first + number) for number in range(int(count)))
        if len(names) != int(count):
            raise BadInput(
                f"action_names holds {len(names)} names",
                expected=f"{int(count)}, one for each action of {config.id!r}",
                where=f"{WHERE}.action_names",
                next_step="name each action, in the order of their numbers",
            )
        return names

    def reset(self, seed: int) -> tuple[Any, Mapping[str, Any]]:
        observation, info = self.env.reset(seed=seed)
        return observation, info

    def read(self, observation: Any) -> tuple[str | None, str]:
        """Goal, where it is among the fields, and what is seen."""
        if self.drawn:
            return None, _plain(str(self.env.render()))
        if self.texts == [""]:
            return None, str(observation)
        goal_field = next((name for name in _GOAL_FIELDS if name in self.texts), None)
        goal = None if goal_field is None else str(observation[goal_field])
        shown = [str(observation[name]) for name in self.texts if name != goal_field]
        numbers = self.env.observation_space.spaces.items()
        shown += [f"{name}: {observation[name]}" for name, space in numbers if type(space).__name__ == "Discrete"]
        return goal, "\n".join(shown)


def _known_names(env: Any, count: int) -> tuple[str, ...]:
    """What an environment calls its actions: `get_action_meanings()`, or an enumeration `actions`."""
    said = getattr(env, "get_action_meanings", None)
    names = [str(name) for name in said()] if callable(said) else []
    if not names:
        members = getattr(getattr(env, "actions", None), "__members__", {})
        names = [str(name) for name in members]
    return tuple(names) if len(names) == count == len(set(names)) else ()


def _plain(drawn: str) -> str:
    """A drawing without terminal colors; what was marked with a background is in brackets."""
    return _ESCAPE.sub("", _HIGHLIGHT.sub(r"[\1]", drawn)).strip("\n")


class _Play(Episode):
    """One episode."""

    def __init__(self, screen: _Screen, seed: int) -> None:
        self._screen = screen
        observation, info = screen.reset(seed)
        goal, self._shown = screen.read(observation)
        self.goal = goal if goal is not None else screen.config.goal
        self._total, self._allowed = 0.0, self._mask(info)

    def _mask(self, info: Mapping[str, Any]) -> tuple[str, ...]:
        """The names that are possible now: all, or those that the environment's `action_mask` leaves."""
        names, mask = self._screen.names, info.get("action_mask")
        if names is None or mask is None or not any(mask):
            return names or ()
        return tuple(name for name, open_ in zip(names, mask, strict=True) if open_)

    def observation(self) -> str:
        return self._shown

    def actions(self) -> Actions:
        return FreeText(self._screen.config.form) if self._screen.names is None else self._allowed

    def act(self, action: str) -> Outcome:
        screen = self._screen
        space = screen.env.action_space
        if screen.names is None:
            if not space.contains(action):
                return Outcome(legal=False, reward=self._total)
            taken: Any = action
        else:
            taken = int(getattr(space, "start", 0)) + screen.names.index(action)
        observation, reward, terminated, truncated, info = screen.env.step(taken)
        self._total += float(reward)
        _, self._shown = screen.read(observation)
        self._allowed = self._mask(info)
        success = bool(info.get("is_success", self._total > screen.config.success_above)) and bool(terminated)
        return Outcome(
            over=bool(terminated or truncated),
            success=success,
            reward=self._total,
            out_of_turns=bool(truncated and not terminated),
        )
