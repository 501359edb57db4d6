"""The Prefect task that runs one stage: retries of transient failures, log lines, artifacts of data-check breaches.

What it takes and returns is small: paths, names, a digest. Rows stay in the run directory.

A stage that takes longer than a moment has a progress bar in the UI. It is made only once a stage has run for
:data:`AFTER_SECONDS`, is changed at most every :data:`EVERY_SECONDS`, and is full once the stage is committed. A thread
of its own makes the requests: the events come from the thread that waits for the engine, and that one must not wait for
a server. A server that does not answer costs the bar and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, cast
from uuid import UUID

from prefect import Task, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.tasks import exponential_backoff

from crl.cli.progress import progress_text
from crl.config import Runtime
from crl.engine.driver import Driver, driver_for
from crl.engine.events import Event, LogLine, Progress, StageDone, StageSkipped
from crl.errors import CrlError, DataCheckFailed
from tasks.artifacts import publish_breach
from tasks.failures import failed, located, log_error

PROGRESS_LOG_SECONDS = 10.0
AFTER_SECONDS = 5.0
"""A stage that is done sooner has no bar."""
EVERY_SECONDS = 5.0
"""Least time between two requests."""
_LAST_SECONDS = 2.0
"""Longest wait for the last request: the stage is committed, and the next one need not wait for a server."""


def stage_task(runtime: Runtime) -> Task[..., Any]:
    """The task with the retries of an experiment: the rule of `Driver.run_stage`, kept by Prefect, which shows it."""
    return run_stage.with_options(
        retries=runtime.retries,
        retry_delay_seconds=exponential_backoff(runtime.retry_delay_seconds),
        retry_jitter_factor=0.5,
        retry_condition_fn=is_transient,
    )


def is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether trying again may help: the error's class says so. Anything that is not our own error is not retried."""
    try:
        state.result()
    except CrlError as error:
        return error.transient
    except BaseException:
        return False
    return False


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
            outcome = driver.run_stage(round_number, stage, retries=0)
    except CrlError as error:
        located(error, f"round {round_number}, {stage}")
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


def progress_line(what: str, done: int, total: int, metrics: Mapping[str, Any]) -> str:
    """`collect: 12 of 32 (episodes 8, turns/s 9.1)`"""
    told = ", ".join(f"{name} {_short(value)}" for name, value in metrics.items())
    return f"{what}: {done} of {total}" + (f" ({told})" if told else "")


def _logging(round_number: int, stage: str) -> Callable[[Event], None]:
    """A subscriber that writes what it hears of a stage to the task run's log; progress at most every few seconds.

    Events may come from threads of the engines, which know no task run: the logger is the task's.
    """
    logger = get_run_logger()
    last = time.monotonic()

    def write(event: Event) -> None:
        nonlocal last
        if not isinstance(event, LogLine | Progress | StageDone | StageSkipped) or (
            (event.round, event.stage) != (round_number, stage)
        ):
            return  # where rounds overlap, another stage runs beside this one
        match event:
            case LogLine():
                logger.info("%s | %s", event.engine, event.text)
            case Progress() if time.monotonic() - last >= PROGRESS_LOG_SECONDS:
                last = time.monotonic()
                logger.info(progress_line(stage, event.done, event.total, event.metrics))
            case StageDone():
                rows = ", ".join(f"{count} {table}" for table, count in event.rows.items())
                logger.info("%s: done in %.1f s, digest %s; %s", stage, event.seconds, event.digest[:12], rows)
            case StageSkipped():
                logger.info("%s: complete already, digest %s", stage, event.digest[:12])

    return write


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def shown_progress(driver: Driver, round_number: int, stage: str) -> Iterator[None]:
    """Around a stage, inside the task run that runs it: shows how far the stage is while the block runs."""
    bar = _Bar(round_number, stage)
    unsubscribe = driver.subscribe(bar)
    try:
        yield
    finally:
        unsubscribe()
        bar.end()


class _Bar:
    """Subscriber of a driver; events of other stages are passed over."""

    def __init__(self, round_number: int, stage: str) -> None:
        self._place = (round_number, stage)
        self._context = copy_context()
        self._logger = get_run_logger()
        self._newest: Progress | None = None
        self._done = False
        self._ended = threading.Event()
        self._started = time.monotonic()
        self._artifact: UUID | None = None
        self._thread: threading.Thread | None = None

    def end(self) -> None:
        """Have the last request made and end the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)

    def __call__(self, event: Event) -> None:
        """Take note of one event; costs nothing but the thread that the first one of a long stage starts."""
        if not isinstance(event, Progress | StageDone) or (event.round, event.stage) != self._place:
            return
        if isinstance(event, StageDone):
            self._done = True
            return
        if not event.total:
            return
        self._newest = event
        if self._thread is None and not self._ended.is_set():
            # A daemon: a flow process that has to end must not wait for a server. The context says which task run.
            run = self._context.run
            self._thread = threading.Thread(
                target=run, args=(self._publish,), name=f"progress of {event.stage}", daemon=True
            )
            self._thread.start()

    def _publish(self) -> None:
        try:
            if self._ended.wait(max(0.0, AFTER_SECONDS - (time.monotonic() - self._started))):
                return
            shown = None
            while not self._ended.is_set():
                if self._newest is not None and self._newest is not shown:
                    shown = self._newest
                    self._send(100 * shown.done / shown.total, progress_text(shown))
                self._ended.wait(EVERY_SECONDS)
            if shown is not None and self._done:
                self._send(100.0, "committed")
        except Exception as error:
            self._logger.warning("the progress of %s could not be shown: %s", self._place[1], error)

    def _send(self, percent: float, told: str) -> None:
        number, stage = self._place
        metric = min(100.0, max(0.0, round(percent, 1)))
        description = f"round {number}, {stage}: {told}"
        if self._artifact is None:
            self._artifact = cast(UUID, create_progress_artifact(metric, description=description))
        else:
            update_progress_artifact(self._artifact, metric, description=description)
