"""Charts as SVG text: lines with uncertainty bands, stacked bars. Our own few lines, so that a page loads nothing.

Colours are CSS classes: the page styles them for light and dark, a picture that stands alone carries :data:`STYLE`.
Texts are escaped. A chart is drawn about as wide as a phone, so that its letters stay readable there. Each comes with
its numbers as a table, for those who cannot see it or want to copy them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 380, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 54, 34
_LEGEND_ROWS, _LEGEND_ROW = 2, 14
"""The top margin holds a legend of so many rows; each further one takes from the drawing."""
_MARGIN = 16
_DOTS = 40
"""Up to so many points each is marked and tells its value."""

STYLE = (
    "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#3b4252}"
    ".title{font-weight:600;font-size:13px;fill:#111827}.faint{fill:#6b7280}.grid{stroke:#e5e7eb;stroke-width:1}"
    ".s0{stroke:#0f766e;fill:#0f766e}.s1{stroke:#b45309;fill:#b45309}.s2{stroke:#4f46e5;fill:#4f46e5}"
    ".s3{stroke:#be185d;fill:#be185d}.s4{stroke:#6b7280;fill:#6b7280}.s5{stroke:#65a30d;fill:#65a30d}"
    "polyline.line{fill:none;stroke-width:2;stroke-linejoin:round}polygon.band{stroke:none;fill-opacity:.14}"
    "rect.bar{stroke:none}"
)
"""Colours of a picture that stands alone, on white."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing and what it says as a table."""

    title: str
    svg: str
    columns: Sequence[str] = ()
    """Headings of the table; the first is that of the horizontal axis."""
    rows: Sequence[Sequence[str]] = ()
    """A row a place on the axis; empty where there was nothing to draw."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a line; `low` and `high` bound its band."""

    x: float
    y: float
    at: str
    """Where it stands on the axis, in words: a round, or `3–5`."""
    told: str
    """Its value in words."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. `colour` is 0 to 5: the same thing has the same colour in every chart."""

    name: str
    colour: int
    points: Sequence[Point] = field(default_factory=tuple)
    marked: bool = True
    """Whether its points have marks: a level that was measured once has none."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: heights by kind, in the order of the chart's kinds."""

    x: float
    heights: Sequence[float]
    at: str


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    top: float | None = None,
    share: bool = False,
    count: bool = False,
    rounds: tuple[float, float] | None = None,
) -> Chart:
    """Lines over rounds. `top` is the largest value of the axis, `rounds` its ends; `share` labels it in per cent,
    `count` in whole numbers."""
    if count:
        top = _countable_top(max([1.0, *(point.y for line in lines for point in line.points)]))
    drawn = [line for line in lines if line.points]
    places = dict(sorted((point.x, point.at) for line in drawn for point in line.points))
    values = [{point.x: point.told for point in line.points} for line in drawn]
    said = ", ".join(_labelled(line, share) for line in drawn)
    return Chart(
        title,
        _svg(_lines(title, lines, top=top, share=share, rounds=rounds), f"{title}: {said or 'nothing to show yet'}"),
        ["round", *(line.name for line in drawn)],
        [[at, *(value.get(x, "–") for value in values)] for x, at in places.items()],
    )


def bar_chart(
    title: str, kinds: Sequence[tuple[str, int]], bars: Sequence[Bar], *, axis: str = "round", named: bool = False
) -> Chart:
    """Stacked bars; `kinds` are (name, colour), from the bottom up. With `named` every bar stands for what its `at`
    says, else for rounds."""
    shown = [index for index in range(len(kinds)) if any(bar.heights[index] for bar in bars)]
    names = [kinds[index][0] for index in shown]
    said = f"stacked bars of {', '.join(names)}" if names else "nothing to show yet"
    return Chart(
        title,
        _svg(_bars(title, kinds, bars, axis, named), f"{title}: {said}"),
        [axis, *names],
        [[bar.at, *(f"{bar.heights[index]:.4g}" for index in shown)] for bar in bars] if shown else [],
    )


