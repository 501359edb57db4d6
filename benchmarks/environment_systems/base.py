"""What is played and how: a case is one environment, here and perhaps in the package that people have for it.

A player plays a wave of episodes at random. Its choices cost the same on both sides, so they are part of what is timed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from crl.config import EnvironmentConfig


class Player(Protocol):
    """A wave of episodes that is played at random."""

    def reset(self, seeds: Sequence[int]) -> None:
        """Start one episode per seed."""

    def step(self) -> int:
        """One random action in every episode that is not over; how many that were."""

    def close(self) -> None:
        """Free what is held."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    ours: Callable[[], Player]
    other: Callable[[], Player] | None = None
    """The package that it is held against; None: there is none, or it is not installed."""
    other_name: str = "–"
    """The package, and what is asked of it; where `other` is None, why there is nothing to compare with."""
    slots: int = 8
    """Episodes in a wave while it is timed."""


class Played:
    """A player of one of this project's environments. Where actions have no names its oracle says what to write."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._environment = config.make()
        self._live: dict[int, Any] = {}
        self._random = random.Random(0)

    def reset(self, seeds: Sequence[int]) -> None:
        """Start one episode per seed; the random actions begin anew."""
        self._random.seed(0)
        self._live = {slot: start.actions for slot, start in enumerate(self._environment.reset_many(seeds))}

    def step(self) -> int:
        """One action in every episode that is not over."""
        chosen = {
            slot: actions[self._random.randrange(len(actions))]
            if isinstance(actions, tuple)
            else self._environment.oracle(slot)
            for slot, actions in self._live.items()
        }
        for slot, step in self._environment.step_many(chosen).items():
            if step.done:
                del self._live[slot]
            else:
                self._live[slot] = step.actions
        return len(chosen)

    def close(self) -> None:
        """End the environment."""
        self._environment.close()


class Separate:
    """A player of a Gymnasium environment: one instance per episode, stepped one after another."""

    def __init__(self, make: Callable[[int], Any], start: Callable[[Any, int], None]) -> None:
        """`make` builds the instance of a seed, `start` begins its game; it is kept for the next game of the slot where
        `start` can begin another level on it."""
        self._make, self._start = make, start
        self._pool: list[Any] = []
        self._live: list[int] = []
        self._random = random.Random(0)

    def reset(self, seeds: Sequence[int]) -> None:
        """Start one episode per seed; the random actions begin anew."""
        self._random.seed(0)
        for slot, seed in enumerate(seeds):
            if slot == len(self._pool):
                self._pool.append(self._make(seed))
            self._start(self._pool[slot], seed)
        self._live = list(range(len(seeds)))

    def step(self) -> int:
        """One random action in every episode that is not over."""
        stepped, live = self._live, []
        for slot in stepped:
            env = self._pool[slot]
            _, _, terminated, truncated, _ = env.step(self._random.randrange(env.action_space.n))
            if env.render_mode == "ansi":
                env.render()
            if not (terminated or truncated):
                live.append(slot)
        self._live = live
        return len(stepped)

    def close(self) -> None:
        """End every instance."""
        for env in self._pool:
            env.close()
        self._pool = []
