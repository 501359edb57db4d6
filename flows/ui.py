"""`crl ui` (`make ui`): Prefect's server and UI, set-up, a worker and the report pages, in one command.

Everything listens on loopback and ends with this process, however it ends: on Ctrl-C in order (the worker first, so
that running training ends in a state from which Retry continues), after a `kill -9` by a guardian.

Prefect's worker, when it is asked to end, kills the processes of its flow runs; they would stay RUNNING. A flow run
that is asked itself ends its engines and reports that it crashed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
import psutil

import flows
from crl.cli.shared import say
from crl.config.load import runs_root
from crl.engine.process import ProcessGroup
from crl.errors import BadInput, PortBusy, SetupFailed
from crl.paths import quoted
from crl.run.guardian import guard, marked
from flows.pages import HOST, Pages
from flows.server import close_to_others, prefect_home
from flows.setup import POOL, TIDY, WORKER_ENVIRONMENT

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

AUTH_VARIABLE = "CRL_UI_AUTH"
"""`user:password` that the server asks for. Not on the command line, which every user of the machine may read."""
LAST_PORT = 65535

_PYTHON = (sys.executable, "-P", "-m")
"""Without the working folder on the path: a folder `flows` in it is another one."""
_AUTH_SETTINGS = ("PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING")
_HEALTHY_SECONDS = 600.0
"""A server that ends is noticed at once: this is for machines on which much else runs."""
_TICK_SECONDS = 0.5
_TAIL_LINES = 25
_WORKER_PATIENCE_SECONDS = 30.0
_SERVER_PATIENCE_SECONDS = 30.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
_STEADY_SECONDS = 60.0
"""A worker that lived so long starts with the shortest pause again."""
_WORKER_STARTS = 5
"""How often a worker is started that ends before it has reported to the server, which may be busy."""
_FLOW_RUN = "PREFECT__FLOW_RUN_ID"
_PATIENCE_SECONDS = 30.0
_MESSAGE = (
    "Stopped together with `crl ui`. What was complete is safe in the run directory; Retry continues there, as do the "
    "deployment resume, the next scheduled run and `crl resume`."
)


class Stop(Exception):
    """Somebody asked for the end (Ctrl-C, SIGTERM)."""


class DevServer:
    """Server, worker and pages, from start to end.

    Args:
        port: of the Prefect server.
        pages_port: of the report pages.
        with_parent: end when the process that started this one does.
        auth: `user:password` that the server and the pages ask for; None: that of Prefect's settings, if any.
    """

    def __init__(self, port: int, pages_port: int, *, with_parent: bool = False, auth: str | None = None) -> None:
        self.port, self.pages_port = port, pages_port
        self.url = f"http://{HOST}:{port}"
        self.runs = runs_root().absolute()
        self._asked = threading.Event()
        self._with_parent = with_parent
        self._auth = auth or _configured_auth()
        self.environment: dict[str, str] = {}
        self._server: ProcessGroup | None = None
        self._worker: ProcessGroup | None = None
        self._starts = 0

    def _settings(self) -> dict[str, str]:
        return {
            "PREFECT_API_URL": f"{self.url}/api",
            **WORKER_ENVIRONMENT,
            **({} if self._auth is None else dict.fromkeys(_AUTH_SETTINGS, self._auth)),
            "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
            # In memory, the default, a slot that was taken when the server ended would never be free again.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            # Few runs ahead: what is not scheduled yet cannot be missed while the server is away.
            "PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS": "1",
            "PREFECT_SERVER_SERVICES_SCHEDULER_MAX_RUNS": "5",
            "PREFECT_SERVER_SERVICES_SCHEDULER_MIN_SCHEDULED_TIME": "PT5M",
            "CRL_RUNS": str(self.runs),
            # Where flow runs say that the report page is.
            "CRL_PAGES": f"http://{HOST}:{self.pages_port}",
        }

    def run(self) -> None:
        """Until somebody asks for the end. Raises PortBusy, BadInput, SetupFailed."""
        began = time.monotonic()
        for port, what in ((self.port, "PORT"), (self.pages_port, "PAGES_PORT")):
            require_free(port, what)
        guard(with_parent=self._with_parent)  # before anything is started: whatever is started inherits its mark
        self.environment = {**os.environ, **self._settings()}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Ignored where it was started by nohup or in the background of a script: then it is not meant for us.
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._ask)
        close_to_others(prefect_home())
        logs = prefect_home() / "crl-ui"
        close_to_others(logs)
        try:
            with Pages(self.runs, self.pages_port, say, self._auth) as pages:
                self._start(logs)
                self._announce(pages, logs, time.monotonic() - began)
                self._watch()
        except Stop:
            pass
        finally:
            self._end()

    # -- starting --------------------------------------------------------------------------------------------------

    def _start(self, logs: Path) -> None:
        say(f"starting Prefect's server on {self.url} (database: {database()})")
        self._server = self._part("server", server_command(self.port), logs)
        self._server.start()
        self._until(self._healthy, f"the server did not answer within {_HEALTHY_SECONDS:.0f} s")
        self._set_up()
        worker = ["prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", f"worker-{self.port}"]
        self._worker = self._part("worker", worker, logs)
        self._until(self._worker_online, "the worker did not report to the server")

    def _part(self, name: str, words: list[str], logs: Path) -> ProcessGroup:
        """`python -m` with these words."""
        return ProcessGroup(
            [*_PYTHON, *words],
            name=name,
            environment=self.environment,
            log=logs / f"{name}-{self.port}.log",
        )

    def _set_up(self) -> None:
        say("setting up:")
        command = [*_PYTHON, "flows.setup", "--pages", self.environment["CRL_PAGES"]]
        process = ProcessGroup(command, name="set-up", environment=self.environment)
        process.start()
        try:
            while (code := process.wait(0.1)) is None:
                self._check()
        finally:
            process.stop(_SERVER_PATIENCE_SECONDS)
        if code:
            raise SetupFailed(f"set-up ended with exit code {code}; what it said is above")

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _HEALTHY_SECONDS
        while not condition():
            self._check()
            if time.monotonic() > deadline:
                child = self._worker or self._server
                assert child is not None
                raise SetupFailed(
                    f"{otherwise}; the last lines of its log:\n{_end_of_log(child)}", where=str(child.log)
                )
            time.sleep(0.2)

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/health", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def _client(self) -> SyncPrefectClient:
        from prefect.client.orchestration import SyncPrefectClient

        return SyncPrefectClient(f"{self.url}/api", auth_string=self._auth)

    def _worker_online(self) -> bool:
        from prefect.exceptions import ObjectNotFound

        assert self._worker is not None
        if not self._worker.running:
            self._starts += 1
            if self._starts > _WORKER_STARTS:
                raise SetupFailed(
                    f"the worker ended {_WORKER_STARTS} times before it was ready, the last time with exit code "
                    f"{self._worker.exit_code}; the last lines of its log:\n{_end_of_log(self._worker)}",
                    where=str(self._worker.log),
                )
            self._worker.start()
        try:
            with self._client() as client:
                found = client.read_workers_for_work_pool(POOL)
        except (httpx.HTTPError, ObjectNotFound):  # busy
            return False
        return any(each.name == f"worker-{self.port}" and each.status == "ONLINE" for each in found)

    def _announce(self, pages: Pages, logs: Path, seconds: float) -> None:
        more = " PREFECT_API_AUTH_STRING=… (the user:password of AUTH)" if self._auth else ""
        say(
            f"\nReady after {seconds:.0f} s.\n"
            f"  Prefect UI     {self.url}\n"
            f"  report pages   {pages.url}   (runs: {self.runs})\n"
            f"  logs           {logs}\n\n"
            f"Train: open {self.url}/deployments, choose train/train, Run > Custom run, fill in the form.\n"
            f"In other terminals: export PREFECT_API_URL={self.url}/api{more}\n"
            "Ctrl-C stops all of it; training that runs then continues with Retry, resume or `crl resume`."
        )

    # -- running ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Restart a worker that ended, with growing pauses; a server that ended ends everything."""
        assert self._worker is not None
        pause, again_at = _FIRST_PAUSE_SECONDS, 0.0
        while True:
            self._check()
            if not self._worker.running:
                if not again_at:
                    if self._worker.age_seconds > _STEADY_SECONDS:
                        pause = _FIRST_PAUSE_SECONDS
                    say(f"the worker ended (exit code {self._worker.exit_code}); it is started again in {pause:.0f} s")
                    say(f"  its log: {self._worker.log}")
                    again_at, pause = time.monotonic() + pause, min(2 * pause, _LONGEST_PAUSE_SECONDS)
                elif time.monotonic() >= again_at:
                    self._worker.start()
                    self._look_after_runs()
                    again_at = 0.0
            self._asked.wait(_TICK_SECONDS)

    def _look_after_runs(self) -> None:
        """Have `tidy` put every unfinished run under watch: some may have died with the worker, before they began."""
        from prefect.exceptions import ObjectNotFound

        try:
            with self._client() as client:
                client.create_flow_run_from_deployment(client.read_deployment_by_name(TIDY).id)
        except ObjectNotFound:  # deleted in the UI
            say(f"  there is no deployment {TIDY}: the next `crl ui` makes it again")
        except httpx.HTTPError as error:
            say(f"  the deployment {TIDY} could not be started: {error}")

    def _check(self) -> None:
        """Raise Stop where the end was asked for, SetupFailed where the server is gone."""
        if self._asked.is_set():
            raise Stop
        if self._server is not None and not self._server.running:
            raise SetupFailed(
                f"the server ended with exit code {self._server.exit_code}; the last lines of its log:\n"
                + _end_of_log(self._server),
                where=str(self._server.log),
                next_step="runs are complete up to their last stage; start `crl ui` again and Retry them",
            )

    def _ask(self, number: int, frame: FrameType | None) -> None:
        first = not self._asked.is_set()
        self._asked.set()
        if first:
            with contextlib.suppress(OSError):  # the terminal is gone: that is why this was asked
                say("\nstopping: the worker and what it runs, then the server")

    # -- ending ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Flow runs, worker, server. Flow runs first and by a signal of their own: the worker would kill theirs."""
        if self._server is not None and self._server.running:
            end_flow_runs(self._client)
        for child, patience in ((self._worker, _WORKER_PATIENCE_SECONDS), (self._server, _SERVER_PATIENCE_SECONDS)):
            if child is not None:
                child.stop(patience)


