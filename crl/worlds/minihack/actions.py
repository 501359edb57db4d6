"""Names of NetHack actions, and the answers to the questions the game asks.

NLE steps an index into the tuple of actions that a task registers; each action is a key code. An agent uses full words
(`northeast`, `pick up`). While the game asks a question (`What do you want to eat? [ab or ?*]`) the legal actions are
its answers, as far as the task registers their keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MOVES: Mapping[str, tuple[int, int]] = {
    "north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0),
    "northeast": (1, -1), "southeast": (1, 1), "southwest": (-1, 1), "northwest": (-1, -1),
}  # fmt: skip
"""The eight compass moves with their offset (east, south) in cells."""

_COMPASS = {
    "N": "north", "E": "east", "S": "south", "W": "west",
    "NE": "northeast", "SE": "southeast", "SW": "southwest", "NW": "northwest",
}  # fmt: skip
_WORDS = {
    "PICKUP": "pick up", "PUTON": "put on", "TAKEOFF": "take off", "TAKEOFFALL": "take off all",
    "TWOWEAPON": "two weapons", "MOVEFAR": "move far", "RUSH2": "rush far", "DROPTYPE": "drop many",
    "ESC": "cancel", "DOWN": "down", "UP": "up", "WAIT": "wait", "MORE": "continue",
}  # fmt: skip
_NO_MOVE = frozenset({
    "EXTCMD", "EXTLIST", "ADJUST", "ANNOTATE", "ATTRIBUTES", "AUTOPICKUP", "CALL", "CONDUCT", "ENHANCE", "GLANCE",
    "HISTORY", "INVENTORY", "INVENTTYPE", "KNOWN", "KNOWNCLASS", "LOOK", "MONSTER", "MORE", "OPTIONS", "OVERVIEW",
    "QUIT", "REDRAW", "SAVE", "SEEALL", "SEEAMULET", "SEEARMOR", "SEEGOLD", "SEERINGS", "SEESPELLS", "SEETOOLS",
    "SEETRAP", "SEEWEAPON", "SHELL", "TRAVEL", "VERSION", "VERSIONSHORT", "WHATDOES", "WHATIS", "ESC",
    "MOVE", "MOVEFAR", "RUSH", "RUSH2", "FIGHT",
})  # fmt: skip
"""Keys that only show a screen, change a setting, end the game or begin a two-key move: they are not offered as actions
(some still serve as answers to a question)."""

USES_ITEMS = frozenset({"EAT", "ZAP", "WEAR", "PUTON", "QUAFF", "READ", "WIELD", "THROW"})
"""Commands that ask for an item of the inventory: with one of them the whole inventory is shown."""

_CHOICES = re.compile(r"\[([^\]]*)\]")
_ESCAPE = 27


def action_names(registered: Sequence[Any]) -> dict[str, int]:
    """Name of each playable action of a task with its index in NLE's action tuple, in the task's order."""
    named: dict[str, int] = {}
    for index, action in enumerate(registered):
        group = type(action).__name__
        if group == "CompassDirection":
            name = _COMPASS[action.name]
        elif group == "CompassDirectionLonger":
            name = "far " + _COMPASS[action.name]
        elif group == "TextCharacters" or action.name in _NO_MOVE:
            continue
        else:
            name = _WORDS.get(action.name, action.name.lower())
        named.setdefault(name, index)
    return named


def _letters(choices: str) -> list[str]:
    """Item letters of a choice list as NetHack prints it: `- a-cf or ?*` gives a, b, c, f."""
    compact = choices.split(" or ")[0].replace(" ", "")
    letters: list[str] = []
    position = 0
    while position < len(compact):
        first = compact[position]
        if compact[position + 1 : position + 2] == "-" and position + 2 < len(compact) and first.isalpha():
            letters.extend(chr(code) for code in range(ord(first), ord(compact[position + 2]) + 1))
            position += 3
            continue
        if first.isalpha():
            letters.append(first)
        position += 1
    return letters


def answers(message: str, registered: Sequence[Any]) -> dict[str, int]:
    """Answers to the question in a message, by name, with their index in NLE's action tuple; empty if it has none.

    Directions are the compass names, yes-no questions `yes` and `no`, items `item a`; `cancel` where Escape is
    registered.
    """
    by_code: dict[int, int] = {}
    for index, action in enumerate(registered):
        by_code.setdefault(int(action), index)
    found: dict[str, int] = {}
    if "direction" in message:
        found = {name: index for name, index in action_names(registered).items() if name in MOVES}
    elif brackets := _CHOICES.findall(message):
        choices = brackets[-1]
        if choices in ("yn", "ynq", "ynaq", "ynNaq", "y n"):
            words = {"yes": "y", "no": "n"}
        else:
            words = {f"item {letter}": letter for letter in _letters(choices)}
        found = {name: by_code[ord(letter)] for name, letter in words.items() if ord(letter) in by_code}
    if _ESCAPE in by_code:
        found["cancel"] = by_code[_ESCAPE]
    return found
