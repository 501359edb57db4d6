"""Flow `tidy`: what a dead run left running becomes CRASHED, so that nothing in the UI runs for ever.

A killed process cannot say that the round and the stage it was in died with it. Their parent is marked by the worker
or, without a heartbeat, by an automation; this flow follows the family tree down from there. It decides from
states and heartbeats alone and touches no process and no run directory.

The automation that marks silent runs counts from the last heartbeat. A server that was away for minutes has dropped
that count, and so has one whose database was locked for a minute when the count was over, as SQLite is where much
happens at once: a run that died would stay RUNNING for ever. So each unfinished run is put under watch again, by
set-up, by `tidy`, and by every training run that a worker started, after each of its rounds: those that live go on
beating, the others are found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID, uuid4

from prefect import flow, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.logging import get_run_logger
from prefect.runtime import deployment
from prefect.states import Cancelled, Crashed, Running
from pydantic import Field

from flows.automations import FLOWS, HEARTBEAT_SECONDS, SILENCE_SECONDS, SILENT, WATCHED
from flows.present import flow_runs, has_beaten, present_run, task_runs
from flows.schedule import deployable

# Also what waits: for its retry, for a person. Below a dead parent nobody is left to go on with it.
_UNFINISHED = {"state": {"type": {"any_": sorted(set(StateType) - TERMINAL_STATES)}}}

RunId = Annotated[
    UUID | None, Field(description="The flow run that died; nothing: everything that dead runs have left.")
]
_FLOWS = [*FLOWS, "round", "tidy"]
_ALIVE = [StateType.PENDING, StateType.RUNNING, StateType.PAUSED]


@dataclass
class Tidied:
    """Names of what was marked, and of runs that turned out to live."""

    marked: list[str] = field(default_factory=list)
    revived: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"marked {', '.join(self.marked)}"] if self.marked else []
        parts += [f"still alive: {', '.join(self.revived)}"] if self.revived else []
        return "; ".join(parts) or "nothing to tidy"


@flow(name="tidy", flow_run_name="tidy", persist_result=False, validate_parameters=False)
@deployable
def tidy(flow_run_id: RunId = None) -> None:
    """Mark what the dead run left running; without an id, what any dead run has left, and watch the living anew."""
    with get_client(sync_client=True) as client:
        get_run_logger().info("%s", tidy_up(client, flow_run_id))
        if flow_run_id is None:
            watched = [run.name for run in watch_unfinished(client)]
            get_run_logger().info("watched for a sign of life: %s", ", ".join(watched) or "nothing")


def tidy_up(client: SyncPrefectClient, flow_run_id: UUID | None = None) -> Tidied:
    """The work of the flow, for whoever calls it without one. Runs whose process may live are left alone."""
    tidied = Tidied()
    parents = _parents_of_unfinished(client) if flow_run_id is None else [flow_run_id]
    for identifier in parents:
        parent = client.read_flow_run(identifier)  # as it is now: what is above it may have changed it
        state = parent.state
        if state is None or not state.is_final():
            continue
        if not _revive(client, parent, tidied):
            _end_below(client, parent, tidied)
    return tidied


def end_earlier_attempts() -> None:
    """Mark what earlier attempts of the present flow run left running.

    To be called with the record's lease held, which proves that their processes are gone, and before the first child
    run or task of this attempt begins.
    """
    run = present_run()
    if run is None or run.run_count <= 1:
        return
    tidied = Tidied()
    with get_client(sync_client=True) as client:
        _end_below(client, run, tidied)
    if tidied.marked:
        get_run_logger().info("an earlier attempt of this run died; %s", tidied)


def _end_below(client: SyncPrefectClient, parent: FlowRun, tidied: Tidied) -> None:
    """Mark everything unfinished below a flow run whose process is gone, a generation at a time."""
    generation = [parent]
    while generation:
        names = {run.id: run.name for run in generation}
        for task in task_runs(client, {"flow_run_id": {"any_": list(names)}, **_UNFINISHED}):
            client.set_task_run_state(task.id, _end(parent), force=True)
            tidied.marked.append(f"{task.name} of {names[task.flow_run_id]}" if task.flow_run_id else task.name)
        generation = flow_runs(client, {"parent_flow_run_id": {"any_": list(names)}})
        for child in generation:
            if child.state is not None and not child.state.is_final():
                client.set_flow_run_state(child.id, _end(parent), force=True)
                tidied.marked.append(child.name)


def _end(parent: FlowRun) -> State[Any]:
    """What becomes of something whose parent is dead."""
    if parent.state is not None and parent.state.is_cancelled():
        return Cancelled(message=f"ended with {parent.name!r}, which was cancelled")
    return Crashed(
        message=f"ended with an attempt of {parent.name!r} whose process died. What was complete is kept; Retry of "
        "that run continues there"
    )


def _revive(client: SyncPrefectClient, run: FlowRun, tidied: Tidied) -> bool:
    """Put a run that was marked in error back to running, and what was marked with it; says whether it was one.

    That happens where the server was away for longer than the silence allowed, and the run was not.
    """
    if run.state is None or not run.state.is_crashed() or not _lives(client, run, run.state):
        return False
    client.set_flow_run_state(run.id, Running(message="its heartbeats are back: the run lives"), force=True)
    tidied.revived.append(run.name)
    for child in flow_runs(
        client, {"parent_flow_run_id": {"any_": [run.id]}, "state": {"type": {"any_": ["CRASHED"]}}}
    ):
        _revive(client, child, tidied)
    return True


def _lives(client: SyncPrefectClient, run: FlowRun, state: State[Any]) -> bool:
    """Whether a run beat lately that was marked: after the mark; or, marked for its silence, when it was silent.

    A run keeps the heartbeats that it cannot deliver, and delivers them when the server is back.
    """
    now = datetime.now(UTC)
    since = state.timestamp + timedelta(seconds=1)
    if (state.message or "").startswith(SILENT):
        since = state.timestamp - timedelta(seconds=SILENCE_SECONDS - HEARTBEAT_SECONDS)
    since = max(since, now - timedelta(seconds=SILENCE_SECONDS))
    if since >= now:
        return False
    return has_beaten(client, run.id, since)


def _parents_of_unfinished(client: SyncPrefectClient) -> list[UUID]:
    """Flow runs with something unfinished below them, dead or alive: the uppermost first."""
    found = [run.flow_run_id for run in task_runs(client, _UNFINISHED) if run.flow_run_id is not None]
    found += _above(client, flow_runs(client, {"parent_task_run_id": {"is_null_": False}, **_UNFINISHED}))
    upwards = list(dict.fromkeys(found))
    generation = upwards
    while generation:
        above = _above(client, flow_runs(client, {"id": {"any_": generation}}))
        upwards += above
        generation = list(dict.fromkeys(above))
    # A run that is met twice counts where it stands highest.
    return list(dict.fromkeys(reversed(upwards)))


def _above(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> list[UUID]:
    """The parents of flow runs. In its parent, a child is below the task run that stands for it."""
    tracking = [run.parent_task_run_id for run in runs if run.parent_task_run_id is not None]
    if not tracking:
        return []
    return [task.flow_run_id for task in task_runs(client, {"id": {"any_": tracking}}) if task.flow_run_id is not None]


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
