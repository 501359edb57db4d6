"""The Prefect task that runs one part of a stage, in whichever process and on whichever machine Dask chose.

It uses a detached engine (`crl.engine.detached`). What it takes and returns is small; rows go straight to the run
directory, which every machine must see at the same path. A part that failed is a task again when its stage is tried
again.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from crl.engine.detached import run_order
from crl.engine.jobs import ProgressMetrics
from crl.engine.parts import PartOrder, PartOutcome
from crl.errors import CrlError
from tasks.failures import failed, located, log_error
from tasks.stage import PROGRESS_LOG_SECONDS, progress_line


@task(
    name="part",
    task_run_name="{order.stage} {order.number} of {order.count}",
    cache_policy=NO_CACHE,
    persist_result=False,
)
def run_part(order: PartOrder) -> PartOutcome | State[Any]:
    """Run a part under the token of the order, or find it complete.

    One of our own errors becomes a failed state whose result raises it, StaleAttempt among them.
    """
    logger, job = get_run_logger(), order.job
    place = f"part {order.number}"

    # Lines come from a thread of their own, which knows neither the settings of this task nor where its server is.
    context = contextvars.copy_context()

    def tell_line(engine: str, text: str) -> None:
        context.run(logger.info, "%s | %s", engine, text)

    try:
        outcome = run_order(order, shard=_shard(), on_line=tell_line, on_metrics=_progress(place, logger.info))
    except CrlError as error:
        located(error, f"round {job.round}, {order.stage}, part {order.number} of {order.count}")
        log_error(error)
        return failed(error)
    if outcome.skipped:
        logger.info("%s: complete already", place)
    else:
        logger.info("%s: done in %.1f s", place, outcome.seconds)
    return outcome


def _progress(place: str, log: Callable[..., None]) -> Callable[[ProgressMetrics], None]:
    last = time.monotonic()

    def tell(metrics: ProgressMetrics) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_LOG_SECONDS:
            last = time.monotonic()
            more = {name: value for name, value in metrics.items() if name not in ("done", "total")}
            log(progress_line(place, int(metrics["done"]), int(metrics["total"]), more))

    return tell


def _shard() -> int:
    """The number of the Dask worker, which chooses its device; 0, the first it sees, where it has a name instead."""
    from distributed import get_worker

    name = get_worker().name
    return name if isinstance(name, int) else 0
