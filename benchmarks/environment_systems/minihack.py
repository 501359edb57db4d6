"""The paper's MiniHack tasks beside MiniHack itself, which gives arrays and no text, and no level per seed.

MiniHack's own instances are seeded as ours are (`env.reset(seed=…)` is not deterministic), one per episode, each kept
for the next game.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

from benchmarks.environment_systems.base import Case, Played, Separate
from crl.worlds.minihack.environment import MiniHackConfig

KINDS = frozenset({"minihack"})
TASKS = {
    "MiniHack Room-Ultimate-5x5": "MiniHack-Room-Ultimate-5x5-v0",
    "MiniHack MazeWalk-9x9": "MiniHack-MazeWalk-9x9-v0",
    "MiniHack KeyRoom-Dark-S5": "MiniHack-KeyRoom-Dark-S5-v0",
    "MiniHack River-Narrow": "MiniHack-River-Narrow-v0",
}
TURNS = 30


def _make(task_id: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # minihack imports pkg_resources, which warns
        import gymnasium
        import minihack  # noqa: F401

        return gymnasium.make(task_id, max_episode_steps=TURNS)


def _start(env: Any, seed: int) -> None:
    env.unwrapped.seed(core=seed, disp=seed, reseed=False)
    env.reset()


def _case(name: str, task_id: str) -> Case:
    return Case(
        name,
        lambda: Played(MiniHackConfig(id=task_id, max_turns=TURNS)),
        lambda: Separate(lambda seed: _make(task_id), _start),
        "minihack, arrays without text",
    )


def cases() -> list[Case]:
    """The four tasks; none where MiniHack is not installed."""
    if importlib.util.find_spec("minihack") is None:
        return []
    return [_case(name, task_id) for name, task_id in TASKS.items()]
