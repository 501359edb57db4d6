"""Where Prefect and the record disagree: the record decides, the log says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import LogFilter
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry, State

from crl.audit.redo import set_aside
from crl.engine.driver import Driver
from crl.errors import DataCheckFailed, RunDirectoryUnusable
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from flows.limits import ensure_limit
from flows.train import resume, train
from tests.processes import wait_until
from tests.unit.engine.harness import digests, make_driver, make_experiment

pytestmark = [pytest.mark.slow]

Fake = Callable[[dict[str, Any]], Path]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    with make_driver(tmp_path_factory.mktemp("undisturbed")) as driver:
        driver.run_rounds(2)
        return digests(driver.run)


@pytest.fixture(autouse=True)
def limit(prefect_server: None) -> None:
    ensure_limit("fake")


def again(state: State[Any], **parameters: Any) -> State[Any]:
    """Retry in the UI: the same flow run runs again, here in this process."""
    with get_client(sync_client=True) as client:
        identifier = UUID(str(state.state_details.flow_run_id))
        client.set_flow_run_state(identifier, AwaitingRetry(), force=True)
        found: State[Any] = run_flow(
            train,
            flow_run=client.read_flow_run(identifier),
            return_type="state",
            parameters={"experiment": make_experiment(), "rounds": 2, **parameters},
        )
        return found


def told(state: State[Any], *wanted: str) -> list[str]:
    """The log lines of a flow run, once all those wanted have arrived (they come in batches)."""
    identifier = UUID(str(state.state_details.flow_run_id))
    lines: list[str] = []

    def missing() -> list[str]:
        with get_client(sync_client=True) as client:
            found = client.read_logs(LogFilter.model_validate({"flow_run_id": {"any_": [identifier]}}), limit=200)
        lines[:] = [line.message for line in found]
        return [text for text in wanted if not any(text in line for line in lines)]

    wait_until(lambda: not missing(), lambda: f"{wanted} is said; said: {lines}", every=0.5)
    return lines


def test_a_stage_that_was_set_aside_runs_again_although_prefect_has_it_as_completed(
    fake: Fake, undisturbed: dict[str, str]
) -> None:
    path = fake({})
    state = train(make_experiment(), rounds=2, return_state=True)
    assert state.is_completed() and digests(RunDirectory.open(path)) == undisturbed
    with Lease.acquire(path, seconds=60) as lease:
        set_aside(path, 1, "spread", lambda number: ["draw", "spread", "learn", "total"], token=lease.token)
    second = again(state)
    assert second.result() == {"run": str(path), "rounds": [1, 2]}
    assert digests(RunDirectory.open(path)) == undisturbed
    told(
        second,
        "Prefect has spread of round 1 as completed, the record has not: it runs again",
        "Prefect has draw of round 2 as completed, the record has not: it runs again",
    )


def test_what_was_finished_without_prefect_does_not_run_again(fake: Fake, undisturbed: dict[str, str]) -> None:
    path = fake({"spread/1": ["breach", ""]})
    state = train(make_experiment(), rounds=2, return_state=True)
    with pytest.raises(DataCheckFailed):
        state.result()
    expected = "DataCheckFailed (round 1, spread): table metrics, rule value >= 0: row 3 has -1.0."
    assert state.message.startswith(expected) and "What to do: look at row 3" in state.message
    fake({})
    with Driver(RunDirectory.open(path), make_experiment().runtime) as driver:  # `crl resume`
        driver.run_rounds(driver.unfinished()[1])
    second = again(state)
    assert second.result() == {"run": str(path), "rounds": []}
    assert digests(RunDirectory.open(path)) == undisturbed
    told(second, "Prefect has spread of round 1 as not completed, the record has it: it does not run again")


def test_what_it_set_out_for_holds_when_its_parameters_were_changed(fake: Fake, undisturbed: dict[str, str]) -> None:
    path = fake({"total": ["raise", ""]})
    state = train(make_experiment(), rounds=2, return_state=True)
    assert state.is_failed() and state.message.startswith("StageFailed (round 1, total): ")
    fake({})
    second = again(state, rounds=5)
    assert second.result()["rounds"] == [1, 2] and digests(RunDirectory.open(path)) == undisturbed
    told(second, "this flow run set out for rounds 0 to 2, which is what it finishes; its parameters now ask for 5")


def test_a_run_directory_that_is_gone_begins_anew_and_resume_says_that_there_is_none(
    fake: Fake, undisturbed: dict[str, str]
) -> None:
    path = fake({})
    state = train(make_experiment(), rounds=2, return_state=True)
    shutil.move(path, path.with_name("elsewhere"))
    second = again(state)
    assert second.result() == {"run": str(path), "rounds": [0, 1, 2]}
    assert digests(RunDirectory.open(path)) == undisturbed
    told(second, f"there is no record at {path}: it starts from the beginning")
    shutil.rmtree(path)
    third = resume("fake", return_state=True)
    assert third.is_failed() and "run_path: there is no run 'fake'" in third.message
    with pytest.raises(RunDirectoryUnusable):
        RunDirectory.open(path)
