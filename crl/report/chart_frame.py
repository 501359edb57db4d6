"""What is around the drawing of a chart: title, legend, grid, the numbers of both axes. Nothing is cut off.

Nobody knows the reader's font, so room is left for a wide one (DejaVu Sans): names wrap into further rows, the left
margin is as wide as the longest number, and what is too long for a row all the same is squeezed into it. A browser test
measures every word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 380, 220
"""Pixels of a drawing; it is higher only where title and legend would leave too little of it."""
_RIGHT, _BOTTOM = 12, 34
_EDGE = 2.0
_TITLE_ROW, _LEGEND_ROW, _TICK_ROW = 17.0, 15.0, 4.0
_SAMPLE, _SQUARE = 22.0, 14.0
"""Width of the sample of a line, or of the square of a kind, with the space before its name."""
_APART = 14.0
"""Space between two names."""
_DRAWING = 130
"""Least height of what is drawn."""
_NARROW = frozenset("ijlftrI.,:;|!'() []")
_BROAD = frozenset("mwMW%@–—")
DASHES = ("", "7 4", "2 3", "10 3 2 3", "5 2", "1 4", "12 4", "4 2 1 2")
"""Dashes of a chart's lines, in their order: a line that coincides with an earlier one leaves it seen in its gaps."""


def width_of(text: str, size: float = 12.0) -> float:
    """About how wide a text is at most, in pixels, for a font of this size."""
    letters = (0.40 if each in _NARROW else 1.0 if each in _BROAD else 0.66 for each in text)
    return size * sum(letters)


def wrapped(text: str, room: float, size: float = 12.0) -> list[str]:
    """The words of a text in rows that fit the room; a word that does not stands alone."""
    rows: list[str] = []
    for word in text.split():
        if rows and width_of(f"{rows[-1]} {word}", size) <= room:
            rows[-1] += f" {word}"
        else:
            rows.append(word)
    return rows or [""]


def words_at(text: str, x: float, y: float, room: float, *, kind: str = "", size: float = 12.0) -> str:
    """A text element; squeezed where one row of it is too long for the room."""
    squeezed = f' textLength="{short(room)}" lengthAdjust="spacingAndGlyphs"' if width_of(text, size) > room else ""
    styled = f' class="{kind}"' if kind else ""
    return f'<text{styled} x="{short(x)}" y="{short(y)}"{squeezed}>{escape(text)}</text>'


@dataclass(frozen=True, slots=True)
class Key:
    """A name of the legend, and how it is drawn."""

    name: str
    colour: int
    line: int | None = None
    """Place of a line among those of the chart; None for a kind of bars."""
    marked: bool = True


class Head:
    """Title and legend, in as many rows as they need; `bottom` is where the drawing may begin, `height` that of all."""

    def __init__(self, title: str, keys: Sequence[Key]) -> None:
        room = WIDTH - 2 * _EDGE
        parts, y = [], 15.0
        for row in wrapped(title, room, 13.5):
            parts.append(words_at(row, _EDGE, y, room, kind="title", size=13.5))
            y += _TITLE_ROW
        x = _EDGE
        for key in keys:
            drawn = _SQUARE if key.line is None else _SAMPLE
            names = wrapped(key.name, room - drawn)
            wide = drawn + max(map(width_of, names))
            if x > _EDGE and (x + wide > WIDTH - _EDGE or len(names) > 1):
                x, y = _EDGE, y + _LEGEND_ROW
            parts.append(sample(key, x, y - 4))
            for number, name in enumerate(names):
                y += _LEGEND_ROW if number else 0
                parts.append(words_at(name, x + drawn, y, room - drawn))
            x = WIDTH if len(names) > 1 else x + wide + _APART
        self.svg = "".join(parts)
        self.bottom = max(50.0, y + 12.0)
        self.height = max(HEIGHT, math.ceil(self.bottom + _DRAWING + _BOTTOM))


def sample(key: Key, x: float, y: float) -> str:
    """How a line or a kind of bars looks, for the legend."""
    if key.line is None:
        return f'<rect class="bar s{key.colour}" x="{short(x)}" y="{short(y - 5)}" width="10" height="10" rx="2"/>'
    ends = f'x1="{short(x)}" x2="{short(x + _SAMPLE - 4)}" y1="{short(y)}" y2="{short(y)}"'
    drawn = f'<line class="key s{key.colour}"{dashed(key.line)} {ends}/>'
    return drawn + (mark(key.line, key.colour, x + (_SAMPLE - 4) / 2, y) if key.marked else "")


