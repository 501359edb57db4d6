"""Progress of a running stage in the Prefect UI: a bar for each task run whose stage takes longer than a moment.

It is made only once a stage has run for :data:`AFTER_SECONDS`, is changed at most every :data:`EVERY_SECONDS`, and is
full once the stage is committed. A thread of its own makes the requests: the events come from the thread that waits for
the engine, and that one must not wait for a server. A server that does not answer costs the bar and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.logging import get_run_logger

from crl.cli.progress import progress_text
from crl.engine.driver import Driver
from crl.engine.events import Event, Progress, StageDone

AFTER_SECONDS = 5.0
"""A stage that is done sooner has no bar."""
EVERY_SECONDS = 5.0
"""Least time between two requests."""
_LAST_SECONDS = 2.0
"""Longest wait for the last request: the stage is committed, and the next one need not wait for a server."""


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
        figure = min(100.0, max(0.0, round(percent, 1)))
        description = f"round {number}, {stage}: {told}"
        if self._artifact is None:
            self._artifact = cast(UUID, create_progress_artifact(figure, description=description))
        else:
            update_progress_artifact(self._artifact, figure, description=description)
