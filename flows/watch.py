"""Unfinished runs whose end the server may have missed: those that live go on beating, the others are to be found out.

The automation that marks silent runs counts from the last heartbeat. A server that was away for minutes has dropped
that count, and so has one whose database was locked for a minute when the count was over, as SQLite is where much
happens at once: a run that died would stay RUNNING for ever. So each unfinished run is put under watch again, by
set-up, by `tidy`, and by every training run that a worker started, after each of its rounds.
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging import get_run_logger
from prefect.runtime import deployment

from flows.automations import FLOWS, WATCHED
from flows.queries import flow_runs, has_beaten

_FLOWS = [*FLOWS, "round", "tidy"]
_ALIVE = [StateType.PENDING, StateType.RUNNING, StateType.PAUSED]


def watch_unfinished(client: SyncPrefectClient) -> list[FlowRun]:
    """Have every unfinished run marked as crashed unless it shows a sign of life in time; returns the runs."""
    watched = [
        run
        for run in flow_runs(client, {"state": {"type": {"any_": _ALIVE}}}, flows=_FLOWS)
        if _would_beat(client, run)
    ]
    flows = client.read_flows(flow_filter=FlowFilter.model_validate({"name": {"any_": _FLOWS}}))
    names = {flow.id: flow.name for flow in flows}
    events = [
        {
            "id": str(uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": WATCHED,
            "resource": {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.name": run.name},
            "related": [
                {
                    "prefect.resource.id": f"prefect.flow.{run.flow_id}",
                    "prefect.resource.role": "flow",
                    "prefect.resource.name": names[run.flow_id],
                }
            ],
        }
        for run in watched
    ]
    if events:
        client.request("POST", "/events", json=events).raise_for_status()
    return watched


def watch_the_others() -> None:
    """Watch, where this is a run of a deployment. What goes wrong is no reason to end it."""
    if deployment.id is None:
        return
    try:
        with get_client(sync_client=True) as client:
            watch_unfinished(client)
    except Exception as error:
        get_run_logger().warning("unfinished runs could not be put under watch again: %s", error)


def _would_beat(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Whether silence would mean something: the deployments' runs send heartbeats, others where they have sent one.

    A suspended run has no process that could.
    """
    if run.state_name == "Suspended":
        return False
    return run.deployment_id is not None or has_beaten(client, run.id)
