"""The axis of a chart holds every value, whatever rounding made of it."""

from __future__ import annotations

import re

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
