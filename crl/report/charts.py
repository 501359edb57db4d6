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

from crl.report.chart_frame import HEIGHT, WIDTH, Axes, Head, Key, dashed, mark, short

_MARGIN = 16
_DOTS = 40
"""Up to this many points each is marked and tells its value."""

STYLE = (
    "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#3b4252}"
    ".title{font-weight:600;font-size:13px;fill:#111827}.faint{fill:#6b7280}.grid{stroke:#e5e7eb;stroke-width:1}"
    ".s0{stroke:#0f766e;fill:#0f766e}.s1{stroke:#b45309;fill:#b45309}.s2{stroke:#4f46e5;fill:#4f46e5}"
    ".s3{stroke:#be185d;fill:#be185d}.s4{stroke:#6b7280;fill:#6b7280}.s5{stroke:#65a30d;fill:#65a30d}"
    "polyline.line{fill:none;stroke-width:2;stroke-linejoin:round}polygon.band{stroke:none;fill-opacity:.14}"
    "rect.bar{stroke:none}line.key{stroke-width:2}.mark.hollow{fill:none;stroke-width:1.6}"
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
    """One row per place on the axis; empty where there was nothing to draw."""


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
        _svg(*_lines(title, lines, top=top, share=share, rounds=rounds), f"{title}: {said or 'nothing to show yet'}"),
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
        _svg(*_bars(title, kinds, bars, axis, named), f"{title}: {said}"),
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
    drawing, inner = _lines(title, lines, top=top, share=share, rounds=rounds)
    width, height = WIDTH + 2 * _MARGIN, inner + 2 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img"><title>{escape(title)}</title><style>{STYLE}</style>'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/><g transform="translate({_MARGIN},{_MARGIN})">'
        f"{drawing}</g></svg>"
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


def _svg(inner: str, height: int, told: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(told)}">{inner}</svg>'


def _lines(
    title: str,
    lines: Sequence[Line],
    *,
    top: float | None,
    share: bool,
    rounds: tuple[float, float] | None = None,
) -> tuple[str, int]:
    """The drawing, and its height."""
    drawn = [line for line in lines if line.points]
    if not drawn:
        return _nothing(title)
    values = [point.y if point.high is None else point.high for line in drawn for point in line.points]
    xs = [point.x for line in drawn for point in line.points]
    keys = [Key(_labelled(line, share), line.colour, place, line.marked) for place, line in enumerate(drawn)]
    head = Head(title, keys)
    axes = Axes([*xs, *(rounds or ())], nice_top(max(values)) if top is None else top, head, share=share)
    parts = [axes.frame()]
    for line in drawn:
        parts.append(_band(axes, line))
    # In their order: the dashes of a later line leave gaps in which an earlier one is seen, and its marks are hollow.
    for place, line in enumerate(drawn):
        path = " ".join(f"{axes.x(point.x)},{axes.y(point.y)}" for point in line.points)
        parts.append(f'<polyline class="line s{line.colour}"{dashed(place)} points="{path}"/>')
        if line.marked and len(line.points) <= _DOTS:
            parts += [
                mark(place, line.colour, axes.x(point.x), axes.y(point.y), f"{point.at}: {line.name} {point.told}")
                for point in line.points
            ]
    return "".join(parts), head.height


def _band(axes: Axes, line: Line) -> str:
    edges = [(point.x, point.low, point.high) for point in line.points if point.low is not None and point.high]
    if len(edges) < 2:
        return ""
    upper = [f"{axes.x(x)},{axes.y(high)}" for x, _, high in edges if high is not None]
    lower = [f"{axes.x(x)},{axes.y(low)}" for x, low, _ in reversed(edges) if low is not None]
    return f'<polygon class="band s{line.colour}" points="{" ".join([*upper, *lower])}"/>'


def _bars(
    title: str, kinds: Sequence[tuple[str, int]], bars: Sequence[Bar], along: str, named: bool
) -> tuple[str, int]:
    highest = max((sum(bar.heights) for bar in bars), default=0)
    if not highest:
        return _nothing(title)
    shown = [index for index in range(len(kinds)) if any(bar.heights[index] for bar in bars)]
    ticks = [(bar.x, bar.at) for bar in bars] if named else None
    head = Head(title, [Key(*kinds[index]) for index in shown])
    axis = Axes([bar.x for bar in bars], _countable_top(highest), head, half_step=True)
    parts = [axis.frame(along=along, ticks=ticks)]
    width = max(1.0, min(28.0, 0.72 * axis.step(len({bar.x for bar in bars}))))
    for bar in bars:
        base = 0.0
        pieces, told = [], []
        for index in shown:
            if bar.heights[index]:
                low, high = axis.y(base), axis.y(base + bar.heights[index])
                pieces.append(
                    f'<rect class="bar s{kinds[index][1]}" x="{short(axis.x(bar.x) - width / 2)}" y="{high}" '
                    f'width="{short(width)}" height="{short(low - high)}"/>'
                )
                told.append(f"{kinds[index][0]} {bar.heights[index]:.4g}")
                base += bar.heights[index]
        parts.append(f"<g><title>{escape(f'{bar.at}: ' + (', '.join(told) or 'none'))}</title>{''.join(pieces)}</g>")
    return "".join(parts), head.height


def _labelled(line: Line, share: bool) -> str:
    last = line.points[-1].y
    return f"{line.name} {100 * last:.0f} %" if share else f"{line.name} {last:.3g}"


def _nothing(title: str) -> tuple[str, int]:
    place = f'x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle"'
    return f'{Head(title, []).svg}<text class="faint" {place}>nothing to show yet</text>', HEIGHT
