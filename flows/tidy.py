"""Flow `tidy`: what a dead run left running becomes CRASHED, so that nothing in the UI runs for ever.

A killed process cannot say that the round and the stage it was in died with it. Their parent is marked by the worker
or, without a heartbeat, by an automation; this flow follows the family tree downwards from there. It decides from
states and heartbeats alone and touches no process and no run directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

from prefect import flow, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType, TaskRun
from prefect.events.filters import EventFilter
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Crashed, Running
from pydantic import Field

from flows.automations import HEARTBEAT_SECONDS

_UNFINISHED = [StateType.RUNNING, StateType.PENDING]
_DEAD = (StateType.CRASHED, StateType.FAILED, StateType.CANCELLED)
_PAGE = 200

RunId = Annotated[
    UUID | None, Field(description="The flow run that died; nothing: everything that dead runs have left.")
]


@dataclass
class Tidied:
    """Names of what was marked, and of runs that turned out to live."""

    marked: list[str] = field(default_factory=list)
    revived: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"marked {', '.join(self.marked)}"] if self.marked else []
        parts += [f"still alive: {', '.join(self.revived)}"] if self.revived else []
        return "; ".join(parts) or "nothing to tidy"


@flow(name="tidy", persist_result=False)
def tidy(flow_run_id: RunId = None) -> None:
    """Mark what the dead run left running; without an id, what any dead run has left."""
    with get_client(sync_client=True) as client:
        get_run_logger().info("%s", tidy_up(client, flow_run_id))


def tidy_up(client: SyncPrefectClient, flow_run_id: UUID | None = None) -> Tidied:
    """The work of the flow, for whoever calls it without one. Runs whose process may live are left alone."""
    tidied = Tidied()
    if flow_run_id is not None:
        parents = [client.read_flow_run(flow_run_id)]
    else:
        parents = list(_parents_of_unfinished(client))
    for parent in parents:
        _tidy_below(client, parent, tidied)
    return tidied


def _tidy_below(client: SyncPrefectClient, parent: FlowRun, tidied: Tidied) -> None:
    state = parent.state
    if state is None or state.type not in _DEAD:
        return
    if state.type is StateType.CRASHED and _beats_since(client, parent, state):
        # The server was away for longer than the silence allowed, the run was not.
        client.set_flow_run_state(parent.id, Running(message="its heartbeats are back: the run lives"), force=True)
        tidied.revived.append(parent.name)
        return
    stages = _task_runs(client, {"flow_run_id": {"any_": [parent.id]}})
    children = _children(client, stages)
    for child in children:
        if child.state is not None and child.state.type in _UNFINISHED:
            end = _end(parent, state)
            client.set_flow_run_state(child.id, end, force=True)
            tidied.marked.append(f"{child.name} of {parent.name}")
            child.state = end
        _tidy_below(client, child, tidied)
    for stage in stages:
        if stage.state is not None and stage.state.type in _UNFINISHED:
            client.set_task_run_state(stage.id, _end(parent, state), force=True)
            tidied.marked.append(f"{stage.name} of {parent.name}")


def _end(parent: FlowRun, state: State) -> State:
    """What becomes of something whose parent is dead."""
    if state.type is StateType.CANCELLED:
        return Cancelled(message=f"ended with {parent.name!r}, which was cancelled")
    return Crashed(message=f"ended with {parent.name!r}, whose process died or failed")


def _beats_since(client: SyncPrefectClient, run: FlowRun, state: State) -> bool:
    """Whether heartbeats arrive although the run was marked: one later than the mark, and lately."""
    now = datetime.now(UTC)
    since = max(state.timestamp + timedelta(seconds=1), now - timedelta(seconds=2 * HEARTBEAT_SECONDS))
    if since >= now:
        return False
    events = client.read_events(
        EventFilter.model_validate(
            {
                "event": {"name": ["prefect.flow-run.heartbeat"]},
                "resource": {"id": [f"prefect.flow-run.{run.id}"]},
                "occurred": {"since": since, "until": now},
            }
        ),
        limit=1,
    )
    return bool(events.events)


def _parents_of_unfinished(client: SyncPrefectClient) -> Iterator[FlowRun]:
    """Flow runs with something unfinished below them, dead or alive, each once."""
    unfinished = {"state": {"type": {"any_": _UNFINISHED}}}
    seen: set[UUID] = set()
    wanted = {run.flow_run_id for run in _task_runs(client, unfinished) if run.flow_run_id is not None}
    tracking = [run.parent_task_run_id for run in _flow_runs(client, unfinished) if run.parent_task_run_id is not None]
    if tracking:
        wanted |= {run.flow_run_id for run in _task_runs(client, {"id": {"any_": tracking}}) if run.flow_run_id}
    while wanted - seen:
        seen |= wanted
        yield from _flow_runs(client, {"id": {"any_": sorted(wanted)}})
        wanted = set()


def _children(client: SyncPrefectClient, stages: list[TaskRun]) -> list[FlowRun]:
    """Child flow runs, by the task runs that stand for them in their parent."""
    if not stages:
        return []
    return _flow_runs(client, {"parent_task_run_id": {"any_": [stage.id for stage in stages]}})


def _flow_runs(client: SyncPrefectClient, conditions: dict[str, object]) -> list[FlowRun]:
    found: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate(conditions), limit=_PAGE, offset=len(found)
        )
        found += page
        if len(page) < _PAGE:
            return found


def _task_runs(client: SyncPrefectClient, conditions: dict[str, object]) -> list[TaskRun]:
    found: list[TaskRun] = []
    while True:
        page = client.read_task_runs(
            task_run_filter=TaskRunFilter.model_validate(conditions), limit=_PAGE, offset=len(found)
        )
        found += page
        if len(page) < _PAGE:
            return found
