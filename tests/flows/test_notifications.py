"""Notifications on a real server: told at once, of a scheduled run too, and of what our own events say; no phantoms."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from flows.automations import WEBHOOK
from tasks.events import ALARM, EXPERIMENT
from tests.operate import Operation, operation
from tests.processes import scaled, wait_until

pytestmark = pytest.mark.slow

SOON_SECONDS = 60
"""A notification that Prefect holds back comes after 15 minutes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operation]:
    """A server on which set-up ran; no worker."""
    with operation(tmp_path_factory.mktemp("notifications"), worker=False) as made:
        yield made


@pytest.fixture(scope="module")
def told(server: Operation) -> Iterator[list[dict[str, Any]]]:
    """What arrives at the address of every example; all of them are switched on."""
    arrived: list[dict[str, Any]] = []

    class Listens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            arrived.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Listens) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        blocks = {each["name"]: each for each in server._post("/block_documents/filter", {"include_secrets": True})}
        data = {**blocks[WEBHOOK]["data"], "url": f"http://127.0.0.1:{listener.server_port}/"}
        server._ask("PATCH", f"/block_documents/{blocks[WEBHOOK]['id']}", {"data": data})
        for each in server._post("/automations/filter", {}):
            if "(example)" in each["name"]:
                kept = {key: each[key] for key in ("name", "description", "trigger", "actions")}
                kept["actions"][0]["block_document_id"] = blocks[WEBHOOK]["id"]
                server._ask("PUT", f"/automations/{each['id']}", {**kept, "enabled": True})
        yield arrived
        listener.shutdown()


def test_a_scheduled_run_that_fails_at_once_is_told_at_once(server: Operation, told: list[dict[str, Any]]) -> None:
    """Its first state is one that the scheduler inserted: no event says so, and Prefect would wait for that event."""
    deployment = server._get("/deployments/name/train/nightly")
    anchor = datetime.now(UTC).isoformat()
    schedule = {"schedule": {"interval": 60, "anchor_date": anchor}, "active": True}
    server._post(f"/deployments/{deployment['id']}/schedules", [schedule])
    wanted = {"flow_runs": {"deployment_id": {"any_": [deployment["id"]]}}}
    wait_until(lambda: server._post("/flow_runs/filter", wanted), "a run is scheduled", every=0.5)
    run = server._post("/flow_runs/filter", wanted)[0]
    assert run["auto_scheduled"] and run["state_type"] == "SCHEDULED"
    failed_at = time.monotonic()
    for state in ({"type": "PENDING"}, {"type": "RUNNING"}, {"type": "FAILED", "message": "BadInput: no such file"}):
        server._post(f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
    wait_until(lambda: any("no such file" in each["body"] for each in told), "somebody was told", every=0.2)
    assert time.monotonic() - failed_at < scaled(SOON_SECONDS)
    (message,) = [each for each in told if "no such file" in each["body"]]
    assert run["name"] in message["subject"] and run["id"] in message["body"]


def test_an_alarm_and_a_collapse_are_told_with_the_head(server: Operation, told: list[dict[str, Any]]) -> None:
    def event(metric: str) -> dict[str, Any]:
        payload = {"experiment": "mine", "round": 3, "alarm": f"{metric} is out of bounds", "head": "a" * 64}
        return {
            "id": str(uuid4()), "occurred": datetime.now(UTC).isoformat(), "event": ALARM,
            "resource": {"prefect.resource.id": f"{EXPERIMENT}.mine", "crl.metric": metric},
            "payload": {**payload, "report": "http://127.0.0.1:4201/mine/report.html"},
        }  # fmt: skip

    server._ask("POST", "/events", [event("outputs_cut"), event("collapsed")])
    wait_until(lambda: len([each for each in told if "mine" in each["subject"]]) == 3, lambda: str(told), every=0.2)
    subjects = sorted(each["subject"] for each in told if "mine" in each["subject"])
    assert subjects == ["mine has collapsed in round 3", *["mine, round 3: alarm"] * 2]
    assert all("a" * 64 in each["body"] and "report.html" in each["body"] for each in told if "mine" in each["subject"])


def test_only_a_crash_starts_tidy(server: Operation, tmp_path: Path) -> None:
    starting = [
        each
        for each in server._post("/automations/filter", {})
        if any(action["type"] == "run-deployment" for action in each["actions"])
    ]
    assert [each["trigger"]["posture"] for each in starting] == ["Reactive"]
    assert starting[0]["trigger"]["expect"] == ["prefect.flow-run.Crashed"]