def serve(port: int, pages_port: int | None = None, *, with_parent: bool = False) -> None:
    """Run until somebody asks for the end. Raises PortBusy, BadInput, SetupFailed."""
    if pages_port is None and port == LAST_PORT:
        raise BadInput(
            f"no port comes after {port}", next_step="give the report pages one: --pages-port (make ui PAGES_PORT=…)"
        )
    _check_folder()
    pages = port + 1 if pages_port is None else pages_port
    DevServer(port, pages, with_parent=with_parent, auth=_auth()).run()


def _check_folder() -> None:
    """Raise BadInput where Prefect would take packages of the working folder for ours: it looks there first."""
    import crl
    import tasks

    for package in (crl, flows, tasks):
        name, own = package.__name__, Path(package.__path__[0]).resolve()
        other = Path(name).resolve()
        if (other / "__init__.py").is_file() and other != own:
            raise BadInput(
                f"this folder has a Python package `{name}`, and so has this project: Prefect would run yours",
                expected=f"a folder without a package `{name}`",
                where=str(other),
                next_step="type crl ui in another folder; runs and experiments of this one can be named by their paths",
            )


def server_command(port: int) -> list[str]:
    """Arguments of `python -m` for Prefect's server."""
    return ["flows.server", "--host", HOST, "--port", str(port)]


