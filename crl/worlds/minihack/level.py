"""What a NetHack level looks like without fog: its layout, from a second game of the same seed.

Under fog the first screen does not say which level it is. A second instance of the task, on which nothing is played,
is given the level file with the flag `premapped`: the game then draws the same random numbers, so it is the same level
with the same start, and shows all of it. The command `#terrain` leaves out monsters, objects and traps.

The content of a level is its layout: walls, doors, water, stairs and where the agent begins, relative to each other.
That is what a player knows by heart. Monsters, objects and traps are no part of it: two levels that differ in them
alone count as one, so that no layout is on both sides of what is held out.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

_FLAGS = re.compile(r"(?m)^FLAGS:[ \t]*")
_HEADER = re.compile(r"(?m)^(MAZE|LEVEL):.*$")
_TERRAIN = "#terrain\ra\r"
"""Command, choice of `known map without monsters, objects, and traps`, and the answer to what it says first."""
_BLANK, _FLOOR = ord(" "), ord(".")


@dataclass(frozen=True, slots=True)
class NethackLevel:
    """The layout that a seed of NetHack's generators draws."""

    seed: int
    content: str
    """Its rows of symbols, `@` where the agent begins; unknown rock is blank."""
    moves: int | None
    """Moves of a king from the start to the nearest stairs down: a lower bound, exact in an open room. None: no
    stairs."""


class Surveyor:
    """Draws levels on an instance of its own, which is made when the first one is asked for."""

    def __init__(self, build: Callable[[Callable[[type], type]], Any], seed: Callable[[Any, int], None]) -> None:
        """`build` makes an instance of the task's class as a function has changed it, `seed` starts a game of one."""
        self._build, self._seed = build, seed
        self._env: Any = None

    def draws(self, seed: int) -> Iterator[NethackLevel]:
        """The levels of a seed: its own one first, then those of seeds derived from it."""
        for attempt in count():
            derived = np.random.SeedSequence([seed, attempt]).generate_state(1)
            yield self.level(seed if attempt == 0 else int(derived[0]))

    def level(self, seed: int) -> NethackLevel:
        """The level of one seed of NetHack's generators."""
        if self._env is None:
            self._env = self._build(premapped)
        env = self._env
        self._seed(env, seed)
        screen = dict(zip(env._observation_keys, env.last_observation, strict=True))
        column, row = (int(value) for value in screen["blstats"][:2])
        mapped_RC = screen["chars"].copy()
        for key in _TERRAIN:
            env.nethack.step(ord(key))
        terrain_RC = screen["chars"].copy()
        # What only a trap or a boulder out of sight showed of its cell is left out with it.
        terrain_RC[(terrain_RC == _BLANK) & (mapped_RC != _BLANK)] = _FLOOR
        stairs = [max(abs(r - row), abs(c - column)) for r, c in np.argwhere(terrain_RC == ord(">")).tolist()]
        terrain_RC[row, column] = ord("@")
        rows, columns = np.nonzero(terrain_RC != _BLANK)
        shown = terrain_RC[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        content = "\n".join(bytes(line).decode("latin-1").rstrip() for line in shown)
        return NethackLevel(seed, content, min(stairs, default=None))

    def close(self) -> None:
        """End the instance."""
        if self._env is not None:
            self._env.close()
        self._env = None


def premapped(task: type) -> type:
    """A MiniHack task whose level files all say that the level is known from the start."""
    levels = Path(importlib.import_module("minihack.base").PATH_DAT_DIR)

    class Premapped(task):  # type: ignore[misc]
        def _patch_nhdat(self, des_file: str) -> None:
            if des_file.endswith(".des"):
                path = Path(des_file)
                des_file = (path if path.exists() else levels / path).read_text()
            if _FLAGS.search(des_file):
                if "premapped" not in des_file:
                    des_file = _FLAGS.sub("FLAGS:premapped,", des_file, count=1)
            else:
                des_file = _HEADER.sub(r"\g<0>\nFLAGS:premapped", des_file, count=1)
            super()._patch_nhdat(des_file)

    return Premapped
