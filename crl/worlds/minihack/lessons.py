"""What a game in a NetHack room teaches, in sentences that are true of it: for demonstrations to an extractor.

They say where the stairs were seen and what led there, which moves led nowhere, and what was not tried. They are read
off the observations (`screen.py`): where the stairs are off the hint or, without hints, off the map.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from crl.protocols import Lesson
from crl.records import Episode, Turn
from crl.worlds.minihack.actions import MOVES
from crl.worlds.minihack.screen import LEGEND, bearing

_STAIRS = re.compile(r"(?:^|\s)> is ([^.]+)\.")
_MOST_MOVES = 6


def lesson_of(episode: Episode, turns: Sequence[Turn]) -> Lesson:
    """A new experience of a game, a better one than guided it, or nothing where that one was enough."""
    moves = [turn.action for turn in turns if turn.valid and turn.action is not None]
    if episode.success and episode.guided:
        return Lesson("return")
    sightings = [(index, where) for index, turn in enumerate(turns) if (where := _stairs(turn.observation))]
    if not moves:
        text = "An answer must be the name of one move, and nothing else."
    elif episode.success:
        text = _won(moves, sightings, turns)
    else:
        text = _lost(moves, sightings, turns, _stairs(episode.last_observation or ""))
    return Lesson("update" if episode.guided else "add", text)


def _stairs(observation: str) -> str | None:
    """Where the stairs are from the agent, in words; None where they are not in sight."""
    hint = _STAIRS.search(observation)
    if hint:
        return hint.group(1)
    rows = observation.split(f"\n{LEGEND}")[0].split("\n") if f"\n{LEGEND}" in observation else []
    cells = {symbol: (r, row.index(symbol)) for symbol in "@>" for r, row in enumerate(rows) if symbol in row}
    if len(cells) < 2:
        return None
    return bearing(cells[">"][1] - cells["@"][1], cells[">"][0] - cells["@"][0])


def _won(moves: list[str], sightings: list[tuple[int, str]], turns: Sequence[Turn]) -> str:
    if not sightings:
        return f"With no > in sight, {_listed(moves)} led onto it."
    first, where = sightings[0]
    after = [turn.action for turn in turns[first:] if turn.valid and turn.action is not None]
    return f"With > {where}, {_listed(after)} reached it."


def _lost(moves: list[str], sightings: list[tuple[int, str]], turns: Sequence[Turn], last: str | None) -> str:
    """`last`: where the stairs were seen after the last action."""
    if sightings:
        first, where = sightings[0]
        after = [turn.action for turn in turns[first:] if turn.valid and turn.action is not None]
        if after:
            return f"With > {where}, {_listed(after)} did not reach it: go {toward(where)}."
    elif last:
        return f"After {_listed(moves)} > was in sight, {last}: then go {toward(last)}."
    walls = dict.fromkeys(
        turn.action
        for turn, following in pairwise(turns)
        if turn.valid and turn.action in MOVES and turn.observation == following.observation
    )
    if walls:
        return f"Going {_listed([str(move) for move in walls])} changed nothing: turn to another side."
    untried = [move for move in MOVES if move not in moves]
    told = f"No > came in sight by {_listed(moves)}"
    return f"{told}: try {untried[0]}." if untried else f"{told}."


def toward(bearing: str) -> str:
    """The move that a bearing asks for first: `2 east 1 north` asks for northeast."""
    words = re.findall(r"[a-z]+", bearing)
    north_south = next((word for word in words if word in ("north", "south")), "")
    east_west = next((word for word in words if word in ("east", "west")), "")
    return next((word for word in words if word in MOVES and len(word) > 5), "") or north_south + east_west


def _listed(moves: Sequence[str]) -> str:
    shown = ", ".join(moves[:_MOST_MOVES])
    return shown + (", …" if len(moves) > _MOST_MOVES else "")
