"""The operator's walk: one experiment, from a form that is filled in wrong to two digests that are compared.

A form with a wrong value, a schedule that is edited in every dialog, a restart of `make ui` over a time that is missed,
a kill, Retry, an approval, a notification, a query. In between the run changes hands seven times; in the end it is, to
the last digest, the run that a command would have made in one go.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from crl.records import Approval
from crl.run.directory import RunDirectory
from tasks.artifacts import ROUNDS as ROUND_TABLE
from tests.browser.conftest import OpenUi
from tests.browser.screen import Screen
from tests.browser.test_buttons import PERSON, answered, paused_round, succeeds
from tests.processes import client_of, wait_until
from tests.tiny_run import CONFIG, SETTINGS, crl, crl_here, digests, train

pytestmark = pytest.mark.slow

NAME = "walked"
APPROVES = "method.recipe.approve_bank"


def test_an_operator_follows_every_message(own_desk: OpenUi, screen: Screen, tmp_path: Path) -> None:
    switch_on_notifications(screen)
    wrong = submit_a_wrong_setting(screen)
    assert screen.wait_for(wrong, "Failed", "Completed", "Crashed") == "Failed"
    screen.shows("BadInput", "method.sed")  # the field, as it was typed
    wait_until(lambda: "BadInput" in own_desk.said(), "the notification was printed by `make ui`", every=0.5)
    assert f"{own_desk.url}/" in own_desk.said(), "it links to the run"
    assert not (own_desk.runs / NAME).exists(), "nothing was begun"

    run_id = fill_in(screen)
    paused = paused_round(screen, own_desk, run_id, 1)
    while not answered(screen, paused, approve=True):
        screen.page.wait_for_timeout(1000)
    kill_and_retry(screen, own_desk, run_id)
    look_at_the_run(screen, own_desk, run_id, rounds=1)

    schedule_and_miss(screen, own_desk)
    compare(own_desk, tmp_path)


def submit_a_wrong_setting(screen: Screen) -> str:
    """A key that does not exist passes the form, and fails the run before any work."""
    open_train_form(screen, {**SETTINGS, "method.sed": 3})
    return screen.submit()


def open_train_form(screen: Screen, settings: dict[str, Any]) -> None:
    screen.open_form("train")
    screen.choose(screen.page.locator("button", has_text="conf/quickstart.yaml"), str(CONFIG))
    screen.write_json(0, json.dumps(settings))
    screen.fill("name", NAME)


def fill_in(screen: Screen) -> str:
    """The form, a number that is out of bounds first."""
    open_train_form(screen, {**SETTINGS, APPROVES: True})
    screen.fill("rounds", "0")
    screen.page.get_by_role("button", name="Submit").click()
    assert "1" in screen.field("rounds").evaluate("field => field.validationMessage")
    screen.fill("rounds", "1")
    return screen.submit()


def kill_and_retry(screen: Screen, desk: OpenUi, run_id: str) -> None:
    """SIGKILL to the run's process after a person decided: it is told as crashed, and Retry goes on."""
    run = RunDirectory.open(desk.runs / NAME)
    wait_until(lambda: run.is_complete(1, "consolidate"), "the approved bank is published", every=0.2)
    desk.kill_flow(run_id)
    assert screen.wait_for(run_id, "Crashed", "Completed", "Failed") == "Crashed"
    wait_until(lambda: "is Crashed" in desk.said(), "the notification was printed by `make ui`", every=0.5)
    screen.click_menu(run_id, "Retry").get_by_role("button", name="Retry", exact=True).click()
    assert screen.wait_for(run_id, "Completed", "Failed") == "Completed"


def look_at_the_run(screen: Screen, desk: OpenUi, run_id: str, rounds: int) -> None:
    """The page of the training run: results, report, head; its artifacts; a query of what it names."""
    screen.open_run(run_id)
    expect(screen.page.get_by_text(f"{NAME}: rounds 0–{rounds}").first).to_be_visible()
    text = str(desk.flow_run(run_id)["state"]["message"])
    assert "held-out success" in text and f"http://127.0.0.1:{desk.pages_port}/{NAME}/report.html" in text
    head = re.search(rf"Head after round {rounds}: ([0-9a-f]{{64}})", text)
    assert head is not None
    screen.page.get_by_role("tab", name="Details", exact=True).click()
    screen.shows(head[1])
    screen.shoot("walk-results", 860)
    screen.open_run(run_id, "Artifacts")
    screen.shows(f"{NAME}-{ROUND_TABLE}")
    screen.shoot("walk-artifacts", 860)
    runs = desk.runs
    assert "is that of round" in crl_here(runs, "verify", NAME, "--head", head[1]).stdout
    asked = "SELECT stage, decision, person FROM approvals"
    assert PERSON in crl_here(runs, "sql", NAME, asked, "--format", "csv").stdout


