"""Questions to the server about runs. It answers a page at a time; these return everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.events.filters import EventFilter

HEARTBEAT = "prefect.flow-run.heartbeat"
_PAGE = 200
"""Items asked for at once."""

T = TypeVar("T")


def flow_runs(
    client: SyncPrefectClient, conditions: dict[str, Any], *, flows: Sequence[str] | None = None
) -> list[FlowRun]:
    """Flow runs that meet the conditions (fields of `FlowRunFilter`), of the named flows or of all."""
    wanted = FlowRunFilter.model_validate(conditions)
    of = None if flows is None else FlowFilter.model_validate({"name": {"any_": list(flows)}})
    return _all(
        lambda offset: client.read_flow_runs(flow_filter=of, flow_run_filter=wanted, limit=_PAGE, offset=offset)
    )


def task_runs(client: SyncPrefectClient, conditions: dict[str, Any]) -> list[TaskRun]:
    """Task runs that meet the conditions (fields of `TaskRunFilter`)."""
    wanted = TaskRunFilter.model_validate(conditions)
    return _all(lambda offset: client.read_task_runs(task_run_filter=wanted, limit=_PAGE, offset=offset))


def has_beaten(client: SyncPrefectClient, run_id: UUID, since: datetime | None = None) -> bool:
    """Whether a flow run has sent a heartbeat since then; without a time, whether it has sent one recently at all."""
    conditions: dict[str, Any] = {"event": {"name": [HEARTBEAT]}, "resource": {"id": [f"prefect.flow-run.{run_id}"]}}
    if since is not None:
        conditions["occurred"] = {"since": since, "until": datetime.now(UTC)}
    return bool(client.read_events(EventFilter.model_validate(conditions), limit=1).events)


def _all(read: Callable[[int], Sequence[T]]) -> list[T]:
    found: list[T] = []
    while True:
        page = read(len(found))
        found += page
        if len(page) < _PAGE:
            return found
