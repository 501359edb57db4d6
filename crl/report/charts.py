"""Charts as SVG, drawn by matplotlib: lines with uncertainty bands, stacked bars.

Colors are variables of `templates/chart.css`, for light and dark; a standalone picture carries that style sheet.
A chart is about as wide as a phone, so that its letters stay readable there, and comes with its numbers as a table, for
those who cannot see it or want to copy them. Equal figures give equal bytes. matplotlib is imported when one is drawn.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 380, 220
"""Pixels of a chart; it is higher only where title and legend would leave too little of it."""
_MARGIN = 16
"""Around a standalone picture."""
_RC: dict[Any, Any] = {
    "svg.hashsalt": "crl", "svg.fonttype": "none", "text.parse_math": False, "lines.scale_dashes": False,
    "font.family": "DejaVu Sans", "font.size": 12, "lines.linewidth": 2, "legend.frameon": False,
    "legend.handlelength": 1.6, "legend.columnspacing": 1.2, "legend.borderaxespad": 0.1, "legend.borderpad": 0.1,
    "legend.labelspacing": 0.3,
}  # fmt: skip
_SVG = "http://www.w3.org/2000/svg"
_MARKED = 40
"""Up to this many points each is marked and tells its value."""
_LINES = ("-", (0, (7, 4)), (0, (2, 3)), (0, (10, 3, 2, 3)), (0, (5, 2)), (0, (1, 4)), (0, (12, 4)), (0, (4, 2, 1, 2)))
"""Dashes of a chart's lines, in their order: a line that coincides with an earlier one leaves it seen in its gaps."""
_MARKS = (("o", 5), ("s", 7), ("D", 6.5), ("o", 8.5))
"""Mark of the first line, which is filled, and of the others in turn, which are hollow."""
_RAMP = {10: 0.26, 11: 0.44, 12: 0.62, 13: 0.8, 14: 1.0}
"""Opacity of colors that grow stronger."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing and what it says as a table."""

    title: str
    svg: str
    """For a page that holds `chart.css`."""
    columns: Sequence[str] = ()
    """Headings of the table; the first is that of the horizontal axis."""
    rows: Sequence[Sequence[str]] = ()
    """One row per place on the axis; empty where there was nothing to draw."""

    def picture(self) -> str:
        """The drawing as a picture that needs no page around it."""
        width, height = (int(float(each)) + 2 * _MARGIN for each in self.svg.split('"')[1].split()[2:])
        place = f'width="{width}" height="{height}" viewBox="{-_MARGIN} {-_MARGIN} {width} {height}"'
        rest = self.svg.partition('" ')[2]
        return f'<svg xmlns="{_SVG}" {place} {rest}'.replace(">", f"><style>{_style()}</style>", 1)


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a line; `low` and `high` bound its band."""

    x: float
    y: float
    at: str
    """Where it is on the axis, in words: a round, or `3–5`."""
    text: str
    """Its value in words."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. `color` is 0 to 7: the same thing has the same color in every chart."""

    name: str
    color: int
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
    rounds: tuple[float, float] | None = None,
    axis: str = "round",
    named: bool = False,
) -> Chart:
    """Lines over rounds, or over what `axis` says. `top` is the largest value of the other axis, `rounds` the ends of
    this one; `share` labels it in percent. With `named` each place is labeled by the `at` of its points."""
    drawn = [line for line in lines if line.points]
    points = [point for line in drawn for point in line.points]
    places = dict(sorted((point.x, point.at) for point in points))
    names = [
        f"{line.name} {f'{100 * line.points[-1].y:.0f} %' if share else f'{line.points[-1].y:.3g}'}" for line in drawn
    ]

    def draw(axes: Axes) -> list[Artist]:
        for line in drawn:
            band = [(point.x, point.low, point.high) for point in line.points if point.low is not None and point.high]
            if len(band) > 1:
                xs, low, high = zip(*band, strict=True)
                axes.fill_between(xs, low, high, lw=0, alpha=0.15, color=_hex(line.color), clip_on=False, gid="band")
        if named:
            axes.set_xticks(list(places), list(places.values()))
        return [_plotted(axes, place, line) for place, line in enumerate(drawn)]

    return Chart(
        title,
        _drawn(
            title, names, draw, along=axis, share=share, top=top,
            heights=[each for point in points for each in (point.y, point.low, point.high) if each is not None],
            xs=[*places, *(rounds or ())],
            told={f"line {place}": [f"{point.at}: {line.name} {point.text}" for point in line.points]
                  for place, line in enumerate(drawn)},
        ),
        *_table(axis, drawn),
    )  # fmt: skip


