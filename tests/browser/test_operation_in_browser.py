"""From the form to the report: a person trains two rounds in the UI and looks at everything they left."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from crl.config.keys import FIRST_KEYS
from crl.run.directory import RunDirectory
from tasks.artifacts import BANK_DIFF, CURVE, DATA_CHECKS, KINDS, REPORT_LINK, artifact_key
from tasks.artifacts import ROUNDS as ROUND_TABLE
from tests.browser.conftest import OpenUi
from tests.browser.screen import Screen
from tests.processes import scaled
from tests.tiny_run import CONFIG, NAME, ROUNDS, SETTINGS, digests

pytestmark = pytest.mark.slow

READY_SECONDS = 90
"""`make ui` is ready within this time after installation."""
FORM_HEIGHT = 2600
"""Pixels of the form of `train` at most: with every field of an experiment open it had 22,400."""
CHILD_LINE = re.compile(r"^[\w-]+ \| \[.*\] \[INFO\] ")
"""A line that DeepSpeed, in a child process, wrote: `actor | [2026-11-20 …] [INFO] …`."""


SHOWN = {
    ROUND_TABLE: (f"Rounds of {NAME}", f"Seconds of round {ROUNDS}"),
    CURVE: (f"Learning curve of {NAME}",),
    BANK_DIFF: (f"Bank after round {ROUNDS}", "Added"),
    DATA_CHECKS: (f"Data checks of round {ROUNDS}: passed",),
    REPORT_LINK: (f"Report of {NAME}", "Open the report"),
}
"""Texts of the newest version of each artifact."""


def test_two_rounds_are_trained_from_the_form_and_looked_at(screen: Screen, desk: OpenUi) -> None:
    assert 0 <= desk.ready_seconds < scaled(READY_SECONDS)
    screen.open("/deployments")
    screen.shows("train", "nightly", "resume", "evaluate")
    screen.shoot("deployments", 560)

    run_id = fill_in_and_start(screen)
    screen.wait_for(run_id, "Running", "Completed")
    assert screen.wait_for(run_id, "Completed", "Failed", "Crashed") == "Completed"

    look_at_rounds(screen, run_id)
    look_at_artifacts(screen, desk)

    # What the UI shows as done is what the record says.
    run = RunDirectory.open(desk.runs / NAME)
    assert run.rounds() == list(range(ROUNDS + 1)) and digests(run.path)


def fill_in_and_start(screen: Screen) -> str:
    """The form: a file of conf/, some keys that differ, and a wrong number first. Returns the flow run's id."""
    screen.open_form("train")
    screen.field(FIRST_KEYS[-1]).wait_for()
    assert screen.height() < FORM_HEIGHT
    screen.choose(screen.page.locator("button", has_text="conf/quickstart.yaml"), str(CONFIG))
    # Nothing breaks here: the recipe is the file's own.
    screen.write_json(0, json.dumps({key: value for key, value in SETTINGS.items() if key != "method.recipe.kind"}))

    screen.fill("name", NAME)

    screen.fill("rounds", "0")
    screen.page.get_by_role("button", name="Submit").click()
    assert "1" in screen.field("rounds").evaluate("field => field.validationMessage")
    assert not [each for each in screen.asked if each.endswith("/create_flow_run")]

    screen.fill("rounds", str(ROUNDS))
    screen.shoot("form", 2400)
    return screen.submit()


def look_at_rounds(screen: Screen, run_id: str) -> None:
    """Rounds as child runs, stages as their tasks, each with its log lines, those of child processes too."""
    screen.open_run(run_id, "Subflow Runs")
    screen.shows(*(f"round {number} of {NAME}" for number in range(ROUNDS + 1)))
    screen.page.wait_for_timeout(1500)  # the graph is drawn
    screen.shoot("run")

    screen.page.get_by_role("link", name=f"round {ROUNDS} of {NAME}", exact=True).click()
    screen.page.get_by_role("tab", name="Task Runs", exact=True).click()
    for stage in ("plan", "collect", "distill", "consolidate", "credit", "update_actor", "update_extractor", "health"):
        screen.shows(stage)
    screen.shoot("round")

    screen.page.get_by_role("link", name="update_extractor", exact=True).click()
    screen.page.get_by_role("tab", name="Logs", exact=True).click()
    expect(screen.page.get_by_text(CHILD_LINE).first).to_be_visible()
    screen.shoot("stage")
    # Only the lines in sight are part of the page.
    screen.choose(screen.page.get_by_label("log sort order"), "Newest to oldest")
    screen.shows("update_extractor: done in")


def look_at_artifacts(screen: Screen, desk: OpenUi) -> None:
    """Every artifact of the list is opened and shows what its kind promises; the report's link leads to its page."""
    screen.open("/artifacts")
    links = screen.page.locator("a[href*='/artifacts/key/']")
    links.first.wait_for()
    found = {str(link.get_attribute("href")).rpartition("/")[2] for link in links.all()}
    assert found >= {artifact_key(NAME, kind) for kind in KINDS}  # other tests leave others
    for kind in KINDS:
        screen.open(f"/artifacts/key/{artifact_key(NAME, kind)}")
        # One key keeps the history: every round has its version, the newest first.
        versions = screen.page.locator("a[href*='/artifacts/artifact/']")
        versions.first.wait_for()
        assert versions.count() > ROUNDS, kind
        versions.first.click()
        screen.shows(*SHOWN[kind])
        if kind == CURVE:
            expect(screen.page.locator("img").first).to_be_visible()
        assert screen.broken_pictures() == [], kind
        if kind in (ROUND_TABLE, CURVE, BANK_DIFF):
            screen.shoot(f"artifact-{kind}")

    screen.page.get_by_role("link", name="Open the report").click()
    expect(screen.page).to_have_url(f"http://127.0.0.1:{desk.pages_port}/{NAME}/report.html")
    screen.shows(NAME)
    assert screen.broken_pictures() == []
