"""The Prefect task that runs one stage: log lines, progress, artifacts of data-check breaches.

What it takes and returns is small: paths, names, a digest. Rows stay in the run directory. It has no retries of its
own: the driver retries (`Driver.run_stage`), and the log of the task says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from crl.engine.driver import driver_for
from crl.engine.events import Event, LogLine, Progress, RetryScheduled, StageDone, StageSkipped
from crl.errors import CrlError, DataCheckFailed
from tasks.artifacts import publish_breach
from tasks.failures import failed, log_error, placed
from tasks.progress import shown_progress

PROGRESS_LOG_SECONDS = 10.0


# The record decides what is complete; Prefect's caches must not.
@task(name="stage", task_run_name="{stage}", cache_policy=NO_CACHE, persist_result=False)
def run_stage(run_path: str, round_number: int, stage: str) -> dict[str, Any] | State[Any]:
    """Run a stage of a round, or find it complete. Returns where it is and its digest.

    One of our own errors becomes a failed state whose result raises it; a breached data check is an artifact as well.
    The time limit is not Prefect's (which cannot interrupt a blocking call): the driver ends the engine.
    """
    driver = driver_for(run_path)
    unsubscribe = driver.subscribe(_logging(round_number, stage))
    try:
        with shown_progress(driver, round_number, stage):
            outcome = driver.run_stage(round_number, stage)
    except CrlError as error:
        placed(error, f"round {round_number}, {stage}")
        if isinstance(error, DataCheckFailed):
            publish_breach(run_path, round_number, stage, error)
        log_error(error)
        return failed(error)
    finally:
        unsubscribe()
    return {
        "round": round_number,
        "stage": stage,
        "path": str(driver.run.stage_path(round_number, stage)),
        "digest": outcome.digest,
        "seconds": round(outcome.seconds, 3),
        "skipped": outcome.skipped,
    }


def progress_line(what: str, done: int, total: int, figures: Mapping[str, Any]) -> str:
    """`collect: 12 of 32 (episodes 8, turns/s 9.1)`"""
    told = ", ".join(f"{name} {_short(value)}" for name, value in figures.items())
    return f"{what}: {done} of {total}" + (f" ({told})" if told else "")


def _logging(round_number: int, stage: str) -> Callable[[Event], None]:
    """A subscriber that writes what it hears of a stage to the task run's log; progress at most every few seconds.

    Events may come from threads of the engines, which know no task run: the logger is the task's.
    """
    logger = get_run_logger()
    last = time.monotonic()

    def write(event: Event) -> None:
        nonlocal last
        if not isinstance(event, LogLine | Progress | RetryScheduled | StageDone | StageSkipped) or (
            (event.round, event.stage) != (round_number, stage)
        ):
            return  # where rounds overlap, another stage runs beside this one
        match event:
            case LogLine():
                logger.info("%s | %s", event.engine, event.text)
            case Progress() if time.monotonic() - last >= PROGRESS_LOG_SECONDS:
                last = time.monotonic()
                logger.info(progress_line(stage, event.done, event.total, event.figures))
            case RetryScheduled():
                delay, attempt = event.delay_seconds, event.attempt
                logger.warning("%s: tried again in %.1f s (attempt %d): %s", stage, delay, attempt, event.reason)
            case StageDone():
                rows = ", ".join(f"{count} {table}" for table, count in event.rows.items())
                logger.info("%s: done in %.1f s, digest %s; %s", stage, event.seconds, event.digest[:12], rows)
            case StageSkipped():
                logger.info("%s: complete already, digest %s", stage, event.digest[:12])

    return write


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
