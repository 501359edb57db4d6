"""Parts of a stage over several engines: how many run at a time, where each runs, and how their progress is one.

A stage declares its parts (`crl/rounds/stage.py`), a run its shards (`runtime.shards`). With one shard the engine of
the stage runs its parts in order (`execute.py`), and nothing here is used. With several, :func:`run_spread` has the
missing ones run by that many engines of this machine, or by a part runner: one that uses other machines, which see the
same file system, and is sent orders small enough to cross to them (`flows/shards.py` over Dask, whose workers have
engines of their own: `detached.py`). Which engine runs a part changes no digest. No part is tried again by itself: the
stage is (`Driver.run_stage`), and finds those that are complete.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from crl.engine.jobs import Job, ProgressMetrics, StageOutcome
from crl.engine.supervisor import Engine
from crl.errors import CrlError


@dataclass(frozen=True, slots=True)
class PartOrder:
    """One part to run: everything a process without a driver must know."""

    job: Job
    """Holds the attempt's token: a part under an older one is refused."""
    count: int
    """Parts of the stage, complete ones included."""
    environment: Mapping[str, str]
    """Added to the environment of the engine."""
    time_limit: float
    """Seconds until the engine of the part is ended."""
    gpus: int = 1
    """How many an engine uses, where there are any."""

    @property
    def stage(self) -> str:
        """The stage's name."""
        return self.job.stage

    @property
    def number(self) -> int:
        """The part, counted from 1 as people do."""
        return (self.job.part or 0) + 1


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """What came of a part that was run for an order."""

    part: int
    skipped: bool
    """Whether it was complete already."""
    seconds: float
    metrics: ProgressMetrics
    """The latest progress; empty before any was reported."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The missing parts of a stage."""

    parts: tuple[int, ...]
    order: Callable[[int], PartOrder]
    """Makes the order of a part, when it is about to start: its time limit is what is left of the stage's."""
    report: Callable[[int, ProgressMetrics], None]
    """Takes the progress of a part."""


class PartRunner(Protocol):
    """Runs the parts of stages somewhere else."""

    def __call__(self, spread: Spread) -> None:
        """Run every part, or raise. Parts that were completed before it raised are kept and not run again."""
        ...

    def cancel(self) -> None:
        """From another thread, for good: the call under way ends what runs and raises Cancelled, later ones too."""
        ...


def run_on(engine: Engine, order: PartOrder, on_metrics: Callable[[ProgressMetrics], None]) -> PartOutcome:
    """Have an engine run a part. Raises what the part raises, EngineDied, StageTimedOut, Cancelled."""
    latest: ProgressMetrics = {}

    def heard(message: dict[str, Any]) -> None:
        nonlocal latest
        latest = message["metrics"]
        on_metrics(latest)

    done = StageOutcome.from_json(engine.run(order.job, on_message=heard, time_limit=order.time_limit))
    return PartOutcome(part=order.number - 1, skipped=done.skipped, seconds=done.seconds, metrics=latest)


def run_spread(spread: Spread, runner: PartRunner | None, engines: Callable[[int], Sequence[Engine]]) -> None:
    """Run the missing parts of a stage: by a part runner, else by as many engines as `engines` gives for them.

    Raises as :func:`run_parts` or the runner does. A part that is missing alone is left to the engine of the stage.
    """
    if runner is not None:
        runner(spread)
    elif len(spread.parts) > 1:
        run_parts(
            engines(len(spread.parts)),
            spread.parts,
            lambda engine, part: run_on(engine, spread.order(part), partial(spread.report, part)),
        )


def run_parts(engines: Sequence[Engine], parts: Sequence[int], run_part: Callable[[Engine, int], object]) -> None:
    """Run every part on whichever engine is free.

    After a transient failure the other engines go on: what they complete need not be repeated. Any other failure stops
    the handing out of parts; the first such failure is raised, else the first transient one. When the wait itself is
    interrupted (cancellation, Ctrl-C), all engines are ended.
    """
    waiting = deque(parts)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(engine: Engine) -> None:
        while not stop.is_set():
            try:
                part = waiting.popleft()
            except IndexError:
                return
            try:
                run_part(engine, part)
            except BaseException as error:
                failures.append(error)
                if not (isinstance(error, CrlError) and error.transient):
                    stop.set()
                return

    with ThreadPoolExecutor(max_workers=len(engines), thread_name_prefix="shard") as pool:
        futures: list[Future[None]] = [pool.submit(work, engine) for engine in engines]
        try:
            while wait(futures, timeout=0.5, return_when=FIRST_EXCEPTION).not_done:
                pass  # short waits, so that a signal's exception reaches this thread
        except BaseException:
            stop.set()
            for engine in engines:
                engine.cancel()
            wait(futures)
            for engine in engines:
                engine.stop()  # one that was idle at that moment must not take its next job for cancelled
            raise
    permanent = [error for error in failures if not (isinstance(error, CrlError) and error.transient)]
    for error in (*permanent, *failures):
        raise error


class PartProgress:
    """Progress of parts that run side by side as progress of the stage.

    `done` and `total` are sums; a part that has not reported counts as large as the mean of those that have.
    Whole-number metrics are summed, other numbers averaged by what each part has done, else the latest counts.
    """

    def __init__(self, count: int, tell: Callable[[dict[str, Any]], None]) -> None:
        self.count, self._tell = count, tell
        self._latest: dict[int, ProgressMetrics] = {}
        self._finished_before = 0
        self._lock = threading.Lock()

    def finished_before(self, parts: int) -> None:
        """Parts that were complete when the stage began."""
        self._finished_before = parts

    def report(self, part: int, metrics: ProgressMetrics) -> None:
        """Take the metrics of one part and report those of the stage."""
        with self._lock:
            self._latest[part] = metrics
            self._tell(self._combined())

    def _combined(self) -> dict[str, Any]:
        seen = list(self._latest.values())
        mean = sum(int(metrics["total"]) for metrics in seen) / len(seen)
        done = sum(int(metrics["done"]) for metrics in seen)
        combined: dict[str, Any] = {
            "done": done + round(mean * self._finished_before),
            "total": round(mean * self.count),
        }
        for name in dict.fromkeys(name for metrics in seen for name in metrics if name not in ("done", "total")):
            combined[name] = _combine([(metrics[name], int(metrics["done"])) for metrics in seen if name in metrics])
        return combined


def _combine(values: list[tuple[Any, int]]) -> Any:
    numbers = [(value, weight) for value, weight in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        return values[-1][0]
    if all(isinstance(value, int) and not isinstance(value, bool) for value, _ in numbers):
        return sum(value for value, _ in numbers)
    weights = sum(weight for _, weight in numbers)
    if not weights:
        return sum(value for value, _ in numbers) / len(numbers)
    return sum(value * weight for value, weight in numbers) / weights