def over_steps(
    title: str, lines: Sequence[Line], steps: Sequence[Mapping[float, float]], *, top: float | None = None
) -> Chart:
    """Shares over rounds, drawn over the real environment steps taken by then: `steps` has them by line and round."""
    told, moved = [], []
    for line, taken in zip(lines, steps, strict=True):
        known = [point for point in line.points if point.x in taken]
        points = [replace(point, text=f"{point.text} at {taken[point.x]:,.0f}") for point in known]
        told.append(replace(line, points=points))
        moved.append(replace(line, points=[replace(each, x=taken[each.x], at=f"round {each.at}") for each in points]))
    # Rounds without a real step are above each other, and no two conditions are at the same place: the table is by
    # round.
    columns, rows = _table("round", [line for line in told if line.points])
    drawn = line_chart(f"{title}, over real steps", moved, top=top, share=True, axis="real environment steps")
    return replace(drawn, columns=columns, rows=rows)


def bar_chart(
    title: str, kinds: Sequence[tuple[str, int]], bars: Sequence[Bar], *, axis: str = "round", named: bool = False
) -> Chart:
    """Stacked bars; `kinds` are (name, color), from the bottom up. With `named` every bar stands for what its `at`
    says, else for rounds."""
    shown = [index for index in range(len(kinds)) if any(bar.heights[index] for bar in bars)]
    names = [kinds[index][0] for index in shown]
    xs = [bar.x for bar in bars]
    told: dict[str, list[str]] = {}

    def draw(axes: Axes) -> list[Artist]:
        # A bar takes part of its step, and is no broader than 28 pixels.
        steps = max(xs) - min(xs) + 1
        width, base, keys = min(0.72, 28 * steps / _WIDTH), [0.0] * len(bars), []
        for index in shown:
            color, opacity = _hex(2 if kinds[index][1] in _RAMP else kinds[index][1]), _RAMP.get(kinds[index][1])
            places = [place for place, bar in enumerate(bars) if bar.heights[index]]
            heights = [bars[place].heights[index] for place in places]
            drawn = axes.bar([xs[place] for place in places], heights, width, [base[place] for place in places],
                             color=color, alpha=opacity, clip_on=False)  # fmt: skip
            for place, height, patch in zip(places, heights, drawn, strict=True):
                patch.set_gid(f"bar {index} {place}")
                told[f"bar {index} {place}"] = [f"{bars[place].at}: {kinds[index][0]} {height:.4g}"]
                base[place] += height
            keys.append(drawn[0])
        axes.set_xlim(min(xs) - 0.5, max(xs) + 0.5)
        if named:
            axes.set_xticks(xs, [bar.at for bar in bars])
        return keys

    return Chart(
        title,
        _drawn(
            title, names, draw, along=axis, xs=xs, told=told,
            heights=[sum(bar.heights) for bar in bars] if shown else [],  # a bar of nothing is not seen
        ),
        [axis, *names],
        [[bar.at, *(f"{bar.heights[index]:.4g}" for index in shown)] for bar in bars] if shown else [],
    )  # fmt: skip