def switch_on_notifications(screen: Screen) -> None:
    """The switch of the example that tells of failures."""
    screen.open("/automations")
    cards = screen.page.locator("div").filter(has_text="crl: tell of failures (example)")
    switch = cards.filter(has=screen.page.get_by_role("switch")).last.get_by_role("switch")
    expect(switch).to_have_attribute("aria-checked", "false")
    switch.click()
    expect(switch).to_have_attribute("aria-checked", "true")


def schedule_and_miss(screen: Screen, desk: OpenUi) -> None:
    """The nightly training by clicks: its parameters, its schedule, one more schedule; a restart over a missed time."""
    screen.open_deployment("nightly")
    screen.page.get_by_role("button", name="Open menu").first.click()
    screen.page.get_by_role("menuitem", name="Edit", exact=True).click()
    screen.page.get_by_label("name (Optional)", exact=True).fill(NAME)
    screen.choose(screen.page.locator("button", has_text="conf/quickstart.yaml"), str(CONFIG))
    screen.write_json(-2, json.dumps({**SETTINGS, APPROVES: True, "runtime.approval_wait_seconds": 0}))
    with screen.page.expect_response(re.compile(r"/deployments/[0-9a-f-]+$")) as saved:
        screen.page.get_by_role("button", name="Save", exact=True).click()
    assert saved.value.ok, saved.value.text()
    screen.open_deployment("nightly")
    screen.turn_schedule(on=True)
    screen.add_schedule("0 14 * * *")
    screen.shows("At 02:00 PM")

    # Nobody waits for two o'clock in a test: the added schedule is of every minute, and the server is away at one.
    with client_of(desk.url) as client:
        deployment = client.get("/deployments/name/train/nightly").raise_for_status().json()
        (added,) = [each for each in deployment["schedules"] if each["slug"] is None]
        path = f"/deployments/{deployment['id']}/schedules/{added['id']}"
        every_minute = {"schedule": {"cron": "* * * * *", "timezone": "UTC"}}
        wait_until(lambda: succeeds(client, path, every_minute), "it is of every minute", every=1.0)
    run = RunDirectory.open(desk.runs / NAME)
    desk.stop_server()
    desk.start()
    wait_until(lambda: run.is_complete(2, "distill"), "the schedule goes on with the run", every=1.0)
    screen.open_deployment("nightly")
    screen.page.get_by_role("switch", name="toggle Every minute").click()
    # Without a wait it ended where a person decides; they do so in a terminal, and finish in the form.
    wait_until(
        lambda: "round 2 waits" in crl_here(desk.runs, "status", NAME).stdout, "it waits for a person", every=1.0
    )
    wait_until(lambda: "running" not in crl_here(desk.runs, "status", NAME).stdout, "nothing runs", every=1.0)
    crl_here(desk.runs, "approve", NAME, "--person", PERSON)
    resumed = resume_in_the_form(screen)
    assert screen.wait_for(resumed, "Completed", "Failed", "Crashed") == "Completed"


def resume_in_the_form(screen: Screen) -> str:
    """The run is in the list of the form, which shows no type of nothing."""
    screen.open_form("resume")
    assert "is type" not in screen.text()
    screen.choose(screen.page.locator("button", has_text=re.compile("^Select$")).first, NAME)
    screen.shoot("walk-resume", 1240)
    return screen.submit()


def compare(desk: OpenUi, tmp_path: Path) -> None:
    """The same by commands, undisturbed but for the two decisions: the digests of all stages are equal."""
    runs = tmp_path / "undisturbed"
    crl(runs, *train(2, name=NAME, method__recipe__approve_bank=True), code=6)
    for code in (6, 0):
        crl(runs, "approve", NAME, "--person", PERSON)
        crl(runs, "resume", NAME, code=code)
    ours, theirs = desk.runs / NAME, runs / NAME
    for path in (ours, theirs):
        decided = [RunDirectory.open(path).read(number, "approve", Approval).to_pylist() for number in (1, 2)]
        assert [row["person"] for rows in decided for row in rows] == [PERSON, PERSON]
    assert digests(ours) == digests(theirs)


def status(desk: OpenUi) -> str:
    """What `crl status` says."""
    return crl_here(desk.runs, "status", NAME).stdout
