"""A person sets up the nightly training by clicks and restarts `make ui`: it stays set up, and trains what was said."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from crl.run.directory import RunDirectory
from tests.browser.conftest import OpenUi
from tests.browser.screen import BUSY, Screen
from tests.browser.test_buttons import succeeds
from tests.flows.test_parameters import UNTOUCHED
from tests.processes import client_of, wait_until
from tests.tiny_run import CONFIG, SETTINGS

pytestmark = pytest.mark.slow

NAME, SEED = "mine", 7


def test_what_a_person_has_set_up_survives_a_restart_and_trains(own_desk: OpenUi, screen: Screen) -> None:
    screen.open_deployment("nightly")
    choose_experiment(screen)
    screen.open_deployment("nightly")
    screen.turn_schedule(on=True)
    screen.add_schedule("0 14 * * *")
    screen.shows("At 02:00 PM")

    own_desk.stop_server()
    own_desk.start()
    assert "Traceback" not in own_desk.said()
    screen.open_deployment("nightly")
    for schedule in ("At 02:00 AM", "At 02:00 PM"):
        expect(screen.page.get_by_role("switch", name=f"toggle {schedule}")).to_have_attribute("aria-checked", "true")
    screen.shoot("restarted", 860)
    screen.page.get_by_role("tab", name="Parameters", exact=True).click()
    screen.shows(str(CONFIG), f'"name":"{NAME}"')
    screen.shoot("restarted-parameters", 560)

    # Nobody waits for two o'clock in a test: the schedule that the dialog made is of every minute.
    with client_of(own_desk.url) as client:
        deployment = client.get("/deployments/name/train/nightly").raise_for_status().json()
        (added,) = [each for each in deployment["schedules"] if each["slug"] is None]
        assert added["parameters"] == UNTOUCHED
        path = f"/deployments/{deployment['id']}/schedules/{added['id']}"
        every_minute = {"schedule": {"cron": "* * * * *", "timezone": "UTC"}}
        wait_until(lambda: succeeds(client, path, every_minute), "it is of every minute", every=1.0)
    wait_until(lambda: trained(own_desk), lambda: f"the schedule has trained: {own_desk.still_living()}", every=1.0)
    run = RunDirectory.open(own_desk.runs / NAME)
    assert run.method.seed == SEED and sorted(path.name for path in own_desk.runs.iterdir()) == [NAME]

    screen.open_deployment("nightly")
    switch = screen.page.get_by_role("switch", name="toggle Every minute")
    switch.click()
    expect(switch).to_have_attribute("aria-checked", "false")
    (run_id, *_) = [each["id"] for each in own_desk.flow_runs() if each["name"].startswith(f"{NAME}: ")]
    screen.open_run(run_id, "Logs")
    screen.shows("everything is as the deployment 'nightly' has it", f"experiment {NAME}: {CONFIG}")
    screen.shoot("scheduled-run", 860)


def choose_experiment(screen: Screen) -> None:
    """Edit of the deployment: another file, a name, a seed and, for a test, a short preparation."""
    screen.page.get_by_role("button", name="Open menu").first.click()
    screen.page.get_by_role("menuitem", name="Edit", exact=True).click()
    screen.page.get_by_label("name (Optional)", exact=True).fill(NAME)
    screen.choose(screen.page.locator("button", has_text="conf/quickstart.yaml"), str(CONFIG))
    screen.fill("method.seed", str(SEED))
    screen.write_json(-2, json.dumps(SETTINGS))
    while True:
        with screen.page.expect_response(re.compile(r"/deployments/[0-9a-f-]+$")) as saved:
            screen.page.get_by_role("button", name="Save", exact=True).click()
        if saved.value.status != BUSY:
            break
        screen.page.wait_for_timeout(1000)
    assert saved.value.ok, saved.value.text()


def trained(desk: OpenUi) -> bool:
    """Whether round 1 is complete."""
    path = desk.runs / NAME
    return path.is_dir() and RunDirectory.open(path).is_complete(1, "evaluate")
