"""A real Prefect server and worker for tests, on a home and a port of their own: started, stopped, killed, looked at.

What a person does in the UI is done here by the same HTTP calls; what breaks is broken from outside, with signals.
Every process started carries a mark in its environment, which children inherit, so none can hide or outlive the test.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from crl.config import Experiment
from crl.run import experiment_file, guardian
from crl.run.directory import RunDirectory
from flows.automations import SILENT
from flows.setup import WORKER_ENVIRONMENT
from flows.ui import server_command
from tests.asking import POOL, ask_patiently, open_pool
from tests.processes import PATIENCE_SECONDS, client_of, command_line, environ, free_port, kill, reap, wait_until
from tests.tiny_run import ROOT, cut_back, environment

MARK = "CRL_TEST_MARK"
ROLE = "CRL_TEST_ROLE"
FLOW_RUN = "PREFECT__FLOW_RUN_ID"
LIVING = ("SCHEDULED", "PENDING", "RUNNING", "CANCELLING")
"""Types of states that a run must leave in the end."""
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
CRASHED_SECONDS = 120.0
"""A dead flow run is known as such within this time."""

Run = dict[str, Any]


class Operation:
    """A server, a worker and what they run; made by :func:`operation`.

    Args:
        home: directory of Prefect's database and the logs.
        runs: where run directories lie; the flow runs see it as $CRL_RUNS.
        extra: added to the environment of server, worker and flows.
    """

    def __init__(self, home: Path, runs: Path, extra: Mapping[str, str] | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        runs.mkdir(parents=True, exist_ok=True)
        self.home, self.runs = home, runs
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.mark = secrets.token_hex(8)
        inherited = {name: value for name, value in environment(runs).items() if not name.startswith("PREFECT_")}
        self.environment = {
            **inherited,
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": f"{self.url}/api",
            # As the product's own server and worker are started.
            **WORKER_ENVIRONMENT,
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            # For tests only: a run that is due starts after a second and not after fifteen.
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            MARK: self.mark,
            **(extra or {}),
        }
        self.server_words = server_command(self.port)
        """Arguments of `python -m` for the server."""
        self._open_pool = False
        self._http = client_of(self.url)
        self._server: subprocess.Popen[bytes] | None = None
        self._worker: subprocess.Popen[bytes] | None = None

    # -- server and worker -----------------------------------------------------------------------------------------

    def start_server(self) -> None:
        """Start it, and wait until it answers."""
        self._server = self._start("server", [sys.executable, "-m", *self.server_words])
        wait_until(self.server_answers, "the server answers")

    def server_answers(self) -> bool:
        """Whether the server is up."""
        with contextlib.suppress(httpx.HTTPError):
            return self._http.get("/health", timeout=5.0).status_code == 200
        return False

    def stop_server(self) -> None:
        """SIGTERM, as a service manager stops it."""
        self._stop("server", self._server)

    def kill_server(self) -> None:
        """SIGKILL to every process of the server."""
        kill(self.processes("server"))
        reap(self._server)

    def set_up(self) -> None:
        """Everything that must exist before it is safe: what the product's own set-up makes. The server runs."""
        self.command([sys.executable, "-m", "flows.setup"])
        if self._open_pool:
            open_pool(self._http)

    def add_limit(self, experiment: str) -> None:
        """The concurrency limit of an experiment, as set-up makes it for every experiment it finds."""
        answer = self._http.post(
            "/v2/concurrency_limits/", json={"name": f"crl-{experiment}", "limit": 1, "active": True}
        )
        assert answer.status_code in (200, 201, 409), answer.text

    def limit(self, experiment: str) -> Run:
        """The concurrency limit of an experiment; `active_slots` says whether it is taken."""
        return self._get(f"/v2/concurrency_limits/crl-{experiment}")

    def start_worker(self) -> None:
        """Start a process worker on the pool."""
        arguments = ["worker", "start", "--pool", POOL, "--name", "test-worker"]
        self._worker = self._start("worker", [sys.executable, "-m", "prefect", *arguments])

    def stop_worker(self) -> None:
        """SIGTERM, as a service manager stops it."""
        self._stop("worker", self._worker)

    def kill_worker(self) -> None:
        """SIGKILL to the worker alone; its flow runs live on without it."""
        if self._worker is not None:
            self._worker.kill()
        reap(self._worker)

    def kill_flow(self, run_id: str) -> None:
        """SIGKILL to the process of a flow run; its guardian ends the engines."""
        processes = [each for each in self.processes() if environ(each).get(FLOW_RUN) == run_id]
        spared = ("crl.engine.worker", guardian.__file__)
        parents = [each for each in processes if not any(word in spared for word in command_line(each))]
        assert parents, f"no process of flow run {run_id} was found"
        # Stopped first, so that none starts another while the others are killed.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in parents:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    def kill_engines(self, run_id: str) -> int:
        """SIGKILL to the engine processes of a flow run, as the system does when memory runs out; returns how many."""
        engines = [each for each in self.flow_processes(run_id) if "crl.engine.worker" in command_line(each)]
        kill(engines)
        return len(engines)

    def kill_everything(self) -> None:
        """SIGKILL to server, worker, flows and engines, all at once: as when the machine loses power."""
        processes = self.processes()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
        reap(self._server)
        reap(self._worker)

    # -- processes -------------------------------------------------------------------------------------------------

    def processes(self, role: str | None = None) -> list[psutil.Process]:
        """Every living process of this operation, whoever its parent is by now; of the server or the worker only."""
        found = []
        for process in psutil.process_iter():
            variables = environ(process)
            if variables.get(MARK) == self.mark and role in (None, variables.get(ROLE)):
                found.append(process)
        return found

    def flow_processes(self, run_id: str | None = None) -> list[psutil.Process]:
        """The processes that flow runs (or one of them) started, engines included."""
        wanted = {run_id} if run_id is not None else None
        found = [(each, environ(each).get(FLOW_RUN)) for each in self.processes()]
        return [each for each, name in found if name is not None and (wanted is None or name in wanted)]

    # -- what the UI does ------------------------------------------------------------------------------------------

    def run(
        self,
        deployment: str,
        parameters: Mapping[str, Any],
        *,
        variables: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> str:
        """Custom run of a deployment (`train/train`); `variables` go to the environment of its process only.

        Returns the id of the flow run.
        """
        body: Run = {"parameters": dict(parameters), "idempotency_key": secrets.token_hex()}
        body["state"] = {"type": "SCHEDULED"}
        if variables:
            if not self._open_pool:
                open_pool(self._http)  # before it is known as open: several threads start runs
                self._open_pool = True
            body["job_variables"] = {"env": dict(variables)}
        if name is not None:
            body["name"] = name
        identifier = self._get(f"/deployments/name/{deployment}")["id"]
        return str(self._post(f"/deployments/{identifier}/create_flow_run", body)["id"])

    def retry(self, run_id: str, *, first_interface: bool = False) -> None:
        """The Retry button: path and body are those that the bundled pages send (force only in the second UI)."""
        state = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
        self._set_state(run_id, state, force=not first_interface)

    def cancel(self, run_id: str) -> None:
        """The Cancel button."""
        self._set_state(run_id, {"type": "CANCELLING", "name": "Cancelling"}, force=True)

    def _set_state(self, run_id: str, state: Run, *, force: bool) -> None:
        answer = self._post(f"/flow_runs/{run_id}/set_state", {"state": state, "force": force})
        assert answer["status"] == "ACCEPT", answer

    # -- what the server knows -------------------------------------------------------------------------------------

    def flow_run(self, run_id: str) -> Run:
        """A flow run."""
        return self._get(f"/flow_runs/{run_id}")

    def state(self, run_id: str) -> str:
        """The type of a flow run's state, such as RUNNING."""
        return str(self.flow_run(run_id)["state_type"])

    def has_ended(self, current: Run) -> bool:
        """Whether a flow run has ended, and was not only marked as silent while it lives: `tidy` puts that right.

        Beside a heavy load Prefect's server waits for the lock of its SQLite file, for a minute at a time, and takes
        heartbeats so much later.
        """
        if current["state_type"] not in ENDED:
            return False
        said = (current["state"] or {}).get("message") or ""
        return not (said.startswith(SILENT) and self.flow_processes(current["id"]))

    def worker_is_done_with(self, run_id: str, times: int) -> bool:
        """Whether the worker has said all it says of the ends of a flow run's processes. It tells of a crash twice, and
        the second time, late on a busy machine, would crash a run that was retried meanwhile."""
        wanted = {"event": {"name": ["prefect.worker.executed-flow-run"]},
                  "any_resource": {"id": [f"prefect.flow-run.{run_id}"]}}  # fmt: skip
        return int(self._post("/events/filter", {"filter": wanted})["total"]) >= times

    def wait_for(self, run_id: str, *states: str, seconds: float = PATIENCE_SECONDS) -> Run:
        """Wait until a flow run is in one of these types of state (default: it has ended)."""
        wanted = states or ENDED
        current: Run = {}

        def reached() -> bool:
            nonlocal current
            current = self.flow_run(run_id)
            return current["state_type"] in wanted if states else self.has_ended(current)

        def problem() -> str:
            said = current.get("state") or {}
            lines = "\n".join(self.logs(run_id)[-30:])
            return (
                f"flow run {current.get('name')} is {wanted}; it is {said.get('name')}: {said.get('message')}\n{lines}"
            )

        wait_until(reached, problem, seconds, every=0.5)
        return current

    def flow_runs(self) -> list[Run]:
        """Every flow run, the oldest first."""
        return self._all("/flow_runs/filter", "START_TIME_ASC")

    def task_runs(self) -> list[Run]:
        """Every task run."""
        return self._all("/task_runs/filter", "ID_DESC")

    def children(self, run_id: str) -> list[Run]:
        """The child flow runs of a flow run, the oldest first."""
        body = {"flow_runs": {"parent_flow_run_id": {"any_": [run_id]}}, "sort": "START_TIME_ASC"}
        found: list[Run] = self._post("/flow_runs/filter", body)
        return found

    def logs(self, run_id: str) -> list[str]:
        """The log lines of a flow run and its tasks, without those of child runs."""
        body = {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        with contextlib.suppress(httpx.HTTPError):
            return [str(line["message"]) for line in self._post("/logs/filter", body)]
        return []

    def still_living(self) -> list[str]:
        """Flow runs and task runs that have not ended, as `kind name: state`; due schedules of the future left out."""
        alive = []
        for kind, runs in (("flow run", self.flow_runs()), ("task run", self.task_runs())):
            for run in runs:
                if run["state_type"] in LIVING and not run.get("auto_scheduled"):
                    alive.append(f"{kind} {run['name']} {run['id']}: {run['state_name']}")
        return alive

    # -- running commands ------------------------------------------------------------------------------------------

    def command(self, arguments: list[str], code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command against this server, from the checkout; it must end with `code`."""
        done = subprocess.run(
            arguments, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    def resume_without_server(self, name: str, code: int = 0, extra: Mapping[str, str] | None = None) -> str:
        """`crl resume NAME` as typed where no server is known; returns what it printed, errors included."""
        variables = {key: value for key, value in self.environment.items() if key != "PREFECT_API_URL"}
        done = subprocess.run(
            [sys.executable, "-m", "crl", "resume", name], cwd=ROOT, env={**variables, **(extra or {})},
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, f"crl resume: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def end(self) -> None:
        """Nothing of it stays."""
        self._http.close()
        self.kill_everything()
        kill(self.processes())

    # -- inside ----------------------------------------------------------------------------------------------------

    def _start(self, role: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self.home / f"{role}.log").open("ab") as log:
            return subprocess.Popen(
                arguments, cwd=ROOT, env={**self.environment, ROLE: role}, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _stop(self, role: str, process: subprocess.Popen[bytes] | None) -> None:
        assert process is not None, f"no {role} was started"
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the {role} did not end after SIGTERM") from None

    def _get(self, path: str) -> Run:
        found: Run = self._ask("GET", path).json()
        return found

    def _post(self, path: str, body: Run) -> Any:
        return self._ask("POST", path, body).json()

    def _ask(self, method: str, path: str, body: Run | None = None) -> httpx.Response:
        """One request; like Prefect's own client it asks again where the database was busy (503)."""
        answer = ask_patiently(self._http, method, path, body)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:1000]}"
        return answer

    def _all(self, path: str, sort: str) -> list[Run]:
        found: list[Run] = []
        while page := self._post(path, {"sort": sort, "limit": 200, "offset": len(found)}):
            found += page
        return found


@contextlib.contextmanager
def operation(folder: Path, extra: Mapping[str, str] | None = None, *, worker: bool = True) -> Iterator[Operation]:
    """A server that is set up, with a worker; runs lie in `folder/runs`. Ends everything; logs lie in `folder/home`."""
    made = Operation(folder / "home", folder / "runs", extra)
    try:
        made.start_server()
        made.set_up()
        if worker:
            made.start_worker()
        yield made
    finally:
        made.end()


def copy_run(finished: Path, runs: Path, name: str, cut: tuple[int, str] | None = None) -> Path:
    """A finished run under another name, so that it has a concurrency limit of its own; cut back to a stage.

    The name is no part of any digest. Returns the run's directory.
    """
    target = runs / name
    shutil.copytree(finished, target)
    method = RunDirectory.open(target).method
    (target / experiment_file.EXPERIMENT).write_bytes(experiment_file.render(name, method))
    if cut is not None:
        cut_back(target, *cut)
    return target


def as_parameter(experiment: Experiment) -> Run:
    """An experiment as the form sends it."""
    return experiment.model_dump(mode="json")
