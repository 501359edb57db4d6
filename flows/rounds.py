"""The child flow of one round, and the visit to each that `train` and `resume` share, in order.

Where rounds overlap, two child flows run at a time, each in a thread; they begin in order, which is what Prefect knows
them by in a retry.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from crl.engine.driver import Driver, driver_for
from crl.errors import CrlError
from flows.approval import wait_for_decision
from flows.disagreement import report_disagreements
from flows.shards import spread_over_tasks
from flows.tidy import end_earlier_attempts, watch_the_others
from tasks.artifacts import finish_page, publish_failure, publish_round
from tasks.failures import failed
from tasks.stage import stage_task


@flow(name="round", flow_run_name="round {number}", persist_result=False)
def run_round(run_path: str, number: int) -> State[Any] | None:
    """Every stage of a round, in the order of the recipe. Complete stages are skipped by the record."""
    driver = driver_for(run_path)
    run_stage = stage_task(driver.runtime)
    try:
        with driver.round(number) as stages:
            for stage in stages:
                wait_for_decision(driver, number, stage)
                state: Any = run_stage(run_path, number, stage, return_state=True)
                state.result()
    except CrlError as error:
        publish_failure(run_path, number)
        return failed(error)
    publish_round(run_path, number)
    return None


def run_rounds(driver: Driver, first: int, last: int) -> list[int]:
    """Rounds first to last; returns those that had something to do. Raises the error of the stage that failed.

    What a retried flow run set out with may build on rounds that were taken back since: they run before. A round that
    is complete is visited too when the flow run set out with it: Prefect recognizes the child runs of a retried flow
    run by their order.
    """
    if (missing := driver.next_round()) < first:
        get_run_logger().info("round %d is not complete any more: the rounds from there on run first", missing)
        first = missing
    had_work = [number for number in range(first, last + 1) if not driver.round_complete(number)]
    report_disagreements(driver)
    end_earlier_attempts()
    if not had_work:
        get_run_logger().info(
            "Nothing to do: every round up to %d is complete. Ask for more rounds to go on.", driver.next_round() - 1
        )
        return []
    spread_over_tasks(driver)
    # The run's own heartbeat stands for its rounds: ending a heartbeat takes Prefect up to a second.
    with temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        try:
            driver.visit(range(first, last + 1), partial(_visit, driver))
        finally:
            finish_page(driver.run.path)
    return had_work


def _visit(driver: Driver, number: int) -> None:
    run_round(str(driver.run.path), number, return_state=True).result(raise_on_failure=True)
    if not driver.round_complete(number):
        get_run_logger().warning(
            "Prefect has round %d as done, the record has not: the record is right, the round runs", number
        )
        run_round(str(driver.run.path), number, return_state=True).result(raise_on_failure=True)
    watch_the_others()