def picture(
    title: str,
    lines: Sequence[Line],
    *,
    top: float | None = None,
    share: bool = False,
    rounds: tuple[float, float] | None = None,
) -> str:
    """A line chart as a picture that stands alone, on white: it needs no page around it."""
    width, height = WIDTH + 2 * _MARGIN, HEIGHT + 2 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img"><title>{escape(title)}</title><style>{STYLE}</style>'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/><g transform="translate({_MARGIN},{_MARGIN})">'
        f"{_lines(title, lines, top=top, share=share, rounds=rounds)}</g></svg>"
    )


def nice_top(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5, 10 times a power of ten that is not below the value; 1 for nothing."""
    if value <= 0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(value))
    return next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= value * (1 - 1e-9))


def _countable_top(value: float) -> float:
    """A round number not below a count whose quarters are whole."""
    scale = 10.0 ** max(0, math.floor(math.log10(value / 4)))
    return next(factor * scale for factor in (4, 8, 12, 16, 20, 24, 32, 40) if factor * scale >= value)


def _svg(inner: str, told: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(told)}">{inner}</svg>'


def _lines(
    title: str,
    lines: Sequence[Line],
    *,
    top: float | None,
    share: bool,
    rounds: tuple[float, float] | None = None,
) -> str:
    drawn = [line for line in lines if line.points]
    if not drawn:
        return _nothing(title)
    values = [point.y if point.high is None else point.high for line in drawn for point in line.points]
    xs = [point.x for line in drawn for point in line.points]
    legend = _Legend([(_labelled(line, share), line.colour) for line in drawn])
    axis = _Axes([*xs, *(rounds or ())], nice_top(max(values)) if top is None else top, legend)
    parts = [axis.frame(title, share=share)]
    for line in drawn:
        parts.append(_band(axis, line))
    for line in drawn:
        path = " ".join(f"{axis.x(point.x)},{axis.y(point.y)}" for point in line.points)
        parts.append(f'<polyline class="line s{line.colour}" points="{path}"/>')
        if len(line.points) <= _DOTS:
            parts += [
                f'<circle class="s{line.colour}" cx="{axis.x(point.x)}" cy="{axis.y(point.y)}" r="3">'
                f"<title>{escape(f'{point.at}: {line.name} {point.told}')}</title></circle>"
                for point in line.points
            ]
    return "".join(parts)


def _band(axis: _Axes, line: Line) -> str:
    edges = [(point.x, point.low, point.high) for point in line.points if point.low is not None and point.high]
    if len(edges) < 2:
        return ""
    upper = [f"{axis.x(x)},{axis.y(high)}" for x, _, high in edges if high is not None]
    lower = [f"{axis.x(x)},{axis.y(low)}" for x, low, _ in reversed(edges) if low is not None]
    return f'<polygon class="band s{line.colour}" points="{" ".join([*upper, *lower])}"/>'


def _bars(title: str, kinds: Sequence[tuple[str, int]], bars: Sequence[Bar], along: str, named: bool) -> str:
    highest = max((sum(bar.heights) for bar in bars), default=0)
    if not highest:
        return _nothing(title)
    shown = [index for index in range(len(kinds)) if any(bar.heights[index] for bar in bars)]
    ticks = [(bar.x, bar.at) for bar in bars] if named else None
    legend = _Legend([kinds[index] for index in shown])
    axis = _Axes([bar.x for bar in bars], _countable_top(highest), legend, half_step=True)
    parts = [axis.frame(title, share=False, along=along, ticks=ticks)]
    width = max(1.0, min(28.0, 0.72 * axis.step(len({bar.x for bar in bars}))))
    for bar in bars:
        base = 0.0
        pieces, told = [], []
        for index in shown:
            if bar.heights[index]:
                low, high = axis.y(base), axis.y(base + bar.heights[index])
                pieces.append(
                    f'<rect class="bar s{kinds[index][1]}" x="{_short(axis.x(bar.x) - width / 2)}" y="{high}" '
                    f'width="{_short(width)}" height="{_short(low - high)}"/>'
                )
                told.append(f"{kinds[index][0]} {bar.heights[index]:.4g}")
                base += bar.heights[index]
        parts.append(f"<g><title>{escape(f'{bar.at}: ' + (', '.join(told) or 'none'))}</title>{''.join(pieces)}</g>")
    return "".join(parts)


class _Axes:
    """The scales of one chart."""

    def __init__(self, xs: Sequence[float], top: float, legend: _Legend, *, half_step: bool = False) -> None:
        margin = 0.5 if half_step or min(xs) == max(xs) else 0.0
        self._low, self._high, self._top, self._legend = min(xs) - margin, max(xs) + margin, top, legend
        self._ceiling = _TOP + _LEGEND_ROW * max(0, legend.rows - _LEGEND_ROWS)

    def x(self, value: float) -> float:
        """Horizontal place of a round."""
        inside = (value - self._low) / (self._high - self._low)
        return _short(_LEFT + inside * (WIDTH - _LEFT - _RIGHT))

    def y(self, value: float) -> float:
        """Vertical place of a value; values above the top stop there."""
        inside = min(max(value / self._top, 0.0), 1.0)
        return _short(HEIGHT - _BOTTOM - inside * (HEIGHT - self._ceiling - _BOTTOM))

    def step(self, count: int) -> float:
        """Pixels a bar has for itself."""
        return (WIDTH - _LEFT - _RIGHT) / max(count, 1)

    def frame(
        self,
        title: str,
        *,
        share: bool,
        along: str = "round",
        ticks: Sequence[tuple[float, str]] | None = None,
    ) -> str:
        """Title, legend, grid and the numbers of both axes; `ticks` are the words along the horizontal one."""
        parts = [f'<text class="title" x="2" y="15">{escape(title)}</text>', self._legend.svg]
        for fraction in (0, 0.25, 0.5, 0.75, 1):
            value, y = fraction * self._top, self.y(fraction * self._top)
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
            told = f"{100 * value:g} %" if share else f"{value:g}"
            parts.append(f'<text class="faint" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{told}</text>')
        for number, name in [(each, str(each)) for each in self._ticks()] if ticks is None else ticks:
            # Half a long number would stand outside the picture at its edge.
            anchor = "end" if self.x(number) > WIDTH - 4 * len(name) else "middle"
            place = f'x="{self.x(number)}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="{anchor}"'
            parts.append(f'<text class="faint" {place}>{escape(name)}</text>')
        parts.append(
            f'<text class="faint" x="{WIDTH - _RIGHT}" y="{HEIGHT - 3}" text-anchor="end">{escape(along)}</text>'
        )
        return "".join(parts)

    def _ticks(self) -> list[int]:
        first, last = math.ceil(self._low), math.floor(self._high)
        step = max(1, int(nice_top((last - first) / 8)) if last - first > 8 else 1)
        return list(range(first + (-first) % step, last + 1, step))


class _Legend:
    """Names of lines or kinds, in as many rows as they need."""

    def __init__(self, names: Sequence[tuple[str, int]]) -> None:
        parts, x, y = [], 2.0, 33.0
        for name, colour in names:
            wide = 32 + 6.6 * len(name)
            if x + wide > WIDTH and x > 2:
                x, y = 2.0, y + _LEGEND_ROW
            parts.append(f'<rect class="bar s{colour}" x="{_short(x)}" y="{y - 9}" width="10" height="10" rx="2"/>')
            parts.append(f'<text x="{_short(x + 14)}" y="{y}">{escape(name)}</text>')
            x += wide
        self.svg = "".join(parts)
        self.rows = 1 + int((y - 33.0) / _LEGEND_ROW)


def _labelled(line: Line, share: bool) -> str:
    last = line.points[-1].y
    return f"{line.name} {100 * last:.0f} %" if share else f"{line.name} {last:.3g}"


def _nothing(title: str) -> str:
    return (
        f'<text class="title" x="2" y="15">{escape(title)}</text>'
        f'<text class="faint" x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle">nothing to show yet</text>'
    )


def _short(value: float) -> float:
    return round(value, 1)
