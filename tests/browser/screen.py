"""A person in front of Prefect's UI: opens pages, fills in forms, clicks; every request and error is remembered.

What is found by its text is what the second UI of Prefect 3.8 shows. Nothing here asks the server behind its back.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image
from playwright.sync_api import Locator, Page, Request, Response, expect

from tests.processes import PATIENCE_SECONDS, wait_until

LOOPBACK = ("127.0.0.1", "localhost", "")
"""Hosts that a page may ask; a `data:` or `blob:` address has none."""
LARGEST_PICTURE = 150_000
"""Bytes of a screenshot: they lie in the repository."""
WIDTH, HEIGHT = 1280, 860
BUSY = 503
LOOK_SECONDS = 3.0
"""From one look at a run's page to the next: each loads Prefect's UI again, half a second of a processor."""


class Screen:
    """One tab.

    Args:
        page: the tab.
        url: address of the UI.
        pictures: directory for screenshots.
    """

    def __init__(self, page: Page, url: str, pictures: Path) -> None:
        self.page, self.url, self.pictures = page, url, pictures
        self.asked: list[str] = []
        self.errors: list[str] = []
        page.on("request", self._remember)
        page.on("pageerror", lambda error: self.errors.append(f"{page.url}: {error}"))
        page.on("response", self._answered)
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        expect.set_options(timeout=PATIENCE_SECONDS * 1000)

    def _remember(self, request: Request) -> None:
        self.asked.append(request.url)

    def _answered(self, response: Response) -> None:
        if response.status >= 500 and response.status != BUSY:
            self.errors.append(f"{response.status} {response.request.method} {response.url}")

    def strangers(self) -> list[str]:
        """Addresses that were asked and are not on this machine."""
        return sorted({each for each in self.asked if (urlsplit(each).hostname or "") not in LOOPBACK})

    # -- places ----------------------------------------------------------------------------------------------------

    def open(self, path: str) -> None:
        """A page of the UI, `/runs` for instance."""
        self.page.goto(f"{self.url}/v2{path}")

    def open_deployment(self, name: str) -> None:
        """From the list of deployments, by its name."""
        self.open("/deployments")
        # A flow of the same name stands beside it.
        links = self.page.locator("a[href*='/deployments/deployment/']")
        links.filter(has_text=re.compile(rf"^{re.escape(name)}$")).first.click()
        expect(self.page.get_by_role("button", name="Run", exact=True)).to_be_visible()

    def open_run(self, run_id: str, tab: str | None = None) -> None:
        """A flow run's page, and one of its tabs."""
        self.open(f"/runs/flow-run/{run_id}")
        if tab is not None:
            self.page.get_by_role("tab", name=tab, exact=True).click()

    def turn_schedule(self, *, on: bool) -> None:
        """Click the switch beside the schedule of a deployment's page; again where a busy server answers 503."""
        switch = self.page.get_by_role("switch").first
        expect(switch).to_have_attribute("aria-checked", str(not on).lower())
        while True:
            with self.page.expect_response(_of_schedule) as answered:
                switch.click()
            if answered.value.status != BUSY:
                break
            self.page.wait_for_timeout(1000)
        expect(switch).to_have_attribute("aria-checked", str(on).lower())

    def add_schedule(self, cron: str) -> None:
        """+ Schedule on a deployment's page: Cron, its value, Save; again where a busy server answers 503."""
        while True:
            self.page.get_by_role("button", name="Schedule", exact=True).click()
            dialog = self.page.get_by_role("dialog")
            dialog.get_by_role("tab", name="Cron").click()
            dialog.get_by_label("Value").fill(cron)
            dialog.locator(".cm-content").wait_for()  # of `overrides`, the last field to appear
            with self.page.expect_response(_of_schedule) as answered:
                dialog.get_by_role("button", name="Save").click()
            dialog.wait_for(state="hidden")
            if answered.value.status != BUSY:
                break
        assert answered.value.status == 201, answered.value.text()

    # -- a run's form ----------------------------------------------------------------------------------------------

    def open_form(self, deployment: str) -> None:
        """Run > Custom run of a deployment."""
        self.open_deployment(deployment)
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Custom run").click()
        expect(self.page.get_by_role("heading", name="Parameters")).to_be_visible()

    def field(self, label: str) -> Locator:
        """A field of the form by its label."""
        return self.page.get_by_label(re.compile(rf"^{re.escape(label)}( \(Optional\))?$")).first

    def fill(self, label: str, value: str) -> None:
        """Type into a field."""
        self.field(label).fill(value)

    def write_json(self, number: int, text: str) -> None:
        """Replace what stands in a JSON editor of the form, counted from 0."""
        editor = self.page.locator(".cm-content").nth(number)
        editor.click()
        self.page.keyboard.press("Control+a")
        # Typed, the editor would close each bracket itself.
        self.page.keyboard.insert_text(text)

    def choose(self, box: Locator, option: str) -> None:
        """Choose in a select box."""
        box.click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def submit(self) -> str:
        """Submit a form that is right; returns the id of the flow run.

        A server on SQLite that is busy may answer 503 and ask to try again, which a person does.
        """
        while True:
            with self.page.expect_response(lambda answer: answer.url.endswith("/create_flow_run")) as made:
                self.page.get_by_role("button", name="Submit").click()
            if made.value.status != BUSY:
                break
            self.page.wait_for_timeout(1000)
        assert made.value.status == 201, f"{made.value.status}: {made.value.text()}"
        return str(made.value.json()["id"])

    # -- a run -----------------------------------------------------------------------------------------------------

    def state(self, run_id: str) -> str:
        """The state that the run's page shows."""
        self.open_run(run_id)
        badge = self.page.locator("span", has_text=_STATE).first
        badge.wait_for()
        return badge.inner_text()

    def wait_for(self, run_id: str, *states: str) -> str:
        """Look at the run's page until it shows one of the states."""
        seen: list[str] = []

        def reached() -> bool:
            seen.append(self.state(run_id))
            return seen[-1] in states

        wait_until(reached, lambda: f"the run is {states}; it is {seen[-1]}: {self.text()[-3000:]}", every=LOOK_SECONDS)
        return seen[-1]

    def click_menu(self, run_id: str, entry: str) -> Locator:
        """An entry of the run's menu; returns the dialog that opens."""
        self.open_run(run_id)
        self.page.get_by_role("button", name="Open menu").first.click()
        self.page.get_by_role("menuitem", name=entry, exact=True).click()
        dialog = self.page.get_by_role("dialog").or_(self.page.get_by_role("alertdialog"))
        dialog.wait_for()
        return dialog

    def text(self) -> str:
        """All that the page shows."""
        return self.page.locator("body").inner_text()

    def shows(self, *texts: str) -> None:
        """The page shows these texts, at once or soon."""
        for text in texts:
            expect(self.page.get_by_text(text).first).to_be_visible()

    def height(self) -> int:
        """Pixels from top to bottom of the page, whichever part of it scrolls."""
        found: int = self.page.evaluate("Math.max(...[...document.querySelectorAll('*')].map(e => e.scrollHeight))")
        return found

    def broken_pictures(self) -> list[str]:
        """Pictures of the page that the browser could not draw."""
        self.page.wait_for_function("[...document.querySelectorAll('img')].every(i => i.complete)")
        found: list[dict[str, Any]] = self.page.evaluate(
            "[...document.querySelectorAll('img')].map(i => ({address: i.src.slice(0, 60), width: i.naturalWidth}))"
        )
        return [each["address"] for each in found if not each["width"]]

    # -- pictures --------------------------------------------------------------------------------------------------

    def shoot(self, name: str, height: int = HEIGHT) -> Path:
        """A screenshot with few colors, as `name`.png; returns where it lies. Nothing of the tests may be in it."""
        shown = self.page.locator("body").inner_text()
        assert not re.search(r"\btests\.|mishap|the test", shown), f"{name}: {shown}"
        self.page.set_viewport_size({"width": WIDTH, "height": height})
        # Toasts come and go; the pointer must not hover over anything.
        self.page.mouse.move(0, 0)
        self.page.wait_for_timeout(600)
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        path = self.pictures / f"{name}.png"
        picture.quantize(colors=96, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
        assert path.stat().st_size <= LARGEST_PICTURE, f"{path}: {path.stat().st_size} bytes"
        self.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        return path


_STATE = re.compile(
    "^(Scheduled|Late|AwaitingRetry|AwaitingConcurrencySlot|Resuming|Pending|Submitting|InfrastructurePending|"
    "Running|Retrying|Paused|Suspended|Awaiting approval|Completed|Cached|RolledBack|Failed|TimedOut|Crashed|"
    "Cancelling|Cancelled)$"
)


def _of_schedule(answer: Response) -> bool:
    """Whether an answer is about a new schedule, or a change of one."""
    return answer.request.method in ("POST", "PATCH") and "/schedules" in answer.url
