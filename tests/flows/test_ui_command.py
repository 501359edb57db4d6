"""`make ui` as typed: ready, pages, Ctrl-C; what happens when a part of it dies, or all of it at once."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from crl.cli import main
from flows.ui import DevServer, SetupFailed, Stop, mark_stopped
from tests.asking import ask_patiently, open_pool
from tests.listening import Listening
from tests.operate import FLOW_RUN, MARK, as_parameter
from tests.processes import (
    PATIENCE_SECONDS,
    as_in_a_terminal,
    as_in_the_background,
    client_of,
    command_line,
    environ,
    free_port,
    kill,
    wait_until,
)
from tests.tiny_run import ROOT, environment
from tests.unit.engine.harness import make_experiment


class Ui:
    """A running `crl ui` on ports and a home of its own."""

    def __init__(
        self, folder: Path, *arguments: str, background: bool = False, extra: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.mark = secrets.token_hex(8)
        inherited = {
            name: text for name, text in environment(folder / "runs").items() if not name.startswith("PREFECT")
        }
        variables = {"PREFECT_HOME": str(folder / "home"), "PREFECT_WORKER_QUERY_SECONDS": "1"}
        self.port = self._two_ports()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = folder / "screen.txt"
        with self.output.open("ab") as screen, as_in_the_background() if background else as_in_a_terminal():
            self.process = subprocess.Popen(
                [sys.executable, "-m", "crl", "ui", "--port", str(self.port), *arguments],
                cwd=ROOT, env={**inherited, **variables, **(extra or {}), MARK: self.mark}, stdin=subprocess.DEVNULL,
                stdout=screen, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.http = client_of(self.url)

    def _two_ports(self) -> int:
        while True:
            port = free_port()
            with socket.socket() as following, contextlib.suppress(OSError):
                following.bind(("127.0.0.1", port + 1))
                return port

    def screen(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_ready(self, times: int = 1) -> None:
        ended = lambda: self.process.poll() is not None  # noqa: E731
        wait_until(lambda: self.screen().count("Ready after") == times or ended(), self.screen)
        assert not ended(), self.screen()

    def processes(self, which: Callable[[psutil.Process], bool] = lambda process: True) -> list[psutil.Process]:
        marked = [each for each in psutil.process_iter() if environ(each).get(MARK) == self.mark]
        return [each for each in marked if which(each)]

    def part(self, word: str) -> list[psutil.Process]:
        """The processes of the server or the worker, not what they started."""
        return self.processes(lambda each: word in " ".join(command_line(each)) and FLOW_RUN not in environ(each))

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)  # as a terminal does
        return self.process.wait(PATIENCE_SECONDS)

    def begin_training(self, marker: Path) -> str:
        """A training run that has got as far as to sleep in the first stage of round 1."""
        mishap = {"draw": ["sleep_once", str(marker)]}
        run = self.begin({"experiment": as_parameter(make_experiment()), "rounds": 1}, CRL_FAKE=json.dumps(mishap))
        wait_until(marker.exists, "the stage is under way")
        return run

    def begin(self, parameters: dict, **variables: str) -> str:
        """Custom run of train/train."""
        if variables:
            open_pool(self.http)
        deployment = self.ask("GET", "/deployments/name/train/train")["id"]
        body = {"parameters": parameters, **({"job_variables": {"env": variables}} if variables else {})}
        return self.ask("POST", f"/deployments/{deployment}/create_flow_run", body)["id"]

    def ask(self, method: str, path: str, body: dict | None = None) -> Any:
        answer = ask_patiently(self.http, method, path, body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def state(self, run: str) -> dict:
        return self.ask("GET", f"/flow_runs/{run}")["state"]

    def nothing_is_left(self) -> None:
        wait_until(lambda: not self.processes(), lambda: str([command_line(p) for p in self.processes()]), 30)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        kill(self.processes())
        self.http.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Ui]]:
    started: list[Ui] = []

    def begin(*arguments: str, **more: Any) -> Ui:
        started.append(Ui(tmp_path, *arguments, **more))
        return started[-1]

    yield begin
    for ui in started:
        ui.end()


@pytest.mark.slow
def test_ready_a_part_that_dies_and_ctrl_c(start, tmp_path: Path) -> None:
    ui = start()
    ui.wait_ready()
    for word in (ui.url, f"127.0.0.1:{ui.port + 1}", str(tmp_path / "home"), "Ctrl-C", "export PREFECT_API_URL="):
        assert word in ui.screen()
    page = httpx.get(ui.url, follow_redirects=True, timeout=PATIENCE_SECONDS)
    assert page.status_code == 200 and page.headers["content-security-policy"].startswith("default-src 'self'")
    pool = ui.ask("POST", "/work_pools/crl/workers/filter", {})
    assert [worker["status"] for worker in pool] == ["ONLINE"]
    assert "Traceback" not in ui.screen()

    # The worker dies and is started again.
    kill(ui.part("worker"))
    wait_until(lambda: ui.part("worker"), ui.screen)
    assert "the worker ended" in ui.screen()
    assert ui.interrupt() == 0
    ui.nothing_is_left()


@pytest.mark.slow
def test_with_a_password_everything_works_and_other_users_of_the_machine_see_nothing(start, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    (home / "prefect.db").touch(0o644)
    auth = "Ada:it's a $ecret"
    with Listening() as listening:
        ui = start(extra={"CRL_UI_AUTH": auth, **listening.environment})
        ui.wait_ready()
        assert "PREFECT_API_AUTH_STRING" in ui.screen() and "$ecret" not in ui.screen()
        for address in (f"{ui.url}/api/flows/filter", f"http://127.0.0.1:{ui.port + 1}/"):
            method = "POST" if "api" in address else "GET"
            ask = functools.partial(httpx.request, method, address, timeout=PATIENCE_SECONDS)
            assert ask().status_code == 401 and ask(auth=("Ada", "wrong")).status_code == 401
            assert ask(auth=tuple(auth.split(":"))).status_code == 200
        # The worker runs what is asked for, and what it runs reports.
        ui.http.auth = httpx.BasicAuth(*auth.split(":"))
        deployment = ui.ask("GET", "/deployments/name/tidy/tidy")["id"]
        run = ui.ask("POST", f"/deployments/{deployment}/create_flow_run", {})["id"]
        wait_until(lambda: ui.state(run)["type"] == "COMPLETED", lambda: str(ui.state(run)))
        # A command line can be read by everybody; the folder by nobody else.
        assert not any("$ecret" in word for each in ui.processes() for word in command_line(each))
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        written = [each for each in home.rglob("*") if each.is_file() and each.parent.name != "crl-ui"]
        assert [
            each for each in written if stat.S_IMODE(each.stat().st_mode) & 0o077 and "prefect.db" in each.name
        ] == []
        assert ui.interrupt() == 0
    assert listening.outside == set()
    assert sum(f" {ui.port}: " in each or f" {ui.port + 1}: " in each for each in listening.inside) >= 2


@pytest.mark.parametrize("wrong", ["Ada", "Ada:", ":secret"])
def test_a_password_without_a_user_is_refused_and_not_shown(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CRL_UI_AUTH", wrong)
    monkeypatch.setattr(DevServer, "run", lambda self: None)
    with pytest.raises(SystemExit, match="2"):
        main(["ui"])
    said = capsys.readouterr().err
    assert "AUTH=user:password make ui" in said and "secret" not in said


@pytest.mark.slow
def test_training_that_is_stopped_with_it_and_a_server_that_dies(start, tmp_path: Path) -> None:
    ui = start()
    ui.wait_ready()

    # The example notification, switched on: a run that fails is told of on the screen.
    named = {each["name"]: each["id"] for each in ui.ask("POST", "/automations/filter", {})}
    ui.ask("PATCH", f"/automations/{named['crl: tell of failures (example)']}", {"enabled": True})
    ui.begin({"experiment": "conf/nothing.yaml", "rounds": 1})
    wait_until(lambda: "there is no file" in ui.screen(), ui.screen)

    # Ctrl-C in the middle of a stage: training ends and says so.
    run = ui.begin_training(tmp_path / "first")
    assert ui.interrupt() == 0
    ui.nothing_is_left()

    # The next start finds it crashed, nothing of it running, and Retry finishes it.
    again = start()
    again.wait_ready(2)
    assert again.state(run)["type"] == "CRASHED" and "crl ui" in again.state(run)["message"]
    tasks, runs = (again.ask("POST", f"/{kind}_runs/filter", {}) for kind in ("task", "flow"))
    below = tasks + [each for each in runs if each["parent_task_run_id"]]
    assert {each["state_type"] for each in below} == {"COMPLETED", "CRASHED"}
    retry = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True}
    assert again.ask("POST", f"/flow_runs/{run}/set_state", retry)["status"] == "ACCEPT"
    wait_until(lambda: again.state(run)["type"] == "COMPLETED", lambda: str(again.state(run)))

    # The server dies: everything ends, and the screen has the end of its log.
    kill(again.part("server"))
    assert again.process.wait(PATIENCE_SECONDS) == 1
    assert "the server ended" in again.screen() and "server-" in again.screen()
    again.nothing_is_left()


@pytest.mark.slow
def test_in_the_background_of_a_script_it_stays_until_it_is_told_to_go(start) -> None:
    ui = start(background=True)
    ui.wait_ready()
    ui.process.send_signal(signal.SIGINT)
    kill(ui.part("worker"))
    wait_until(lambda: ui.part("worker"), ui.screen)
    assert ui.process.poll() is None and "stopping" not in ui.screen(), "it went on to look after its worker"
    ui.process.terminate()
    assert ui.process.wait(PATIENCE_SECONDS) == 0 and "stopping" in ui.screen()
    ui.nothing_is_left()


@pytest.mark.slow
def test_a_busy_port_is_named_with_a_way_out(start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ui = start("--port", str(port))
        assert ui.process.wait(PATIENCE_SECONDS) == 2
        assert f"port {port}" in ui.screen() and "crl ui --port" in ui.screen() and "Traceback" not in ui.screen()


@pytest.mark.parametrize("words", [["--port", "70000"], ["--port", "65535"], ["--pages-port", "0"]])
def test_a_number_that_is_no_port_is_refused(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DevServer, "run", lambda self: None)
    with pytest.raises(SystemExit, match="2"):
        main(["ui", *words])
    assert "port" in capsys.readouterr().err


def test_a_port_or_a_folder_that_is_not_this_users(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/root/.prefect/crl-ui")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "bind", denied)
        with pytest.raises(SystemExit, match="2"):
            main(["ui", "--port", "80"])
    said = capsys.readouterr().err
    assert "may not listen on port 80" in said and "PORT=8080" in said and "taken" not in said
    monkeypatch.setattr(DevServer, "run", denied)
    with pytest.raises(SystemExit, match="2"):
        main(["ui"])
    assert "crl-ui cannot be read or written: Permission denied" in capsys.readouterr().err


def test_what_was_deleted_in_the_ui_or_is_busy_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(*arguments: object) -> None:
        raise ObjectNotFound(Exception())

    def busy(*arguments: object) -> None:
        raise httpx.HTTPStatusError("busy", request=httpx.Request("POST", "http://x"), response=httpx.Response(503))

    monkeypatch.setattr(SyncPrefectClient, "read_workers_for_work_pool", busy)
    monkeypatch.setattr(SyncPrefectClient, "read_deployment_by_name", gone)
    monkeypatch.setattr(SyncPrefectClient, "read_flow_run", gone)
    ui = DevServer(free_port(), free_port())
    ui._worker = SimpleNamespace(running=True)  # type: ignore[assignment]
    assert ui._worker_online() is False
    ui._look_after_runs()
    assert "there is no deployment tidy/tidy" in capsys.readouterr().out
    mark_stopped(ui._client, [str(uuid4())])


def test_a_worker_that_cannot_start_is_not_started_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log says why: ten minutes of silence would not."""
    started: list[int] = []
    ui = DevServer(free_port(), free_port())
    ui._worker = SimpleNamespace(  # type: ignore[assignment]
        running=False, exit_code=1, log="worker.log", start=lambda: started.append(1),
        last_lines=lambda count: ["ModuleNotFoundError: nothing to work with"],
    )  # fmt: skip
    monkeypatch.setattr(SyncPrefectClient, "read_workers_for_work_pool", lambda *arguments: [])
    with pytest.raises(SetupFailed, match=r"5 times.*exit code 1.*\n.*nothing to work with"):
        ui._until(ui._worker_online, "not in time")
    assert len(started) == 5