def _end_of_log(process: ProcessGroup) -> str:
    return "\n".join(f"  {line}" for line in process.last_lines(_TAIL_LINES))


def require_free(port: int, variable: str) -> None:
    """Raise PortBusy where something listens on a loopback port, BadInput where this user may not listen on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise BadInput(
                f"this user may not listen on port {port}",
                expected="a port from 1024 on, as a rule",
                next_step=f"choose another port: {_with_port(variable, port + 8000)}",
            ) from None
        except OSError as error:
            other = port + (100 if port < 65000 else -100)
            raise PortBusy(
                f"port {port} of {HOST} is taken ({error.strerror or error})",
                expected="a free port: another `crl ui` or Prefect server may be running",
                next_step=f"end that one, or choose another port: {_with_port(variable, other)}",
            ) from None


def _with_port(variable: str, port: int) -> str:
    option, number = quoted(f"--{variable.lower().replace('_', '-')}"), quoted(str(port))
    return f"crl ui {option} {number} (make ui {quoted(variable)}={number})"


def _configured_auth() -> str | None:
    """The `user:password` that Prefect's settings have for a server."""
    from prefect.settings import get_current_settings

    auth = get_current_settings().server.api.auth_string
    return None if auth is None else str(auth.get_secret_value())


def database() -> str:
    """The server's database, as a person would name it; no password is shown."""
    from prefect.settings import get_current_settings

    address = get_current_settings().server.database.connection_url
    if address is None:
        return str(prefect_home() / "prefect.db")
    text = str(address.get_secret_value())
    return text.split(":///")[-1] if text.startswith("sqlite") else text.rpartition("@")[2]


