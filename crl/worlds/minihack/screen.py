"""A NetHack screen as plain data and as text: what of it an agent is shown.

The text holds the whole visible or remembered map without its empty margins, one line about what is on it, hit points
when they are not full, the message line and, where it matters, the inventory. The line about the map gives hints (where
the stairs and other things are from the agent) or, as in the paper, a legend of its symbols. Every token costs time on
each turn, so nothing else is shown. Playing is in `environment`.

NLE plays a game that is won, lost or over to its very end within one step: it confirms what the game still says, quits,
and leaves empty buffers. :class:`LastScreen` watches the keys that it presses, so that the last map and all messages of
the last action are kept. Some tasks press further keys themselves until something has happened (a key room walks into
its door until that is open), which it may never do: then the action is given up.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

LEGEND = "Legend: "
"""What the line begins with that explains the symbols."""
MOST_NAMED = 6
"""Things named at most in the line about what is in sight, nearest first."""

_BLANK = ord(" ")
_UNNAMED = frozenset({
    "floor of a room", "dark part of a room", "stone", "solid stone", "wall", "corridor", "lit corridor", "doorway",
    "no door", "broken door", "staircase up",
})  # fmt: skip
"""Descriptions that are no hint: plain ground, and the stairs up that mark where the agent began."""
_SHORTER = {
    "floor of a room": "floor", "dark part of a room": "floor", "no door": "doorway", "lit corridor": "corridor",
    "staircase up": "stairs up, where you began", "staircase down": "stairs down",
}  # fmt: skip
_CONFIRM = ord(" ")
"""The key that goes on after a message with `--More--`."""
_MOST_KEYS = 1000
"""Keys of one action; what a task does in one takes some dozens."""


@dataclass(frozen=True, slots=True)
class Thing:
    """Something worth naming on the map. `east` and `south` are offsets from the agent in cells."""

    symbol: str
    words: str
    east: int
    south: int

    @property
    def distance(self) -> int:
        """Moves of a king to it."""
        return max(abs(self.east), abs(self.south))


@dataclass(frozen=True, slots=True)
class Screen:
    """One NetHack observation, copied out of the arrays that the game overwrites.

    `chars_RC` and `glyphs_RC` are [21 rows, 79 columns]; `row` and `column` are the agent's position.
    """

    chars_RC: Any
    glyphs_RC: Any
    things: tuple[Thing, ...]
    legend: tuple[tuple[str, str], ...]
    """Symbol and words of everything on the map, each pair once, in reading order."""
    row: int
    column: int
    hit_points: int
    most_hit_points: int
    message: str
    inventory: Mapping[str, str]
    """Item by its letter."""
    asks: bool
    """Whether the game waits for the answer to a question in the message line."""


def _text(codes: Any) -> str:
    return bytes(codes).split(b"\0", 1)[0].decode("latin-1").strip()


def _named(
    chars: Any, descriptions: Any, row: int, column: int
) -> tuple[tuple[Thing, ...], tuple[tuple[str, str], ...]]:
    """(things worth a hint, nearest first; legend)."""
    found: list[Thing] = []
    legend: dict[tuple[str, str], None] = {}
    for r, c in np.argwhere(chars != _BLANK).tolist():
        if (r, c) == (row, column):
            continue
        symbol, words = chr(int(chars[r, c])), _text(descriptions[r, c])
        if not words:
            continue
        plain = words
        for article in ("a ", "an ", "the ", "some "):
            plain = plain.removeprefix(article)
        if words not in _UNNAMED:
            found.append(Thing(symbol, plain, c - column, r - row))
        legend[symbol, _SHORTER.get(words, plain)] = None
    return tuple(sorted(found, key=lambda thing: (thing.distance, thing.south, thing.east))), tuple(legend)


def read_screen(observation: Mapping[str, Any]) -> Screen:
    """Copy a NetHack observation (arrays by NLE's names; `internal` among them) into plain data."""
    chars = observation["chars"].copy()
    column, row = (int(value) for value in observation["blstats"][:2])
    letters = bytes(observation["inv_letters"])
    lines = [_text(line) for line in observation["inv_strs"]]
    things, legend = _named(chars, observation["screen_descriptions"], row, column)
    return Screen(
        chars_RC=chars,
        glyphs_RC=observation["glyphs"].copy(),
        things=things,
        legend=legend,
        row=row,
        column=column,
        hit_points=int(observation["blstats"][10]),
        most_hit_points=int(observation["blstats"][11]),
        message=_text(observation["message"]),
        inventory={chr(letter): line for letter, line in zip(letters, lines, strict=True) if line},
        asks=bool(observation["internal"][1]),
    )


def bearing(east: int, south: int) -> str:
    """Where something is, in words: `2 east`, `1 northeast`, `2 east 1 north`."""
    vertical, horizontal = "south" if south > 0 else "north", "east" if east > 0 else "west"
    if east == 0:
        return f"{abs(south)} {vertical}"
    if south == 0:
        return f"{abs(east)} {horizontal}"
    if abs(east) == abs(south):
        return f"{abs(east)} {vertical}{horizontal}"
    return f"{abs(east)} {horizontal} {abs(south)} {vertical}"


def map_rows(screen: Screen) -> list[str]:
    """The known map as rows of symbols, without its empty margins."""
    rows, columns = np.nonzero(screen.chars_RC != _BLANK)
    if not len(rows):
        return []
    known = screen.chars_RC[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    return [bytes(line).decode("latin-1").rstrip() for line in known]


def sight(screen: Screen, seeks_stairs: bool) -> str:
    """One line that names what is in sight, nearest first; of each kind the nearest, the stairs before all else."""
    named: list[str] = []
    stairs = [thing for thing in screen.things if thing.symbol == ">"]
    if seeks_stairs:
        named.append(f"> is {bearing(stairs[0].east, stairs[0].south)}." if stairs else "No > in sight.")
    kinds: dict[str, Thing] = {}
    for thing in screen.things:
        if not (seeks_stairs and thing.symbol == ">"):
            kinds.setdefault(thing.words, thing)
    for thing in list(kinds.values())[:MOST_NAMED]:
        named.append(f"{thing.words} {thing.symbol} {bearing(thing.east, thing.south)}.")
    return " ".join(named)


def legend(screen: Screen) -> str:
    """One line that explains every symbol on the map."""
    return LEGEND + ", ".join(["@ you", *(f"{symbol} {words}" for symbol, words in screen.legend)]) + "."


def describe(screen: Screen, *, seeks_stairs: bool, hints: bool, items: Sequence[str], greeting: str) -> str:
    """The text observation, with hints or with a legend. `items` are inventory lines to show; a message equal to
    `greeting` is left out."""
    lines = [*map_rows(screen), sight(screen, seeks_stairs) if hints else legend(screen)]
    if screen.hit_points < screen.most_hit_points:
        lines.append(f"Health {max(0, screen.hit_points)}/{screen.most_hit_points}.")
    if items:
        lines.append("You carry: " + "; ".join(items) + ".")
    if screen.message and screen.message != greeting:
        lines.append(" ".join(screen.message.split()))
    return "\n".join(line for line in lines if line)


class KeysWithoutEnd(RuntimeError):
    """A task presses key after key within one action and does not come to an end."""


class LastScreen:
    """Keeps the last screen of an instance's turn; `read` copies the one that its buffers hold."""

    def __init__(self, env: Any, read: Callable[[Any], Screen]) -> None:
        # NLE frees an instance once nothing but its finalizer, which holds `env.nethack`, knows of it.
        self._env, self._read, self._press = weakref.ref(env), read, env.nethack.step
        self._screen: Screen | None = None
        self._messages: list[str] = []
        self._acted, self._watching = False, False
        self._keys_left: int | None = None
        env.nethack.step = self._watched

    def begin(self) -> None:
        """Forget the turn before; called ahead of every action."""
        self._screen, self._messages, self._acted, self._watching = None, [], False, True
        self._keys_left = _MOST_KEYS

    def rest(self) -> None:
        """Watch and count nothing until the next action; called ahead of a new game."""
        self._watching, self._keys_left = False, None

    def screen(self) -> Screen | None:
        """The map as the last message of the turn found it, with all messages of the turn; None if the game ended
        without a further key, so that nothing is left."""
        return None if self._screen is None else replace(self._screen, message=" ".join(self._messages))

    def _watched(self, key: int) -> Any:
        if self._keys_left is not None:
            self._keys_left -= 1
            if self._keys_left < 0:
                raise KeysWithoutEnd(f"the task pressed more than {_MOST_KEYS} keys in one action")
        if self._watching and self._acted:
            self._keep(goes_on=key == _CONFIRM)
        self._acted = True
        return self._press(key)

    def _keep(self, *, goes_on: bool) -> None:
        """Look at the screen that a further key is about to replace; after the messages of the action come menus."""
        screen = self._read(self._env())
        if screen.message or not goes_on:
            self._screen = screen
        if screen.message:
            self._messages.append(screen.message)
        self._watching = goes_on and bool(screen.message)
