"""A good next move toward the stairs, for warm-start demonstrations.

The oracle walks: breadth-first search over the cells known so far to the stairs down, or to the cell from which most of
the unknown is seen next. It uses what an agent can know (the map and where it has stood), so that a demonstration
never shows a move that nothing on the screen explains. It avoids known traps and monsters, then
gives way; where a key opens the door, it fetches and applies it. Levels that need other tools (boulders into water,
wands) are outside what it knows: there it answers None.
"""

from __future__ import annotations

import importlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from crl.worlds.minihack.actions import MOVES
from crl.worlds.minihack.screen import Screen

Cell = tuple[int, int]
"""(row, column)."""

_ORTHOGONAL = {(0, -1), (1, 0), (0, 1), (-1, 0)}
# Indices of NetHack 3.6's `defsyms` (rm.h), the table that NLE's cmap glyphs number.
_CMAP_FLOOR = frozenset({12, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 33, 35, 36})
_CMAP_OPEN_DOORS = frozenset({13, 14})
_CMAP_CLOSED_DOORS = frozenset({15, 16})
_CMAP_TRAPS = range(42, 65)
_PATIENCE = 4
"""Times an action is proposed at one place: a stubborn door or a hidden wall must not hold the oracle for ever."""
_CURIOSITY = 0.6
"""Moves that one unknown neighbor of a cell is worth when choosing where to explore."""


class Walker:
    """The oracle's memory of one episode: where the agent has stood and what it has tried."""

    def __init__(self) -> None:
        self._nethack: Any = importlib.import_module("nle.nethack")
        self._visited: set[Cell] = set()
        self._tried: Counter[tuple[Cell, str]] = Counter()
        self._known: dict[Cell, str] = {}

    def see(self, screen: Screen) -> None:
        """Remember where the agent stands; called at reset and after every step."""
        self._visited.add((screen.row, screen.column))

    def move(self, screen: Screen, actions: Collection[str]) -> str | None:
        """Name of a good action among the legal ones, or None where no way is known."""
        start = (screen.row, screen.column)
        kinds = self._kinds(screen)
        for wary in (True, False):
            action = self._choose(screen, kinds, start, wary, actions)
            if action is not None and action in actions and self._tried[(start, action)] < _PATIENCE:
                self._tried[(start, action)] += 1
                return action
        return None

    def _kinds(self, screen: Screen) -> dict[Cell, str]:
        """Known cells one can stand on: `free`, `door` (open), `closed` (door), or `bad` (trap or monster)."""
        kinds: dict[Cell, str] = {}
        for row, column in np.argwhere(screen.chars_RC != ord(" ")).tolist():
            glyph = int(screen.glyphs_RC[row, column])
            if self._nethack.glyph_is_cmap(glyph):
                number = int(self._nethack.glyph_to_cmap(glyph))
                if number in _CMAP_FLOOR:
                    kinds[(row, column)] = "free"
                elif number in _CMAP_OPEN_DOORS:
                    kinds[(row, column)] = "door"
                elif number in _CMAP_CLOSED_DOORS:
                    kinds[(row, column)] = "closed"
                elif number in _CMAP_TRAPS:
                    kinds[(row, column)] = "bad"
            elif self._nethack.glyph_is_monster(glyph):
                kinds[(row, column)] = "bad"
            elif screen.chars_RC[row, column] != ord("`"):
                kinds[(row, column)] = "free"
        # The agent hides what it stands on: a doorway that was seen before is still one.
        here = (screen.row, screen.column)
        kinds[here] = "door" if self._known.get(here) in ("door", "closed") else "free"
        self._known.update(kinds)
        return kinds

    def _choose(
        self, screen: Screen, kinds: dict[Cell, str], start: Cell, wary: bool, actions: Collection[str]
    ) -> str | None:
        # Doors open when walked into, except where a key has to be applied: there only an open one is a way.
        locked = {"pick up", "apply"} <= set(actions) and "open" not in actions
        ways = {cell: kind for cell, kind in kinds.items() if not (locked and kind == "closed")}
        first, distance = _reach(ways, start, wary)

        def nearest(cells: Iterable[Cell]) -> str | None:
            reached = [cell for cell in cells if cell in first]
            return first[min(reached, key=lambda cell: (distance[cell], cell))] if reached else None

        toward = nearest(cell for cell in ways if screen.chars_RC[cell] == ord(">"))
        if toward is None and locked:
            toward = self._use_key(screen, kinds, start, nearest)
        if toward is not None:
            return toward
        best: tuple[float, Cell] | None = None
        for cell in first:
            gain = self._unknown_around(screen, cell)
            if gain and cell not in self._visited:
                candidate = (distance[cell] - _CURIOSITY * gain, cell)
                best = candidate if best is None else min(best, candidate)
        return None if best is None else first[best[1]]

    def _use_key(
        self, screen: Screen, kinds: dict[Cell, str], start: Cell, nearest: Callable[[Iterable[Cell]], str | None]
    ) -> str | None:
        """Fetch the key, carry it beside the closed door, apply it; None while key or door are unknown."""
        if not any("key" in item for item in screen.inventory.values()):
            if "You see here" in screen.message and "key" in screen.message:
                return "pick up"
            keys = (thing for thing in screen.things if "key" in thing.words)
            return nearest((screen.row + thing.south, screen.column + thing.east) for thing in keys)
        beside = [
            (cell[0] + south, cell[1] + east)
            for cell, kind in kinds.items()
            if kind == "closed"
            for east, south in _ORTHOGONAL
        ]
        return "apply" if start in beside else nearest(beside)

    def _unknown_around(self, screen: Screen, cell: Cell) -> int:
        """Blank cells next to a cell that no visited cell touches: standing beside rock shows that it is rock."""
        count = 0
        for east, south in MOVES.values():
            row, column = cell[0] + south, cell[1] + east
            if not (0 <= row < screen.chars_RC.shape[0] and 0 <= column < screen.chars_RC.shape[1]):
                continue
            if screen.chars_RC[row, column] != ord(" "):
                continue
            touched = any((row + s, column + e) in self._visited for e, s in MOVES.values())
            count += not touched
        return count


def _reach(kinds: dict[Cell, str], start: Cell, wary: bool) -> tuple[dict[Cell, str], dict[Cell, int]]:
    """First move and distance to every cell that can be reached; doors let nobody through diagonally."""
    first: dict[Cell, str] = {}
    distance = {start: 0}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        for name, (east, south) in MOVES.items():
            target = (cell[0] + south, cell[1] + east)
            kind = kinds.get(target)
            if kind is None or target in distance or (wary and kind == "bad"):
                continue
            if (east, south) not in _ORTHOGONAL and {kind, kinds.get(cell)} & {"door", "closed"}:
                continue
            distance[target] = distance[cell] + 1
            first[target] = first.get(cell, name)
            queue.append(target)
    return first, distance
