"""Retry, Cancel, the approval form and the schedule's switch, pressed by a person in the UI.

The stages, digests and journals that each run must leave are those of the faults under a server: `tests/faults`.
"""

from __future__ import annotations

import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import TimeoutError as NotShown
from playwright.sync_api import expect

from crl.records import Approval
from crl.run.directory import RunDirectory
from tests.browser.conftest import OpenUi
from tests.browser.screen import LOOK_SECONDS, Screen
from tests.faults.segments import SAID, Fault, Segment, Way
from tests.operate import as_parameter, copy_run
from tests.processes import client_of, scaled, wait_until
from tests.tiny_run import ROUNDS, digests, experiment

pytestmark = pytest.mark.slow

CANCEL_SECONDS = 10.0
"""After Cancel no child process lives any longer than that."""
PERSON = "Ada Lovelace"
SHOWN_MILLISECONDS = 30_000
"""How long a list is waited for before the page is opened again: it does not tell of child runs that come later."""


@pytest.mark.parametrize(("fault", "place"), [(Fault.exception, "0002/distill"), (Fault.hang, "0002/collect")])
def test_the_retry_button_continues_at_the_failed_stage(
    screen: Screen, desk: OpenUi, finished: Path, fault: Fault, place: str
) -> None:
    with Segment(desk, finished, fault, Way.retry, (place,)).prepared() as segment:
        segment.begin()
        segment.wait_reached()
        segment.wait_dead()
        segment.look()

        # Why it failed stands where the run is shown.
        assert screen.state(segment.run_id) == "Failed"
        screen.page.get_by_role("tab", name="Details", exact=True).click()
        expect(screen.page.get_by_text(re.compile(SAID[fault])).first).to_be_visible()
        if fault is Fault.hang:  # the other one is an exception of the tests
            screen.shoot("failed", 1240)

        screen.click_menu(segment.run_id, "Retry").get_by_role("button", name="Retry", exact=True).click()
        screen.wait_for(segment.run_id, "Completed")
        segment.arrive()
        screen.open_run(segment.run_id, "Subflow Runs")
        screen.shows(f"round {ROUNDS}")
        screen.page.wait_for_timeout(1500)  # the graph is drawn
        if fault is Fault.hang:
            screen.shoot("retried")


def test_cancel_ends_every_process_at_once_and_resume_finishes(screen: Screen, desk: OpenUi, finished: Path) -> None:
    with Segment(desk, finished, Fault.flow, Way.retry, ("0002/collect",)).prepared() as segment:
        segment.begin()
        segment.wait_reached()
        dialog = screen.click_menu(segment.run_id, "Cancel")
        button = dialog.get_by_role("button", name="Cancel Flow Run")
        began = time.monotonic()
        button.click()
        wait_until(lambda: not desk.flow_processes(segment.run_id), "no process of the flow run lives")
        took = time.monotonic() - began
        assert took <= scaled(CANCEL_SECONDS), f"processes lived {took:.1f} s after Cancel"
        assert screen.wait_for(segment.run_id, "Cancelled", "Failed", "Crashed") == "Cancelled"
        segment.look()

        screen.open_form("resume")
        screen.page.get_by_text("Another path", exact=True).click()
        screen.page.locator("textarea").first.fill(segment.name)
        screen.shoot("resume", 560)
        resumed = screen.submit()
        assert screen.wait_for(resumed, "Completed", "Failed", "Crashed") == "Completed"
        assert digests(segment.path) == digests(finished)


def test_a_person_approves_a_bank_and_rejects_the_next(screen: Screen, desk: OpenUi) -> None:
    settings = experiment(name="approved", method__recipe__approve_bank=True)
    parameters = {"experiment": as_parameter(settings), "rounds": 2}
    run_id = desk.run("train/train", parameters)
    path = desk.runs / "approved"

    for number, approve in ((1, True), (2, False)):
        paused = paused_round(screen, desk, run_id, number)
        assert not RunDirectory.open(path).is_complete(number, "consolidate")
        while not answered(screen, paused, approve=approve):
            screen.page.wait_for_timeout(1000)
    assert screen.wait_for(run_id, "Completed", "Failed", "Crashed") == "Completed"

    decided = [RunDirectory.open(path).read(number, "approve", Approval).to_pylist()[0] for number in (1, 2)]
    assert [each["decision"] for each in decided] == ["approved", "rejected"]
    assert {each["person"] for each in decided} == {PERSON}


def answered(screen: Screen, paused: str, *, approve: bool) -> bool:
    """Fill in the form of a paused round and send it; False where a busy server did not take the answer."""
    dialog = screen.click_menu(paused, "Resume")
    person = dialog.get_by_label(re.compile("^person", re.IGNORECASE)).first
    expect(person).to_be_visible()
    if approve:
        screen.shoot("approval", 1000)
    else:
        dialog.get_by_role("switch").first.click()
    person.fill(PERSON)
    # Whoever leaves the page at once takes the answer along.
    with screen.page.expect_response(lambda answer: answer.url.endswith("/resume")) as sent:
        dialog.get_by_role("button", name="Resume", exact=True).click()
    # Where SQLite is locked by another writer, Prefect accepts the request and aborts the transition.
    return sent.value.ok and sent.value.json()["status"] == "ACCEPT"


def paused_round(screen: Screen, desk: OpenUi, run_id: str, number: int) -> str:
    """Wait until a round's child run is paused; returns its id, which the list of child runs links to."""
    found: list[str] = []

    def paused() -> bool:
        screen.open_run(run_id, "Subflow Runs")
        link = screen.page.get_by_role("link", name=re.compile(rf"^round {number} of ")).first
        try:
            link.wait_for(timeout=SHOWN_MILLISECONDS)
        except NotShown:
            return False
        found.append(str(link.get_attribute("href")).rpartition("/")[2])
        return screen.state(found[-1]) == "Paused"

    wait_until(paused, f"round {number} is paused", every=LOOK_SECONDS)
    return found[-1]


def test_a_schedule_switched_on_trains_the_next_round(screen: Screen, desk: OpenUi, finished: Path) -> None:
    copy_run(finished, desk.runs, "scheduled")
    desk.add_limit("scheduled")
    screen.open_deployment("nightly")
    screen.shows("At 02:00 AM")
    screen.shoot("nightly", 560)
    with client_of(desk.url) as client:
        deployment = client.get("/deployments/name/train/nightly").raise_for_status().json()
        (schedule,) = deployment["schedules"]
        assert schedule["active"] is False
        path = f"/deployments/{deployment['id']}"
        # Nobody waits for the night in a test.
        every_minute = {"schedule": {"cron": "* * * * *", "timezone": "UTC"}}
        parameters = {"parameters": {"experiment": as_parameter(experiment(name="scheduled")), "rounds": 1}}
        for where, body in ((path, parameters), (f"{path}/schedules/{schedule['id']}", every_minute)):
            # A server on SQLite that is busy answers 503 and means: again.
            wait_until(partial(succeeds, client, where, body), f"PATCH {where} succeeds", every=1.0)

    screen.open_deployment("nightly")
    screen.turn_schedule(on=True)

    run = RunDirectory.open(desk.runs / "scheduled")
    wait_until(
        lambda: run.rounds()[-1] > ROUNDS and run.is_complete(ROUNDS + 1, "evaluate"),
        "the schedule has trained the next round",
        every=1.0,
    )
    screen.open_deployment("nightly")
    screen.turn_schedule(on=False)


def succeeds(client: httpx.Client, path: str, body: dict[str, Any]) -> bool:
    """Change something on the server; says whether it was changed."""
    return client.patch(path, json=body).is_success
