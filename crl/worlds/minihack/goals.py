"""What a MiniHack task asks for, in words.

A task is won on the stairs down, unless its class rewards something else (a message, a kill, something eaten): then the
goal says that, and names no stairs, which such a level may not have.
"""

from __future__ import annotations

import re

_STAIRS = "Reach the stairs down (>)."
_GOALS: tuple[tuple[str, str], ...] = (
    ("KeyRoom", "Pick up the key (`pick up` where it is), `apply` it next to the closed door, then reach the stairs "
                "down (>)."),
    ("River", "Push boulders (`), by walking into them, into the river until you can cross it, then reach the stairs "
              "down (>)."),
    ("CorridorBattle", "Survive the monsters and reach the stairs down (>)."),
    ("ExploreMaze", "Eat the apples on the way and reach the stairs down (>)."),
    ("Memento", "The message at the start tells which way is right: free the grid bug and kill it, never step "
                "on the squeaky board."),
    ("Boxoban", "Push every boulder (`) onto a fountain ({)."),
    (r"Sokoban\d[ab]", "Fill every pit (^) by pushing a boulder (`) into it, then reach the stairs down (>)."),
    ("Eat", "Eat the apple."),
    ("Pray", "Pray on the altar."),
    ("Sink", "Quaff from the sink."),
    ("Wield", "Wield the dagger."),
    ("Wear", "Wear the robe."),
    ("PutOn", "Put on the amulet."),
    ("Zap", "Zap the wand."),
    ("Read", "Read the scroll."),
    ("ClosedDoor", "Open the door and reach the stairs down (>)."),
    ("LockedDoor", "Kick the locked door open and reach the stairs down (>)."),
    ("WoD-Easy", "Kill the minotaur with the wand of death."),
    ("WoD", "Kill the minotaur with the wand of death and reach the stairs down (>)."),
    ("Levitate", "Float in the air: pick up what lies in the room, and wear, put on or quaff it."),
    ("Freeze-Lava", "Freeze a way across and reach the stairs down (>)."),
    ("Freeze", "Let a bolt of cold bounce off a wall: pick up the wand and `zap` it, or the horn and `apply` it."),
    ("LavaCross", "Get over the lava unharmed and reach the stairs down (>)."),
)  # fmt: skip
_SYMBOLS = " On the map @ is you, . is floor, < is the stairs up, where you began, blank is unknown."


def goal_of(task_id: str) -> str:
    """What a task asks for, in words; constant for an id, so that all rows of a wave share it."""
    rest = task_id.removeprefix("MiniHack-")
    for pattern, text in _GOALS:
        if re.match(pattern + r"(-|$)", rest):
            return text + _SYMBOLS
    return _STAIRS + _SYMBOLS