def _table(axis: str, lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the numbers of lines: a row per place."""
    places = dict(sorted((point.x, point.at) for line in lines for point in line.points))
    values = [{point.x: point.text for point in line.points} for line in lines]
    rows = [[at, *(value.get(x, "–") for value in values)] for x, at in places.items()]
    return [axis, *(line.name for line in lines)], rows


def _plotted(axes: Axes, place: int, line: Line) -> Artist:
    mark, size = _MARKS[0] if place == 0 else _MARKS[1 + (place - 1) % 3]
    color, marked = _hex(line.color), line.marked and len(line.points) <= _MARKED
    (drawn,) = axes.plot(
        [point.x for point in line.points], [point.y for point in line.points], color=color, clip_on=False,
        linestyle=_LINES[place % len(_LINES)], marker=mark if marked else None, markersize=size, markeredgewidth=1.6,
        markerfacecolor="none" if place else color, gid=f"line {place}",
    )  # fmt: skip
    return drawn


def _drawn(
    title: str,
    names: Sequence[str],
    draw: Callable[[Axes], Sequence[Artist]],
    *,
    along: str,
    heights: Sequence[float],
    xs: Sequence[float],
    told: Mapping[str, Sequence[str]],
    share: bool = False,
    top: float | None = None,
) -> str:
    """A chart from 0 to `top`, or to a round number above the `heights`, or to 1 where all of them are 0; from a round
    number below them where some are negative. Without `heights` there is nothing to show yet. `told` is what each mark
    says."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    # Nobody knows the reader's font: room is left for a wide one.
    heading = textwrap.fill(title, 45)
    labels = [textwrap.fill(name, 47) for name in names]
    longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
    columns = max(1, min(len(labels), _WIDTH // (38 + 8 * longest)))
    rows = sum(label.count("\n") + 1 for label in labels) / columns
    height = max(_HEIGHT, round(150 + 17 * heading.count("\n") + 17 * (rows + 1)))
    with matplotlib.rc_context(_RC):
        layout = ConstrainedLayoutEngine()
        figure = Figure((_WIDTH / 72, height / 72), layout=layout, frameon=False)
        axes = figure.subplots()
        axes.set_frame_on(False)
        axes.tick_params(length=0, pad=7, labelcolor=_hex("faint"))
        if heights:
            lowest, highest = min(0.0, *heights), max(0.0, *heights)
            if lowest == highest:
                highest = 1.0
            whole = not share and all(float(each).is_integer() for each in heights)
            locator = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=whole, min_n_ticks=2)
            axes.yaxis.set_major_locator(locator)
            axes.yaxis.set_major_formatter(_percent if share else amount)
            axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, min_n_ticks=1))
            axes.xaxis.set_major_formatter((lambda value, _: f"{value:g}") if along == "round" else amount)
            half = 0.5 if min(xs) == max(xs) else 0.0
            axes.set_xlim(min(xs) - half, max(xs) + half)
            # The last tick covers the highest value; a rounding error may put it just below.
            ticks = locator.tick_values(lowest, highest)
            axes.set_ylim(ticks[0] if lowest else 0, top or ticks[-1])
            axes.grid(axis="y", color=_hex("grid"), linewidth=1)
            axes.set_axisbelow(True)
            axes.set_xlabel(along, loc="right", labelpad=1, color=_hex("faint"))
            keys = draw(axes)
        else:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "nothing to show yet", ha="center", color=_hex("faint"))
            keys, labels = [], []
        legend = figure.legend(
            keys, labels, loc="outside upper left", ncols=columns, title=heading, alignment="left",
            labelcolor=_hex("text"), title_fontproperties={"weight": "bold", "size": 13},
        )  # fmt: skip
        legend.get_title().set_color(_hex("text"))
        # `savefig` would lay out the figure twice, and draw it twice.
        canvas: Any = FigureCanvasSVG(figure)  # its methods have no types
        layout.execute(figure)
        figure.set_layout_engine("none")
        out = io.StringIO()
        canvas.print_svg(out, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _for_pages(out.getvalue(), f"{title}: {', '.join(names) or 'nothing to show yet'}", told)


def _for_pages(svg: str, label: str, told: Mapping[str, Sequence[str]]) -> str:
    """matplotlib's SVG without what a page's policy forbids (styles), with colors of the page, names and titles."""
    root = ElementTree.fromstring(svg)
    for each in root.findall(f"{{{_SVG}}}defs"):  # a style sheet, and what nothing is clipped to
        root.remove(each)
    for each in root.iter():
        each.tag = each.tag.rpartition("}")[2]
        each.tail, each.text = None, each.text if each.tag in ("text", "title") else None
        attributes, each.attrib = dict(each.attrib), {}
        styles = (pair.partition(":") for pair in attributes.pop("style", "").split(";") if pair)
        attributes |= {name.strip(): value.strip() for name, _, value in styles}
        for name, value in attributes.items():
            name = name.rpartition("}")[2]
            if name in ("d", "x", "y"):
                value = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}", " ".join(value.split()))
            if name == "id" and each.tag == "g":
                if "_" in value:
                    continue
                each.set("class", value.partition(" ")[0])
                marks = [mark for mark in each.iter() if mark.tag.endswith("use")] or [each]
                for mark, words in zip(marks, told.get(value, ()), strict=False):
                    ElementTree.SubElement(mark, "title").text = words
            elif name not in ("font-family", "clip-path") and not value.startswith("rotate(-0 "):
                each.set(name, _variables().get(value, value))
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


def _percent(value: float, _: object = None) -> str:
    return f"{100 * value:.4g} %"


def amount(value: float, _: object = None) -> str:
    """A number of an axis, in as few characters as it needs: 12.5, 250k, 1.5M, 2e-05."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if sign == 'k' else size):g}{sign}"
    return f"{value:.4g}"


def _hex(name: int | str) -> str:
    """A color by its name in `chart.css`, or by its number; as it is in the light."""
    name = f"c{name}" if isinstance(name, int) else name
    return next(value for value, variable in _variables().items() if variable == f"var(--{name})")


@cache
def _style() -> str:
    return (Path(__file__).parent / "templates/chart.css").read_text(encoding="utf-8")


@cache
def _variables() -> dict[str, str]:
    """The variable of each color that charts are drawn in."""
    light = _style().partition("}")[0]
    return {value: f"var(--{name})" for name, value in re.findall(r"--(\w+): (#\w{6})", light)}
