"""Where Prefect and the record disagree about a flow run that runs again. The record decides; this only says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import TaskRun
from prefect.context import FlowRunContext

from crl.engine.driver import Driver
from flows.paging import PAGE, all_pages
from flows.waiting import run_logger

_ROUND = re.compile(r"^round (\d+)$")


def report_disagreements(driver: Driver) -> None:
    """Write into the log what Prefect remembers of the present flow run's stages that the record knows otherwise."""
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is None or run.run_count <= 1:
        return
    for line in disagreements(driver, run.id):
        run_logger().warning("%s", line)


def disagreements(driver: Driver, flow_run_id: UUID) -> Iterator[str]:
    """One line for each stage of the flow run's rounds that Prefect and the record see differently."""
    remembered: dict[tuple[int, str], bool] = {}
    for number, task in _tasks(flow_run_id):
        # Several attempts of one stage: what any of them completed was complete.
        done = task.state is not None and task.state.is_completed()
        remembered[number, task.name] = remembered.get((number, task.name), False) or done
    for (number, stage), done in sorted(remembered.items()):
        if stage not in driver.stages(number):
            continue
        complete = driver.run.is_complete(number, stage)
        if done and not complete:
            yield f"Prefect has {stage} of round {number} as completed, the record has not: it runs again"
        elif complete and not done:
            yield f"Prefect has {stage} of round {number} as not completed, the record has it: it does not run again"


def _tasks(flow_run_id: UUID) -> Iterator[tuple[int, TaskRun]]:
    below = FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [flow_run_id]}})
    with get_client(sync_client=True) as client:
        children = all_pages(lambda offset: client.read_flow_runs(flow_run_filter=below, limit=PAGE, offset=offset))
        rounds = {child.id: int(found[1]) for child in children if (found := _ROUND.match(child.name))}
        if not rounds:
            return
        wanted = TaskRunFilter.model_validate({"flow_run_id": {"any_": list(rounds)}})
        for task in all_pages(lambda offset: client.read_task_runs(task_run_filter=wanted, limit=PAGE, offset=offset)):
            if task.flow_run_id is not None:
                yield rounds[task.flow_run_id], task
