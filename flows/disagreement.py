"""Where Prefect and the record disagree about a flow run that runs again. The record decides; this only says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import TaskRun

from crl.engine.driver import Driver
from flows.present import flow_runs, present_run, run_logger, task_runs

_ROUND = re.compile(r"^round (\d+)$")


def report_disagreements(driver: Driver) -> None:
    """Write into the log what Prefect remembers of the present flow run's stages that the record knows otherwise."""
    run = present_run()
    if run is not None and run.run_count > 1:
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
        children = flow_runs(client, {"parent_flow_run_id": {"any_": [flow_run_id]}})
        rounds = {child.id: int(found[1]) for child in children if (found := _ROUND.match(child.name))}
        if not rounds:
            return
        for task in task_runs(client, {"flow_run_id": {"any_": list(rounds)}}):
            if task.flow_run_id is not None:
                yield rounds[task.flow_run_id], task
