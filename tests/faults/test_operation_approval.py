"""While a round waits for a person: the server restarts, the run is cancelled. With a real server and worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crl.report.views import query
from crl.run.directory import RunDirectory
from tests.operate import Operation, Run, as_parameter, operation
from tests.processes import wait_until
from tests.unit.engine.approval_recipe import approved_experiment

pytestmark = pytest.mark.slow
ENDED_SECONDS = 60.0
"""A generous limit: what ends last is Prefect's own process, which first hands over its log."""


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operation]:
    with operation(tmp_path_factory.mktemp("approval"), {}) as made:
        yield made


def train_until_asked(operated: Operation, name: str) -> tuple[str, Run]:
    """Start a training run; returns its id and its paused round."""
    started = operated.run("train/train", {"experiment": as_parameter(approved_experiment(name)), "rounds": 1})
    paused: list[Run] = []

    def asked() -> bool:
        paused[:] = [each for each in operated.children(started) if each["state_type"] == "PAUSED"]
        return bool(paused)

    wait_until(asked, lambda: f"round 1 is paused\n{operated.logs(started)}", every=0.5)
    assert operated.flow_run(started)["state_name"] == "Awaiting approval"
    return started, paused[0]


def test_a_server_that_restarts_does_not_end_the_wait(operated: Operation) -> None:
    started, paused = train_until_asked(operated, "restarted")
    operated.stop_server()
    wait_until(lambda: operated.flow_processes(started), "the flow lives on", 5.0)
    operated.start_server()
    answer = operated._post(f"/flow_runs/{paused['id']}/resume", {"run_input": {"person": "Ada"}})
    assert answer["status"] == "ACCEPT"
    assert operated.wait_for(started)["state_type"] == "COMPLETED"
    assert query(operated.runs / "restarted", "SELECT decision, person FROM approvals")[1] == [("approved", "Ada")]


def test_cancelled_while_it_waits_it_ends_and_can_be_resumed(operated: Operation) -> None:
    started, paused = train_until_asked(operated, "cancelled")
    # A wait may take days: no engine is kept for it, so there is none that a cancellation would have to end.
    assert operated.kill_engines(started) == 0
    operated.cancel(started)
    assert operated.wait_for(started)["state_type"] == "CANCELLED"
    wait_until(lambda: not operated.flow_processes(started), "its processes are gone", ENDED_SECONDS)
    assert operated.state(paused["id"]) == "CANCELLED"
    path: Path = operated.runs / "cancelled"
    assert RunDirectory.open(path).complete_stages(1) == ["distill"]
    assert "round 1 waits for a person" in operated.resume_without_server("cancelled", code=6)
