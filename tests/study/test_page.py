"""The page of a study in headless Chromium: it asks for nothing, its numbers are those of study.json, texts stay so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crl.lab.study.results import StudyResult
from crl.lab.study.statistics import Interval
from crl.lab.study.table import interval_text, tables
from tests.browser.opened import Opened
from tests.study.conftest import Finished
from tests.study.studies import ARMS, NAME, SEEDS

TITLE = "Complementary <b>RL</b>"


@pytest.fixture
def show(browser: Any, finished_study: Finished) -> Iterator[Callable[..., Opened]]:
    """Open the page. Afterwards it has asked for nothing, and nothing went wrong."""
    opened: list[Opened] = []

    def run(**context: Any) -> Opened:
        opened.append(Opened(browser.new_context(**context).new_page(), finished_study.directory / "study.html"))
        return opened[-1]

    yield run
    for each in opened:
        violations = each.page.evaluate("window.violations")
        each.page.context.close()
        assert each.asked == [each.path.as_uri()], "the page asked for something"
        assert each.complaints == [] and violations == []


@pytest.fixture
def result(finished_study: Finished) -> StudyResult:
    return StudyResult.model_validate(json.loads((finished_study.directory / "study.json").read_text("utf-8")))


def test_numbers_of_tables_and_curves_are_those_of_study_json(show: Callable[..., Opened], result: StudyResult) -> None:
    page = show()
    for table in tables(result):
        assert page.table(table.title) == [list(table.columns), *map(list, table.rows)]
    complementary, baseline = result.arms
    assert complementary.with_bank is not None and complementary.without_bank is not None
    assert baseline.without_bank is not None

    def told(curve: dict[int, Interval]) -> dict[str, str]:
        return {str(number): interval_text(value) for number, value in curve.items()}

    for chart, heading, success in (
        ("success with bank", TITLE, complementary.with_bank),
        ("success with bank", "baseline (no bank)", baseline.without_bank),
        ("success without bank", TITLE, complementary.without_bank),
        ("success without bank", "baseline", baseline.without_bank),
    ):
        assert page.column(chart, heading) == told(success.curve), (chart, heading)
    assert page.page.locator("svg .line").count() == 4 and page.page.locator("svg .band").count() == 4


def test_it_says_which_seeds_were_tuned_on_and_links_to_every_run(
    show: Callable[..., Opened], finished_study: Finished
) -> None:
    page = show()
    assert "Reported on seeds 11, 12." in page.text("#seeds") and "chosen on seeds 1, 2" in page.text("#seeds")
    links = page.page.eval_on_selector_all("#runs a", "(all) => all.map((each) => each.href)")
    wanted = [finished_study.directory / f"{NAME}-{arm}-s{seed}" / "report.html" for seed in SEEDS for arm in ARMS]
    assert links == [path.as_uri() for path in wanted] and all(path.is_file() for path in wanted)
    assert page.text(".state") == "all 4 runs are finished"


def test_texts_of_the_study_file_stay_text(show: Callable[..., Opened]) -> None:
    page = show()
    assert page.page.locator("b").count() == 0 and TITLE in page.text("#success")
    assert page.text("header p") == "Does it | work?"


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_shows_all_of_it(show: Callable[..., Opened], width: int) -> None:
    page = show(viewport={"width": width, "height": 844}, has_touch=True)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_paper_and_no_script(show: Callable[..., Opened]) -> None:
    page = show(java_script_enabled=True, color_scheme="dark")
    page.page.emulate_media(media="print")
    assert page.page.locator("nav:visible").count() == 0 and page.page.locator("svg:visible").count() == 2
    assert page.page.locator("script").count() == 0
