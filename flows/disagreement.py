"""Where Prefect and the record disagree about a flow run that runs again. The record decides; this only says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.context import FlowRunContext

from crl.engine.driver import Driver
from flows.waiting import run_logger

_ROUND = re.compile(r"^round (\d+)$")
_PAGE = 200


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
    with get_client(sync_client=True) as client:
        rounds: dict[UUID, int] = {}
        while True:
            page: list[FlowRun] = client.read_flow_runs(
                flow_run_filter=FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [flow_run_id]}}),
                limit=_PAGE,
                offset=len(rounds),
            )
            for child in page:
                found = _ROUND.match(child.name)
                rounds[child.id] = int(found[1]) if found else -1
            if len(page) < _PAGE:
                break
        if not rounds:
            return
        seen = 0
        while True:
            tasks = client.read_task_runs(
                task_run_filter=TaskRunFilter.model_validate({"flow_run_id": {"any_": list(rounds)}}),
                limit=_PAGE,
                offset=seen,
            )
            seen += len(tasks)
            for task in tasks:
                if task.flow_run_id is not None and rounds[task.flow_run_id] >= 0:
                    yield rounds[task.flow_run_id], task
            if len(tasks) < _PAGE:
                return