def test_a_terminal_that_is_gone_does_not_keep_it_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(text: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("flows.ui.say", gone)
    ui = DevServer(free_port(), free_port())
    ui._ask(signal.SIGHUP, None)
    with pytest.raises(Stop):
        ui._check()


@pytest.mark.slow
def test_kill_9_leaves_nothing_and_the_run_is_found_dead(start, tmp_path: Path) -> None:
    ui = start()
    ui.wait_ready()
    run = ui.begin_training(tmp_path / "first")
    ui.process.kill()
    ui.process.wait()
    ui.nothing_is_left()
    again = start()
    again.wait_ready(2)
    wait_until(lambda: again.state(run)["type"] == "CRASHED", lambda: str(again.state(run)))
    assert again.interrupt() == 0


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["worker", "flow run"])
def test_kill_9_of_a_part_and_then_of_the_command(start, tmp_path: Path, whom: str) -> None:
    ui = start()
    ui.wait_ready()
    ui.begin_training(tmp_path / "first")
    training = ui.processes(lambda each: FLOW_RUN in environ(each))
    engine = next(each for each in training if "crl.engine.worker" in command_line(each))
    if whom == "worker":
        kill(ui.part("worker"))
        wait_until(lambda: ui.part("worker"), ui.screen)
        assert engine.is_running(), "what trains outlives Prefect's worker, not `make ui`"
    else:
        flow_run = engine.parent()
        below = flow_run.children(recursive=True)
        assert engine in below and len(below) >= 2, "an engine and a guardian"
        kill([flow_run])
        wait_until(lambda: not any(each in ui.processes() for each in below), lambda: str(below), 30)
    ui.process.kill()
    ui.process.wait()
    ui.nothing_is_left()
