"""Charts in headless Chromium: every word of a chart lies inside it, and none on another, whatever the names are."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from crl.report.charts import Bar, Chart, Line, Point, bar_chart, line_chart
from tests.browser.opened import Opened

LONG = "self-distillation of guided wins that beat the mean of the free games of their group"
"""As long as the title of an arm may well be."""

FAULTS = """() => [...document.querySelectorAll('svg')].flatMap((svg) => {
  const box = svg.getBoundingClientRect(), found = [];
  const texts = [...svg.querySelectorAll('text')].filter((each) => each.textContent.trim());
  const boxes = texts.map((each) => each.getBoundingClientRect());
  boxes.forEach((one, place) => {
    const name = texts[place].textContent;
    if (one.x < box.x - 0.5 || one.y < box.y - 0.5 || one.x + one.width > box.x + box.width + 0.5
        || one.y + one.height > box.y + box.height + 0.5) found.push(`cut off: ${name}`);
    boxes.slice(place + 1).forEach((other, after) => {
      const across = Math.min(one.x + one.width, other.x + other.width) - Math.max(one.x, other.x);
      const along = Math.min(one.y + one.height, other.y + other.height) - Math.max(one.y, other.y);
      if (across > 0.5 && along > 3.5) found.push(`${name} lies on ${texts[place + after + 1].textContent}`);
    });
  });
  return found;
})"""
"""Texts that leave their chart, or lie on each other; lines of text may touch by what fonts leave above and below."""


def points(*values: float) -> list[Point]:
    return [Point(number, value, str(number), f"{value:g}") for number, value in enumerate(values)]


MANY = [Line(f"arm {number} of the study", number, points(0.1 * number, 0.5)) for number in range(8)]
LATE = [Point(number, 0.5, str(number), "0.5") for number in range(0, 12000, 1000)]
KINDS = [(name, place) for place, name in enumerate(("add", "update", "merge", "drop", "return", "keep",
                                                     "rejected", "malformed"))]  # fmt: skip
CLASSES = ("0 %", "1–39 %", "40–60 %", "61–99 %", "100 %")
# Made by the test that looks at it: to make a chart takes matplotlib, and a third of a second.
AWKWARD: dict[str, Callable[[], Chart]] = {
    "long names": lambda: line_chart(
        "success with bank", [Line(LONG, 0, points(0.1, 0.2)), Line(LONG, 1, points(0.1, 0.2))], share=True, top=1.0
    ),
    "many names": lambda: line_chart("success on held-out seeds", MANY, share=True, top=1.0),
    "a long title": lambda: line_chart(f"a title that says a lot: {LONG}", [Line("one", 0, points(1, 2))]),
    "large numbers": lambda: line_chart("tokens", [Line("read", 0, points(1_234_567, 9_876_543))]),
    "small and large": lambda: line_chart("entries", [Line("entries", 0, points(3, 1_000_000))]),
    "small numbers": lambda: line_chart("small", [Line("loss", 0, points(0.000012, 0.000034))]),
    "many rounds": lambda: line_chart("late", [Line("success", 0, LATE)], share=True),
    "stacked": lambda: bar_chart("what became of operations", KINDS, [Bar(1, [1_000_000.0] * 8, "1")]),
    "names beneath bars": lambda: bar_chart(
        "entries by the share of their episodes won", [("entries", 2)],
        [Bar(place, [3.0], name) for place, name in enumerate(CLASSES)], axis="won", named=True,
    ),
}  # fmt: skip


@pytest.mark.slow
def test_no_word_of_a_report_is_cut_off_or_covered(show: Callable[..., Opened], finished: Path) -> None:
    page = show(finished)
    assert page.page.locator("svg").count() > 15
    assert page.page.evaluate(FAULTS) == []


@pytest.mark.slow
@pytest.mark.parametrize("which", AWKWARD)
def test_no_word_of_an_awkward_chart_is_cut_off_or_covered(browser: Any, which: str) -> None:
    page = browser.new_page()
    page.set_content(f"<style>text {{ font: 12px 'DejaVu Sans', sans-serif }}</style>{AWKWARD[which]().svg}")
    assert page.evaluate(FAULTS) == []
    page.close()


@pytest.mark.slow
def test_no_word_of_a_picture_that_stands_alone_is_cut_off(browser: Any) -> None:
    page = browser.new_page()
    lines = [Line(LONG, 0, points(0.1, 0.2)), Line("free", 1, points(0.1, 0.2)), Line("random policy", 4, points(0, 0))]
    page.set_content(line_chart("success in training", lines, top=1.0, share=True).picture())
    assert page.evaluate(FAULTS) == []
    page.close()


def test_a_line_is_seen_where_another_lies_on_it(browser: Any) -> None:
    """Two lines with the same values: each has pixels of its own color."""
    page = browser.new_page()
    same = points(0.5, 0.5, 0.5, 0.5)
    chart = line_chart("success", [Line("guided", 0, same), Line("free", 1, same)], top=1.0, share=True)
    page.set_content(chart.picture())
    drawn = page.evaluate(
        """() => [...document.querySelectorAll('.line > path')].map((line) => {
          const style = getComputedStyle(line);
          return [style.strokeDasharray, style.stroke];
        })"""
    )
    assert len({dash for dash, _ in drawn}) == 2 and len({stroke for _, stroke in drawn}) == 2
    assert drawn[0][0] == "none", "the lower one is whole, the upper one has gaps"
    page.close()


def test_a_chart_is_seen_in_the_light_and_in_the_dark(browser: Any) -> None:
    """The picture that stands alone, as others embed it: bright words on a dark ground, and the other way round."""
    picture = line_chart("success", [Line("guided", 0, points(0.5, 0.5))], top=1.0, share=True).picture()
    encoded = base64.b64encode(picture.encode()).decode()
    found = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.set_content(f'<body style="margin: 0"><img alt="" src="data:image/svg+xml;base64,{encoded}">')
        pixels = Image.open(io.BytesIO(page.screenshot(clip={"x": 0, "y": 0, "width": 400, "height": 240}))).convert(
            "L"
        )
        found[scheme] = (pixels.getpixel((2, 2)), pixels.getextrema())
        page.close()
    assert found["light"][0] > 200 and found["light"][1][0] < 80
    assert found["dark"][0] < 60 and found["dark"][1][1] > 200


def test_each_mark_says_its_value_and_words_stay_words(browser: Any) -> None:
    hostile = '_<script>alert(1)</script> $x^2$ </svg> & "quoted"'
    lines = line_chart(hostile, [Line(hostile, 0, points(1, 2)), Line("_two", 1, points(3, 4))])
    bars = bar_chart(hostile, [("add", 0), (hostile, 1)], [Bar(1, [2, 0], "1"), Bar(2, [1, 3], "2")])
    page = browser.new_page()
    page.set_content(f"<div id=lines>{lines.svg}</div><div id=bars>{bars.svg}</div>")
    said = "(place) => [...document.querySelectorAll(place + ' title')].map((each) => each.textContent)"
    assert page.evaluate(said, "#lines") == [f"0: {hostile} 1", f"1: {hostile} 2", "0: _two 3", "1: _two 4"]
    assert page.evaluate(said, "#bars") == ["1: add 2", "2: add 1", f"2: {hostile} 3"]
    assert page.locator("script").count() == 0 and page.locator("svg").count() == 2
    text = " ".join(page.locator("#lines text").all_text_contents())
    assert text.count("alert(1)") == 2 and "$x^2$" in text and "_two 4" in text
    assert page.locator("#bars svg").get_attribute("aria-label") == f"{hostile}: add, {hostile}"
    page.close()


@pytest.mark.slow
def test_equal_figures_give_equal_bytes() -> None:
    assert [make().svg for make in AWKWARD.values()] == [make().svg for make in AWKWARD.values()]
