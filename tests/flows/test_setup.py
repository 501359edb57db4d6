"""Set-up on a real server: what it makes, that it makes nothing twice."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from crl.errors import NoServer
from flows import command
from flows.setup import experiments, main
from tests.operate import Operation, operation
from tests.processes import free_port
from tests.tiny_run import ROOT

SETUP = [sys.executable, "-m", "flows.setup"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operation]:
    """A server on which set-up ran once; no worker."""
    with operation(tmp_path_factory.mktemp("setup"), worker=False) as made:
        yield made


def lines(server: Operation) -> list[str]:
    return server.command(SETUP).stdout.splitlines()


def automations(server: Operation) -> dict[str, dict]:
    return {each["name"]: each for each in server._post("/automations/filter", {})}


@pytest.mark.slow
def test_a_second_set_up_finds_everything_and_leaves_peoples_choices(server: Operation) -> None:
    before = automations(server)
    examples = {f"crl: tell of {what} (example)" for what in ("failures", "alarms", "collapse")}
    assert {name for name, each in before.items() if not each["enabled"]} == examples
    deployments = {each["name"]: each for each in server._post("/deployments/filter", {})}

    # Somebody switched an automation off, changed another, and switched the schedule on.
    silent, never = "crl: mark silent runs as crashed", "crl: mark runs that never began as crashed"
    changed = {key: before[never][key] for key in ("name", "description", "enabled", "trigger", "actions")}
    changed["trigger"]["within"] = 3000.0
    server._ask("PUT", f"/automations/{before[never]['id']}", changed)
    server._ask("PATCH", f"/automations/{before[silent]['id']}", {"enabled": False})

    # Somebody switched the nightly schedule on, at another time and for another experiment.
    nightly = server._get("/deployments/name/train/nightly")
    (schedule,) = nightly["schedules"]
    at_four = {"schedule": {"cron": "0 4 * * *", "timezone": "Europe/Berlin"}, "active": True}
    server._ask("PATCH", f"/deployments/{nightly['id']}/schedules/{schedule['id']}", at_four)
    chosen = {"experiment": "conf/tiny.yaml", "rounds": 2}
    server._ask("PATCH", f"/deployments/{nightly['id']}", {"parameters": chosen})

    said = lines(server)
    assert [line for line in said if silent in line] == [f"automation    {silent}: found, off"]
    assert [line for line in said if never in line] == [f"automation    {never}: updated, on"]
    assert "work pool     crl: found" in said
    assert any("; made 0" in line for line in said if line.startswith("limits"))
    after = automations(server)
    assert {name: each["id"] for name, each in after.items()} == {name: each["id"] for name, each in before.items()}
    assert after[never]["trigger"]["within"] == 600.0 and not after[silent]["enabled"]
    again = {each["name"]: each["id"] for each in server._post("/deployments/filter", {})}
    assert again == {name: each["id"] for name, each in deployments.items()}
    now = server._get("/deployments/name/train/nightly")
    assert now["parameters"] == chosen
    assert [(each["active"], each["schedule"]["cron"], each["slug"]) for each in now["schedules"]] == [
        (True, "0 4 * * *", "nightly")
    ]
    assert [line for line in said if "train/nightly" in line] == ["deployment    train/nightly: found"]

    # Back to the file.
    server._ask("PATCH", f"/automations/{before[silent]['id']}", {"enabled": True})
    server._ask("PATCH", f"/deployments/{nightly['id']}", {"parameters": nightly["parameters"]})
    back = {"schedule": schedule["schedule"], "active": schedule["active"]}
    server._ask("PATCH", f"/deployments/{nightly['id']}/schedules/{now['schedules'][0]['id']}", back)


@pytest.mark.slow
def test_what_is_deployed(server: Operation) -> None:
    for deployment in server._post("/deployments/filter", {}):
        assert deployment["work_pool_name"] == "crl"
        assert deployment["description"]
        assert deployment["job_variables"] == {}
        assert deployment["pull_steps"] == [
            {"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}
        ]
    (schedule,) = server._get("/deployments/name/train/nightly")["schedules"]
    assert not schedule["active"] and schedule["schedule"]["cron"] == "0 2 * * *"
    assert server._get("/work_pools/crl")["type"] == "process"
    for name in ("quickstart", "tiny"):
        assert server.limit(name)["limit"] == 1 and server.limit(name)["active"]


@pytest.mark.slow
def test_plain_deploy_on_a_terminal_asks_nothing(server: Operation) -> None:
    """As a person types it: with a terminal, where Prefect would ask about storage, schedules and the like."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "prefect", "deploy", "--all"], cwd=ROOT, env=server.environment,
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    ) as process:  # fmt: skip
        os.close(terminal)
        said = bytearray()
        while True:
            try:
                said += os.read(controller, 4096)
            except OSError:  # the other end is closed: the command has ended
                break
            if b"?" in said and b"[y/n]" in said:
                process.kill()
        assert process.wait() == 0, said.decode(errors="replace")[-3000:]
    os.close(controller)
    assert said.count(b"successfully created") == (ROOT / "prefect.yaml").read_text().count("- name:") > 0


@pytest.mark.slow
def test_a_folder_among_the_runs_that_is_no_experiment_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine", "mine & a copy"):
        tmp_path.joinpath(name).mkdir()
    monkeypatch.setenv("CRL_RUNS", str(tmp_path))
    monkeypatch.setattr("crl.run.find.is_run", lambda path: True)
    found = experiments()
    assert "mine" in found and "mine & a copy" not in found, "Prefect takes no such name"


def test_without_a_server_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = {PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}
    for settings in ({"restore_defaults": [PREFECT_API_URL]}, {"updates": nobody}):
        with temporary_settings(**settings):
            assert main([]) == 2
        said = capsys.readouterr().err
        assert "crl ui" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("path", "status", "body", "hint"),
    [("", 200, "<html>the UI</html>", "which ends in /api"), ("/api", 401, "{}", "PREFECT_API_AUTH_STRING")],
)
def test_a_server_that_answers_otherwise_is_no_server(
    capsys: pytest.CaptureFixture[str], path: str, status: int, body: str, hint: str
) -> None:
    """The page of the UI where `/api` was forgotten; a server with a password, which asks for none at `/health`."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            healthy = self.path == "/api/health"
            self.send_response(200 if healthy else status)
            self.end_headers()
            self.wfile.write(b"true" if healthy else body.encode())

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}{path}"}):
            assert main([]) == 2 and hint in capsys.readouterr().err
            with pytest.raises(NoServer) as refused:
                command._register("x")
            assert hint in str(refused.value)
        server.shutdown()