def _auth() -> str | None:
    """What $CRL_UI_AUTH holds; None where nobody wants a password. Raises BadInput where it is no user:password."""
    auth = os.environ.pop(AUTH_VARIABLE, "")
    user, _, password = auth.partition(":")
    if auth and not (user and password):
        raise BadInput(
            "AUTH is no user and password",
            expected="user:password",
            where=f"{AUTH_VARIABLE}, or the variable AUTH of make",
            next_step=f"{AUTH_VARIABLE}=user:password crl ui, or AUTH=user:password make ui",
        )
    return auth or None


def end_flow_runs(client_of: Callable[[], SyncPrefectClient]) -> list[str]:
    """SIGTERM to every flow run that this process's guardian looks after; returns their ids when they have ended.

    `client_of` makes a client of the server. Whatever does not end in time is left to the guardian.
    """
    found = _flow_runs()
    for process in found.values():
        with contextlib.suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(found.values(), timeout=_PATIENCE_SECONDS)
    if found:
        mark_stopped(client_of, found)
    return list(found)


def mark_stopped(client_of: Callable[[], SyncPrefectClient], identifiers: Iterable[str]) -> None:
    """Give each its state with our message: also those that could not report, because they had hardly begun."""
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    with client_of() as client:
        for identifier in identifiers:
            # A server that does not answer is about to end anyway: the next start finds these runs silent. A run that
            # was deleted in the UI needs no mark.
            with contextlib.suppress(httpx.HTTPError, ObjectNotFound):
                state = client.read_flow_run(UUID(identifier)).state
                if state is not None and (state.is_crashed() or not state.is_final()):
                    client.set_flow_run_state(UUID(identifier), Crashed(message=_MESSAGE), force=True)


def _flow_runs() -> dict[str, psutil.Process]:
    """The process of each flow run, by its id; engines and other children of it are not among them."""
    found: dict[str, psutil.Process] = {}
    for process in marked(guard()):
        with contextlib.suppress(psutil.Error, OSError):
            identifier = process.environ().get(_FLOW_RUN)
            parent = process.parent()
            if identifier is not None and (parent is None or parent.environ().get(_FLOW_RUN) != identifier):
                found[identifier] = process
    return found
