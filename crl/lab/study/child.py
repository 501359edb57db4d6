"""One run of a study in a process of its own: `python -m crl.lab.study.child`, started by `runs.py` only.

Its argument, in JSON, says what to do. It writes events as lines of JSON; whatever else it or an engine prints is its
log. What is complete does not run again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from crl.config import Runtime
from crl.engine import events
from crl.engine.driver import Driver
from crl.engine.services import prepare_environment
from crl.errors import CrlError, LeaseHeld
from crl.lab.study.metrics import success_of
from crl.report.page import write_report
from crl.run.directory import RunDirectory
from crl.trackers.subscriber import Trackers
from crl.validation.subscriber import Validations

_LEASE_PATIENCE_SECONDS = 20.0
"""An owner that was killed a moment ago may still be on its way out."""


def tell(**event: Any) -> None:
    """One event, as a line."""
    print(json.dumps(event), flush=True)


def run(path: Path, rounds: int, runtime: Runtime) -> None:
    """Run what is missing up to round `rounds`, and write the run's page. A study compares runs of equal length."""
    directory = RunDirectory.open(path)
    with _open(directory, runtime.model_copy(update={"stop_at": None})) as driver:
        driver.subscribe(lambda event: _retell(directory, event))
        first = driver.next_round()
        if first <= rounds:
            driver.set_target(rounds - max(first - 1, 0))
            driver.run_rounds(rounds)
    try:
        write_report(path)
    except Exception as error:  # the page is derived: `crl report` makes it, and says more
        tell(event="note", text=f"its page could not be written: {error}")


def make_warm_start(path: Path) -> None:
    """Make what a warm-start file describes, unless it is there."""
    from crl.lab.warm.config import load_warm_start

    # Before torch is imported: it reads them once.
    os.environ.update(prepare_environment(load_warm_start(path).threads))
    from crl.lab.warm.make import make

    make(path, say=lambda line: tell(event="warm_start", text=line))


@contextmanager
def _open(directory: RunDirectory, runtime: Runtime) -> Iterator[Driver]:
    deadline = time.monotonic() + _LEASE_PATIENCE_SECONDS

    def say(line: str) -> None:
        tell(event="note", text=line)

    # Around the driver: the lease is given back before they are waited for.
    with (
        Validations(directory, runtime, say) as validations,
        Trackers(directory, runtime, say) as trackers,
        ExitStack() as stack,
    ):
        while True:
            try:
                driver = stack.enter_context(Driver(directory, runtime))
                break
            except LeaseHeld:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        driver.subscribe(trackers)
        driver.subscribe(validations)
        yield driver


def _retell(directory: RunDirectory, event: events.Event) -> None:
    if isinstance(event, events.RoundDone):
        tell(event="round", round=event.round, success=success_of(directory, event.round))
    elif isinstance(event, events.RetryScheduled):
        tell(event="retry", stage=event.stage, reason=event.reason)
    elif isinstance(event, events.LogLine):
        print(event.text, file=sys.stderr, flush=True)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> None:
    """Do what the argument says."""
    order = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if "warm_start" in order:
            make_warm_start(Path(order["warm_start"]))
        else:
            run(Path(order["run"]), order["rounds"], Runtime.model_validate(order["runtime"]))
    except CrlError as error:
        tell(event="failed", error=error.payload())
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
