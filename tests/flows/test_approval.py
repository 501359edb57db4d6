"""A round that waits for a person, through a real Prefect server: the form, the command beside it, a kill, a retry."""

from __future__ import annotations

import contextvars
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import LogSort
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL
from prefect.states import AwaitingRetry, Crashed, Running

from crl.engine.driver import Driver
from crl.engine.targets import last_runtime
from crl.errors import ApprovalPending
from crl.report.views import query
from crl.rounds.approvals import awaited, decide
from crl.run.directory import RunDirectory
from flows.approval import WAITING_NAME
from flows.limits import limit_name
from flows.train import train
from tests.processes import PATIENCE_SECONDS, scaled, wait_until
from tests.tiny_run import ROOT
from tests.unit.engine.approval_recipe import approved_experiment
from tests.unit.engine.harness import digests

pytestmark = pytest.mark.slow


@pytest.fixture
def path(prefect_server: None, plain_charts: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the run of the approval recipe will lie; a name of its own, for a limit of its own."""
    monkeypatch.setenv("CRL_RUNS", str(tmp_path))
    return tmp_path / f"approved-{uuid4().hex[:8]}"


def paused_states() -> set[UUID]:
    """The pauses there are; those of dead processes stay until they are tidied up."""
    with get_client(sync_client=True) as client:
        return {run.state.id for run in client.read_flow_runs(limit=50) if run.state_type is StateType.PAUSED}


def paused_run(name: str, dead: Collection[UUID] = ()) -> FlowRun | None:
    with get_client(sync_client=True) as client:
        runs = [run for run in client.read_flow_runs(limit=50) if run.state_type is StateType.PAUSED]
    return next((run for run in runs if run.name.startswith(f"{name} of ") and run.state.id not in dead), None)


def wait_paused(name: str, dead: Collection[UUID] = ()) -> FlowRun:
    wait_until(lambda: paused_run(name, dead), f"{name} is paused", every=0.3)
    found = paused_run(name, dead)
    assert found is not None
    return found


def resume(run: FlowRun, answer: dict[str, Any]) -> SetStateStatus:
    """What the Resume button sends."""
    with get_client(sync_client=True) as client:
        return client.resume_flow_run(run.id, run_input=answer).status


def logs() -> str:
    """The newest lines: the server holds those of other tests too."""
    with get_client(sync_client=True) as client:
        return "\n".join(line.message for line in client.read_logs(limit=200, sort=LogSort.TIMESTAMP_DESC))


@contextmanager
def person(work: Callable[[], None]) -> Iterator[None]:
    """Somebody who acts while the flow runs; what goes wrong there fails the test."""
    failures: list[BaseException] = []

    def act() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(act,), daemon=True)
    thread.start()
    yield
    thread.join(PATIENCE_SECONDS)
    if failures:
        raise failures[0]
    assert not thread.is_alive()


def texts(path: Path, number: int) -> list[str]:
    sql = 'SELECT text FROM bank_text WHERE round = $round ORDER BY "order"'
    return [row[0] for row in query(path, sql, {"round": number})[1]]


def test_a_form_in_the_ui_and_a_command_beside_it_both_end_the_pause(path: Path) -> None:
    seen: dict[str, Any] = {}
    dead = paused_states()

    def act() -> None:
        run = wait_paused("round 1", dead)
        with get_client(sync_client=True) as client:
            keys = run.state.state_details.run_input_keyset
            seen["schema"] = client.read_flow_run_input(run.id, keys["schema"])
            seen["text"] = client.read_flow_run_input(run.id, keys["description"])
            seen["parents"] = [each.state for each in client.read_flow_runs() if each.state_name == WAITING_NAME]
        # What the form refuses: no name, an id that is not asked about.
        assert resume(run, {}) is SetStateStatus.REJECT
        assert resume(run, {"person": "Ada", "reject": ["r9-d0-o0"]}) is SetStateStatus.REJECT
        answer = {"person": "Ada", "reject": ["r1-d0-o0"], "reason": "not true"}
        assert resume(run, answer) is SetStateStatus.ACCEPT
        wait_paused("round 2", dead)
        pending = awaited(path)
        assert pending is not None
        decide(pending, approve=True, person="Bob")

    with person(act):
        assert train(approved_experiment(path.name), rounds=2)["rounds"] == [0, 1, 2]
    assert "r1-d0-o0" in seen["schema"] and "Switched off, the whole round is rejected" in seen["schema"]
    assert "Look first." in seen["text"]
    assert [state.type for state in seen["parents"]] == [StateType.RUNNING]
    assert "round 1 waits for a person" in seen["parents"][0].message
    assert texts(path, 1) == ["Look first.", "Take the stairs."]
    assert query(path, "SELECT decision, person, reason FROM approvals ORDER BY round")[1] == [
        ("partly", "Ada", "not true"),
        ("approved", "Bob", None),
    ]  # fmt: skip


def test_the_record_wins_over_an_answer_that_comes_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.approval.POLL_SECONDS", 5.0)
    dead = paused_states()

    def act() -> None:
        run = wait_paused("round 1", dead)
        pending = awaited(path)
        assert pending is not None
        decide(pending, approve=False, person="Ada")
        assert resume(run, {"person": "Bob"}) is SetStateStatus.ACCEPT

    with person(act):
        train(approved_experiment(path.name), rounds=1)
    assert texts(path, 1) == []
    wait_until(lambda: "the answer from the UI is not used: Ada rejected all" in logs(), "the log says so")


def test_resumed_without_an_answer_it_pauses_again_and_patience_ends_as_a_wait(path: Path) -> None:
    def act() -> None:
        run = wait_paused("round 1", dead)
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run.id, Running(), force=True)
        wait_paused("round 1", {*dead, run.state.id})

    dead = paused_states()

    with person(act):
        state = train(approved_experiment(path.name, approval_wait_seconds=scaled(20)), rounds=1, return_state=True)
    assert state.is_failed() and state.name == WAITING_NAME, "it offers Retry, and does not look like a failure"
    with pytest.raises(ApprovalPending, match="round 1 waits for a person"):
        state.result()
    assert RunDirectory.open(path).complete_stages(1) == ["distill"]


def killed_while_it_waits(path: Path) -> FlowRun:
    """A training run whose process is killed while round 1 is paused; returns it."""
    command = (
        "from flows.train import train; from tests.unit.engine.approval_recipe import approved_experiment;"
        f"train(approved_experiment({path.name!r}), rounds=1)"
    )
    environment = {**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value()), "PYTHONPATH": str(ROOT)}
    dead = paused_states()
    process = subprocess.Popen([sys.executable, "-c", command], cwd=ROOT, env=environment, start_new_session=True)
    try:
        child = wait_paused("round 1", dead)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert RunDirectory.open(path).complete_stages(1) == ["distill"]
    with get_client(sync_client=True) as client:
        tracking = client.read_task_run(child.parent_task_run_id)
        assert tracking.flow_run_id is not None
        return client.read_flow_run(tracking.flow_run_id)


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of a round that was decided about without a server, flow or kill."""
    run = RunDirectory.create_or_open(approved_experiment(), tmp_path_factory.mktemp("at_once"))
    with Driver(run, last_runtime(run.path)) as driver, pytest.raises(ApprovalPending):
        driver.run_rounds(1)
    approve_and_resume(run.path)
    return digests(run)


def approve_and_resume(path: Path) -> None:
    """What `crl approve` and `crl resume` do."""
    pending = awaited(path)
    assert pending is not None
    decide(pending, approve=True, reject=["r1-d3-o0"], person="Ada", reason="no")
    with Driver(RunDirectory.open(path), last_runtime(path)) as driver:
        driver.run_rounds(1)


def test_killed_while_it_waits_it_goes_on_without_a_server(path: Path, at_once: dict[str, str]) -> None:
    killed_while_it_waits(path)
    approve_and_resume(path)
    assert digests(RunDirectory.open(path)) == at_once


def test_killed_while_it_waits_a_retry_asks_again(path: Path, at_once: dict[str, str]) -> None:
    killed = killed_while_it_waits(path)

    def act() -> None:
        answer = {"person": "Ada", "reject": ["r1-d3-o0"], "reason": "no"}
        assert resume(wait_paused("round 1", dead), answer) is SetStateStatus.ACCEPT

    dead = paused_states()
    with get_client(sync_client=True) as client:
        # Lost with the process; it would be free by itself within two minutes.
        client.update_global_concurrency_limit(limit_name(path.name), GlobalConcurrencyLimitUpdate(active_slots=0))
        client.set_flow_run_state(killed.id, Crashed(), force=True)
        client.set_flow_run_state(killed.id, AwaitingRetry(), force=True)
        again = client.read_flow_run(killed.id)
    with person(act):
        state = run_flow(
            train,
            flow_run=again,
            return_type="state",
            parameters={"experiment": approved_experiment(path.name), "rounds": 1},
        )
    assert state.is_completed()
    assert digests(RunDirectory.open(path)) == at_once