def dashed(line: int) -> str:
    """The attribute that tells a line from those drawn before it."""
    dash = DASHES[line % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def mark(line: int, colour: int, x: float, y: float, told: str = "") -> str:
    """A mark of a line: full for the first, hollow and of another form for the others, so that each is seen."""
    title = f"<title>{escape(told)}</title>" if told else ""
    kind, a, b = f'class="mark s{colour}"', short(x), short(y)
    if line == 0:
        return f'<circle {kind} cx="{a}" cy="{b}" r="3">{title}</circle>'
    hollow = f'class="mark hollow s{colour}"'
    form = (line - 1) % 3
    if form == 0:
        return f'<rect {hollow} x="{short(x - 4)}" y="{short(y - 4)}" width="8" height="8">{title}</rect>'
    if form == 1:
        corners = f"{a},{short(y - 5)} {short(x + 5)},{b} {a},{short(y + 5)} {short(x - 5)},{b}"
        return f'<polygon {hollow} points="{corners}">{title}</polygon>'
    return f'<circle {hollow} cx="{a}" cy="{b}" r="4.5">{title}</circle>'


class Axes:
    """The scales of one chart, from 0 to `top` and over the places `xs`."""

    def __init__(
        self, xs: Sequence[float], top: float, head: Head, *, share: bool = False, half_step: bool = False
    ) -> None:
        margin = 0.5 if half_step or min(xs) == max(xs) else 0.0
        self._low, self._high, self._top, self._head = min(xs) - margin, max(xs) + margin, top, head
        parts = _parts(top, share)
        values = [top * part / parts for part in range(parts + 1)]
        self._labels = [(value, f"{100 * value:.4g} %" if share else amount(value)) for value in values]
        self._floor = head.height - _BOTTOM
        self._left = max(40.0, *(width_of(told) + 11 for _, told in self._labels))

    def x(self, value: float) -> float:
        """Horizontal place of a round."""
        inside = (value - self._low) / (self._high - self._low)
        return short(self._left + inside * (WIDTH - self._left - _RIGHT))

    def y(self, value: float) -> float:
        """Vertical place of a value; values above the top stop there."""
        inside = min(max(value / self._top, 0.0), 1.0)
        return short(self._floor - inside * (self._floor - self._head.bottom))

    def step(self, count: int) -> float:
        """Pixels a bar has for itself."""
        return (WIDTH - self._left - _RIGHT) / max(count, 1)

    def frame(self, *, along: str = "round", ticks: Sequence[tuple[float, str]] | None = None) -> str:
        """Title, legend, grid and the numbers of both axes; `ticks` are the words along the horizontal one."""
        parts = [self._head.svg]
        for value, told in self._labels:
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{short(self._left)}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
            place = f'x="{short(self._left - 9)}" y="{short(y + _TICK_ROW)}" text-anchor="end"'
            parts.append(f'<text class="faint" {place}>{told}</text>')
        y = self._floor + 16
        for number, name in self._ticks() if ticks is None else ticks:
            # Half a long number would stand outside the picture at its edge.
            x, half = self.x(number), width_of(name) / 2
            x = min(max(x, half + 1), WIDTH - half - 1)
            parts.append(f'<text class="faint" x="{short(x)}" y="{y}" text-anchor="middle">{escape(name)}</text>')
        place = f'x="{WIDTH - _RIGHT}" y="{self._head.height - 4}" text-anchor="end"'
        parts.append(f'<text class="faint" {place}>{escape(along)}</text>')
        return "".join(parts)

    def _ticks(self) -> list[tuple[float, str]]:
        first, last = math.ceil(self._low), math.floor(self._high)
        wide = max(width_of(str(last)) + 10, 24.0)
        most = max(2, int((WIDTH - self._left - _RIGHT) / wide))
        step = max(1, _whole_step((last - first) / most)) if last - first >= most else 1
        return [(number, str(number)) for number in range(first + (-first) % step, last + 1, step)]


def _parts(top: float, share: bool) -> int:
    """How many steps the vertical axis has, so that their numbers are short: five of 0.5 for 2.5, four of 25 %."""
    digits = top / 10.0 ** math.floor(math.log10(top))
    fifths = (2.5, 5.0) if share else (1.0, 2.5, 5.0)
    return 5 if any(math.isclose(digits, each) for each in fifths) else 4


def _whole_step(value: float) -> int:
    """A round whole number not below the value."""
    scale: int = 10 ** max(0, math.floor(math.log10(value)))
    return next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= value)


def amount(value: float) -> str:
    """A number of an axis, as few signs as it needs: 12.5, 250k, 1.5M, 2e-05."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if sign == 'k' else size):g}{sign}"
    return re.sub(r"e-0*", "e-", f"{value:.4g}")


def short(value: float) -> float:
    """A place in the drawing, to a tenth of a pixel."""
    return round(value, 1)
