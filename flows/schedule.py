"""Scheduled runs that were missed: however many times were missed while the server or the worker was away, one runs.

The newest run that is due does the work; an older one with the same parameters has nothing to add, since either would
train the next rounds. A deployment may have schedules with other parameters, of another experiment: those run, too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from prefect import State, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from flows.present import present_run
from flows.queries import flow_runs

_NOT_WORKING = [StateType.CANCELLED, StateType.CANCELLING, StateType.FAILED, StateType.CRASHED]


def superseded() -> State[Any] | None:
    """The state this flow run is to return at once, because a newer scheduled run that does the same is due as well.

    None where it has to work: it was started by a person or is retried, or nothing newer that does the same is due.
    """
    run = present_run()
    if run is None or run.deployment_id is None or not run.auto_scheduled or run.run_count > 1:
        return None
    with get_client(sync_client=True) as client:
        newer = _newer(client, run)
    if newer is None:
        return None
    message = _message(run, newer)
    get_run_logger().info("%s", message)
    return Cancelled(message=message)


def _newer(client: SyncPrefectClient, run: FlowRun) -> FlowRun | None:
    """The newest scheduled run of the deployment with the parameters of `run` that was due after it, was not called off
    and has not failed."""
    since = run.expected_start_time
    assert since is not None
    due = {
        "deployment_id": {"any_": [run.deployment_id]},
        "state": {"type": {"not_any_": _NOT_WORKING}},
        "expected_start_time": {
            "after_": since + timedelta(milliseconds=1),
            "before_": datetime.now(UTC),
        },
    }
    later = (each for each in flow_runs(client, due) if each.auto_scheduled and each.parameters == run.parameters)
    return max(later, key=lambda each: each.expected_start_time or since, default=None)


def _message(older: FlowRun, newer: FlowRun) -> str:
    def due(run: FlowRun) -> str:
        return "unknown" if run.expected_start_time is None else f"{run.expected_start_time:%Y-%m-%d %H:%M} UTC"

    return (
        f"superseded: this run was due at {due(older)} and did not start in time; "
        f"flow run {newer.name!r}, due at {due(newer)}, does the work"
    )
