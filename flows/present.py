"""The present flow run: its log, the name and tags by which people find it in lists, the state that it shows.

And questions to the server about other runs. It answers a page at a time; these return everything.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.context import FlowRunContext
from prefect.events.filters import EventFilter
from prefect.exceptions import MissingContextError
from prefect.logging import get_logger, get_run_logger

from crl.config import Method
from crl.policies.machine import replaced

HEARTBEAT = "prefect.flow-run.heartbeat"
PAGE = 200
"""Items asked for at once."""

T = TypeVar("T")


def present_run() -> FlowRun | None:
    """The flow run that this is; None outside one."""
    context = FlowRunContext.get()
    return None if context is None else context.flow_run


def run_logger() -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    """The log of the flow run; outside one, Prefect's."""
    try:
        return get_run_logger()
    except MissingContextError:
        return get_logger("flows")


def log_precision(method: Method) -> None:
    """Log where roles are computed in another precision than was asked for."""
    if (said := replaced(method)) is not None:
        run_logger().info(said)


def label(experiment: str, what: str) -> None:
    """Call the present flow run `<experiment>: <what>` and tag it with the experiment; outside a flow run, nothing.

    A label that cannot be written is no reason to stop.
    """
    run = present_run()
    if run is None:
        return
    name, tags = f"{experiment}: {what}", sorted({*run.tags, experiment})
    if (run.name, run.tags) == (name, tags):
        return
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        client.update_flow_run(run.id, name=name, tags=tags)
        run.name, run.tags = name, tags


def show(state: State[Any], run_id: str | UUID | None) -> None:
    """Propose a state of a flow run; without an id, nothing.

    It is a note for people and may fail; a run that is being cancelled stays so.
    """
    if run_id is None:
        return
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(str(run_id)), state)


def rounds_text(first: int, last: int) -> str:
    """`rounds 0–2`, or `round 2` for one."""
    return f"round {first}" if first == last else f"rounds {first}–{last}"


def flow_runs(
    client: SyncPrefectClient, conditions: dict[str, Any], *, flows: Sequence[str] | None = None
) -> list[FlowRun]:
    """Flow runs that meet the conditions (fields of `FlowRunFilter`), of the named flows or of all."""
    wanted = FlowRunFilter.model_validate(conditions)
    of = None if flows is None else FlowFilter.model_validate({"name": {"any_": list(flows)}})
    return all_pages(
        lambda offset: client.read_flow_runs(flow_filter=of, flow_run_filter=wanted, limit=PAGE, offset=offset)
    )


def task_runs(client: SyncPrefectClient, conditions: dict[str, Any]) -> list[TaskRun]:
    """Task runs that meet the conditions (fields of `TaskRunFilter`)."""
    wanted = TaskRunFilter.model_validate(conditions)
    return all_pages(lambda offset: client.read_task_runs(task_run_filter=wanted, limit=PAGE, offset=offset))


def has_beaten(client: SyncPrefectClient, run_id: UUID, since: datetime | None = None) -> bool:
    """Whether a flow run has sent a heartbeat since then; without a time, whether it has sent one recently at all."""
    conditions: dict[str, Any] = {"event": {"name": [HEARTBEAT]}, "resource": {"id": [f"prefect.flow-run.{run_id}"]}}
    if since is not None:
        conditions["occurred"] = {"since": since, "until": datetime.now(UTC)}
    return bool(client.read_events(EventFilter.model_validate(conditions), limit=1).events)


def all_pages(read: Callable[[int], Sequence[T]]) -> list[T]:
    """Whatever `read` gives from one offset after the other, :data:`PAGE` at once."""
    found: list[T] = []
    while True:
        page = read(len(found))
        found += page
        if len(page) < PAGE:
            return found
