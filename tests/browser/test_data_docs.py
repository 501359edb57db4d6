"""The Data Docs in Chromium: they ask for nothing but themselves, complain of nothing, and lead from page to page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config.load import load_experiment
from crl.report.data_docs import INDEX
from crl.report.page import write_report
from crl.run.directory import RunDirectory
from crl.validation.round import validate_rounds
from tests.browser.opened import Opened
from tests.unit.report.builder import build_run

pytestmark = pytest.mark.slow

TINY = Path(__file__).parents[2] / "conf" / "tiny.yaml"


def test_they_load_nothing_and_lead_from_page_to_page(browser: Any, tmp_path: Path) -> None:
    run = build_run(RunDirectory.create_or_open(load_experiment(TINY), tmp_path).path)
    validate_rounds(run)
    index = run / INDEX
    opened = Opened(browser.new_context().new_page(), write_report(run))
    opened.page.get_by_role("link", name="Data Docs", exact=True).click()
    assert opened.page.url == index.as_uri()
    opened.page.get_by_role("table", name="Validations").get_by_role("link").first.click()
    assert "/validations/rounds/" in opened.page.url
    opened.page.get_by_role("link", name="Show more info...").click()
    assert opened.page.get_by_text("Great Expectations Version").is_visible()
    opened.page.locator("a[href*='expectations/']").first.click()
    assert opened.page.locator("h1").inner_text().startswith("suite ")
    assert opened.asked and all(
        each.startswith("file://") and each.endswith(".html") for each in map(_bare, opened.asked)
    )
    assert opened.complaints == [] and opened.page.evaluate("window.violations") == []


def _bare(url: str) -> str:
    return url.partition("#")[0]
