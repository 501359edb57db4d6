"""The child flow of one round, and the loop over rounds that `train` and `resume` share, one after another."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.logging import get_run_logger

from crl.engine.driver import Driver, driver_for
from tasks.artifacts import publish_round
from tasks.stage import stage_task


@flow(name="round", flow_run_name="round {number}", persist_result=False)
def run_round(run_path: str, number: int) -> None:
    """Every stage of a round, in the order of the recipe. Complete stages are skipped by the record."""
    driver = driver_for(run_path)
    run_stage = stage_task(driver.runtime)
    outcomes: list[dict[str, Any]] = []
    with driver.round(number) as stages:
        for stage in stages:
            outcomes.append(run_stage(run_path, number, stage))
    publish_round(number, outcomes)


def run_rounds(driver: Driver, first: int, last: int) -> list[int]:
    """Rounds first to last; returns those that had something to do.

    A round that is complete is visited too when the flow run set out with it: Prefect tells child runs of a retried
    flow run apart by their order.
    """
    had_work = [number for number in range(first, last + 1) if not driver.round_complete(number)]
    if not had_work:
        get_run_logger().info(
            "Nothing to do: every round up to %d is complete. Ask for more rounds to go on.", driver.next_round() - 1
        )
        return []
    for number in range(first, last + 1):
        run_round(str(driver.run.path), number)
    return had_work
