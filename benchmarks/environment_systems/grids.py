"""FrozenLake beside Gymnasium's, Sokoban, and the laboratory's realms and shrines, which nobody else has.

Gymnasium's FrozenLake is asked for what a language model needs: a solvable map of its own for each seed, and the map as
text after every step.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from benchmarks.environment_systems.base import Case, Played, Separate
from crl.envs.frozenlake import FrozenLakeConfig
from crl.envs.realms import RealmsConfig
from crl.envs.shrines import ShrinesConfig
from crl.envs.sokoban import SokobanConfig

KINDS = frozenset({"frozenlake", "sokoban", "realms", "shrines"})


class _Lakes:
    """A Gymnasium FrozenLake whose map is another one in every game: the package makes an instance per map."""

    render_mode = "ansi"

    def __init__(self, size: int, probability: float) -> None:
        self._size, self._probability, self._env = size, probability, None
        self.action_space: Any = None

    def start(self, seed: int) -> None:
        from gymnasium import make
        from gymnasium.envs.toy_text.frozen_lake import generate_random_map

        self.close()
        drawn = generate_random_map(size=self._size, p=self._probability, seed=seed)
        self._env: Any = make("FrozenLake-v1", desc=drawn, is_slippery=False, render_mode="ansi")
        self.action_space = self._env.action_space
        self._env.reset(seed=seed)
        self._env.render()

    def step(self, action: int) -> Any:
        return self._env.step(action)

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


def _lake(name: str, config: FrozenLakeConfig) -> Case:
    size, probability = config.size_max, config.frozen_probability
    if importlib.util.find_spec("gymnasium") is None:
        return Case(name, lambda: Played(config), other_name="gymnasium is not installed", slots=32)
    return Case(
        name,
        lambda: Played(config),
        lambda: Separate(lambda seed: _Lakes(size, probability), lambda lake, seed: lake.start(seed)),
        "gymnasium FrozenLake-v1",
        slots=32,
    )


def cases() -> list[Case]:
    """FrozenLake of two sizes, Sokoban plain and masked, realms, shrines."""
    none = "–"
    dead = "– (gym-sokoban needs gym)"
    masked = SokobanConfig(masked=True, boxes=1, size_min=6, size_max=8, max_turns=8)
    return [
        _lake("FrozenLake 4×4", FrozenLakeConfig()),
        _lake("FrozenLake 8×8", FrozenLakeConfig(size_min=8, size_max=8, max_turns=100)),
        Case("Sokoban 6×6, two boxes", lambda: Played(SokobanConfig()), other_name=dead, slots=32),
        Case("Sokoban masked, one box", lambda: Played(masked), other_name=dead, slots=32),
        Case("realms", lambda: Played(RealmsConfig()), other_name=none, slots=32),
        Case("shrines", lambda: Played(ShrinesConfig()), other_name=none, slots=32),
    ]
