"""The axis of a chart holds every value, whatever rounding made of it."""

from __future__ import annotations

import re
import warnings

import pytest

from crl.report.charts import Bar, Line, Point, bar_chart, line_chart

SUMS = [0.015000000000000001, 0.1 + 0.2, 3 * 0.1, 0.7 + 0.1, 1.1 + 2.2, 1e-300, 5e-324, 1.0000000000000002, 1e15 + 0.5]
"""Most are next to a number that a tick stands for: 0.015, 0.3, 0.8, 3.3, 1."""


@pytest.mark.parametrize("height", SUMS)
def test_a_chart_is_drawn_for_values_next_to_a_tick(height: float) -> None:
    bars = bar_chart("seconds", [("plan", 0)], [Bar(1, [height / 2], "1"), Bar(2, [height], "2")])
    lines = line_chart("loss", [Line("actor", 0, [Point(1, height / 2, "1", "low"), Point(2, height, "2", "high")])])
    for chart in (bars, lines):
        assert len(re.findall("<path|<polyline|<rect", chart.svg)) > 2, chart.svg


@pytest.mark.parametrize("low", [None, -0.9])
@pytest.mark.parametrize("values", [(0.17, -0.42), (-0.2, -0.1), (-30.0, 0.0)])
def test_values_below_zero_are_in_the_picture(values: tuple[float, float], low: float | None) -> None:
    points = [Point(number, each, "what it is", str(each), low, low and 0.5) for number, each in enumerate(values, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = line_chart("reward after less before", [Line("mean", 0, points)]).svg
    marks = [tuple(map(float, each)) for each in re.findall(r'<use [^>]*x="([-\d.]+)" y="([-\d.]+)"[^>]*><title>', svg)]
    assert len(marks) == 2 and all(0 <= x <= 380 and 30 < y < 190 for x, y in marks), "between the legend and the axis"
    ticks = [float(each) for each in re.findall(r'text-anchor="end"[^>]*>([-\d.]+)<', svg)]
    assert min(ticks) <= min(values) and max(ticks) >= max(values), ticks


@pytest.mark.parametrize("share", [False, True])
def test_a_line_of_zeros_is_drawn_on_an_axis_up_to_one(share: bool) -> None:
    zeros = [Point(number, 0.0, str(number), "0") for number in (1, 2)]
    chart = line_chart("malformed extractor outputs", [Line("malformed", 6, zeros)], share=share)
    ticks = re.findall(r'text-anchor="end"[^>]*>([-\d.]+)', chart.svg)
    assert "nothing to show yet" not in chart.svg and chart.svg.count("<title>") == 2
    assert float(ticks[-1]) == (100 if share else 1) and float(ticks[0]) == 0
    assert "nothing to show yet" in line_chart("malformed extractor outputs", [Line("malformed", 6)]).svg
    assert "nothing to show yet" in bar_chart("seconds", [("plan", 0)], [Bar(1, [0.0], "1")]).svg
