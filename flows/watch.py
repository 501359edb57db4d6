"""Unfinished runs after the server was away: those that live go on beating, those that died are to be found out.

The automation that marks silent runs counts from the last heartbeat, and a server that was away for minutes has dropped
that count: a run that died meanwhile would stay RUNNING for ever. So each unfinished run is put under watch again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events.filters import EventFilter

from flows.automations import FLOWS, HEARTBEAT, WATCHED
from flows.paging import PAGE, all_pages

_FLOWS = [*FLOWS, "round", "tidy"]
_ALIVE = [StateType.PENDING, StateType.RUNNING, StateType.PAUSED]


def watch_unfinished(client: SyncPrefectClient) -> list[FlowRun]:
    """Have every unfinished run marked as crashed unless it shows a sign of life in time; returns the runs."""
    watched = [run for run in _unfinished(client) if _would_beat(client, run)]
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


def _would_beat(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Whether silence would mean something: the deployments' runs send heartbeats, others where they have sent one.

    A suspended run has no process that could.
    """
    if run.state_name == "Suspended":
        return False
    if run.deployment_id is not None:
        return True
    wanted = EventFilter.model_validate(
        {"event": {"name": [HEARTBEAT]}, "resource": {"id": [f"prefect.flow-run.{run.id}"]}}
    )
    return bool(client.read_events(wanted, limit=1).events)


def _unfinished(client: SyncPrefectClient) -> list[FlowRun]:
    flows = FlowFilter.model_validate({"name": {"any_": _FLOWS}})
    wanted = FlowRunFilter.model_validate({"state": {"type": {"any_": _ALIVE}}})
    return all_pages(
        lambda offset: client.read_flow_runs(flow_filter=flows, flow_run_filter=wanted, limit=PAGE, offset=offset)
    )
