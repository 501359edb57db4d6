"""Parts of a stage as Prefect tasks on a Dask cluster, where `runtime.task_runner` is `dask`; one task per part.

The task runner is started with the first stage that has parts and stays for the rounds that follow, so that processes
and models are warm. It is ended with the driver, before the lease is given back. With one shard, or `engines`, nothing
here is used. Environment variable `DASK_SCHEDULER_ADDRESS` names the cluster, whose workers see the same files. None is
made here: on one machine engines side by side (`crl/engine/parts.py`) do the same.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture, PrefectWrappedFuture
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed
from prefect.task_runners import TaskRunner

from crl.config import Runtime, TaskRunnerName
from crl.config.experiment import SCHEDULER_VARIABLE
from crl.engine.detached import end_engines
from crl.engine.driver import Driver
from crl.engine.jobs import Job
from crl.engine.parts import PartOrder, PartOutcome, Spread
from crl.engine.supervisor import Cancelled
from crl.errors import CrlError, EngineDied, StageTimedOut
from crl.preflight import check_task_runner
from crl.preflight.numbers import check_scheduler
from tasks.part import run_part

_TICK_SECONDS = 0.5
_CANCEL_SECONDS = 2.0
_LOOK_SECONDS = 5.0
_TELL_SECONDS = 60.0
"""A stage none of whose parts has begun for so long says so."""


def spread_over_tasks(driver: Driver) -> None:
    """Have the parts of stages run as tasks where the runtime says so. Raises BadInput where the runner is missing, or
    the cluster."""
    runtime = driver.runtime
    if runtime.shards > 1 and runtime.task_runner is TaskRunnerName.dask:
        check_task_runner(runtime)
        check_scheduler()
        driver.spread_with(driver.keep(PartTasks(runtime)))


class PartTasks:
    """Runs the parts of a spread, `shards` at a time; a context manager that ends the task runner."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._runner: TaskRunner[Any] | None = None
        self._latest: PartOrder | None = None
        """What was submitted last."""
        self._cancelled = threading.Event()

    def __enter__(self) -> PartTasks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def __call__(self, spread: Spread) -> None:
        """Run every part. Parts that are running when another fails are finished; what is complete stays.

        A part that fails does not keep the others from being tried, unless its error is permanent.
        Raises the first permanent error, else the first of all; StageTimedOut where no part begins within the time
        limit of a stage, Cancelled.
        """
        attempt, waiting = _Attempt(spread), _Waiting(self._runtime.stage_time_limit_seconds)
        try:
            runner = self._started()
            while attempt.goes_on():
                if self._cancelled.is_set():
                    raise Cancelled("the run is being ended")
                while attempt.has_part_for(self._runtime.shards):
                    order = attempt.next_order()
                    with _server_known():
                        attempt.running(runner.submit(run_part, {"order": order}))
                    self._latest = order
                if attempt.wait():
                    waiting.begin_again()
                waiting.look(runner, attempt.keys, order)
        except BaseException as error:
            self._end(at_once=True)
            _for_a_moment(attempt.mark_crashed)
            if (interruption := _interruption_in(error)) is not None:
                raise interruption from None
            raise
        if attempt.broken:
            self._end(at_once=True)
        attempt.raise_failure()

    def cancel(self) -> None:
        """As :class:`crl.engine.parts.PartRunner` has it: the thread that waits for the parts ends them."""
        self._cancelled.set()

    def _started(self) -> TaskRunner[Any]:
        if self._runner is None:
            self._runner = _new_runner()
            self._runner.__enter__()
        return self._runner

    def _end(self, *, at_once: bool = False) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if at_once and self._latest is not None:
            _end_engines_on(runner, self._latest.job)
        runner.__exit__(None, None, None)


class _Attempt:
    """Bookkeeping of one spread: what waits, what runs, what failed."""

    def __init__(self, spread: Spread) -> None:
        self._spread = spread
        self._waiting = deque(spread.parts)
        self._futures: set[PrefectFuture[Any]] = set()
        self._ended: queue.SimpleQueue[PrefectFuture[Any]] = queue.SimpleQueue()
        self._failures: list[CrlError] = []
        self._permanent: CrlError | None = None
        self.broken = False
        """Whether a process of the runner died: none of its others can be used any more."""

    def goes_on(self) -> bool:
        return bool(self._futures) or self.has_part_for(1)

    def has_part_for(self, shards: int) -> bool:
        stopped = self.broken or self._permanent is not None
        return bool(self._waiting) and len(self._futures) < shards and not stopped

    def next_order(self) -> PartOrder:
        return self._spread.order(self._waiting.popleft())

    def running(self, future: PrefectFuture[Any]) -> None:
        self._futures.add(future)
        future.add_done_callback(self._ended.put)

    @property
    def keys(self) -> set[str]:
        """What Dask calls the parts that were submitted."""
        return {future.wrapped_future.key for future in self._futures if isinstance(future, PrefectWrappedFuture)}

    def wait(self) -> bool:
        """Until a part ended, or for a moment: an interruption of this thread must get its turn. Whether one ended."""
        try:
            future = self._ended.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            return False
        self._futures.discard(future)
        try:
            outcome: PartOutcome = future.result()
        except CrlError as error:
            if not error.transient:
                self._permanent = self._permanent or error
            self._failures.append(error)
        except Exception as error:
            if not _process_died(error):
                raise
            self.broken = True
            _mark_crashed(future)
            self._failures.append(
                EngineDied(
                    f"a process of the task runner ended: {error}",
                    next_step="parts that are complete are kept; `crl resume` or Retry makes the others",
                )
            )
        else:
            if outcome.metrics:
                self._spread.report(outcome.part, outcome.metrics)
        return True

    def mark_crashed(self) -> None:
        """Say of the parts that still ran that their processes were ended."""
        for future in tuple(self._futures):
            _mark_crashed(future)

    def raise_failure(self) -> None:
        if self._failures:
            raise self._permanent or self._failures[0]


class _Waiting:
    """How long no worker has had any part of a stage: so long there is nothing whose time could run out.

    A part that a worker has taken has a limit of its own, which its engine keeps from its beginning on; one that waits
    behind other work of its worker is taken. Only the clock of this process is read.
    """

    def __init__(self, limit: float) -> None:
        self._limit, self._told = limit, False
        self._since = self._looked = time.monotonic()

    def begin_again(self) -> None:
        """Some part runs, or ran."""
        self._since, self._told = time.monotonic(), False

    def look(self, runner: TaskRunner[Any], keys: set[str], order: PartOrder) -> None:
        """Raise StageTimedOut where none of these parts was begun within the limit. Asks Dask every few seconds."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked, workers = now, _processing(runner)
        if any(keys.intersection(taken) for taken in workers.values()):
            self.begin_again()
            return
        found = f"no part of {order.stage} has begun for {now - self._since:.0f} s; Dask workers that are connected: "
        if now - self._since > self._limit:
            raise StageTimedOut(
                f"{found}{len(workers)}",
                expected=f"one that takes a part within the time limit of a stage ({self._limit:g} s)",
                where=f"round {order.job.round}, stage {order.stage}",
                next_step="start workers (docs/scale.md), or wait longer: runtime.stage_time_limit_seconds",
            )
        if now - self._since > _TELL_SECONDS and not self._told:
            self._told = True
            get_run_logger().warning("%s%d", found, len(workers))


def _processing(runner: Any) -> dict[str, list[str]]:
    """What each worker of a Dask cluster has taken, by its address; nothing where the scheduler does not answer."""
    found: dict[str, list[str]] = {}

    def ask() -> None:
        with contextlib.suppress(Exception):
            found.update(runner.client.processing())

    _for_a_moment(ask)
    return found


def _new_runner() -> TaskRunner[Any]:
    from prefect_dask.task_runners import DaskTaskRunner

    return DaskTaskRunner(address=os.environ[SCHEDULER_VARIABLE])


def _end_engines_on(runner: Any, job: Job) -> None:
    """End what Dask's workers do; of themselves they would first finish it. A scheduler that is gone is not waited for.

    What other runs do there goes on.
    """

    def end() -> None:
        with contextlib.suppress(Exception):
            runner.client.run(end_engines, job.run_path, job.token)

    _for_a_moment(end)


def _for_a_moment(action: Callable[[], None]) -> None:
    """Do what helps, but is not worth waiting for where a server does not answer: we are being cancelled."""
    thread = threading.Thread(target=contextvars.copy_context().run, args=(action,), daemon=True)
    thread.start()
    thread.join(_CANCEL_SECONDS)


@contextlib.contextmanager
def _server_known() -> Iterator[None]:
    """Tell what is submitted where a temporary server listens: each process would start one of its own."""
    context = FlowRunContext.get()
    if PREFECT_API_URL.value() or context is None:
        yield
        return
    with temporary_settings({PREFECT_API_URL: str(context.client.api_url)}):
        yield


def _interruption_in(error: BaseException) -> BaseException | None:
    """A signal's exception that a library wrapped in one of its own (pydantic does, while it serializes)."""
    cause: BaseException | None = error
    while cause is not None:
        if not isinstance(cause, Exception):
            return cause
        cause = cause.__cause__
    return None


def _process_died(error: Exception) -> bool:
    # By name: Dask is imported only where it was chosen.
    return type(error).__name__ in ("KilledWorker", "FutureCancelledError")


def _mark_crashed(future: PrefectFuture[Any]) -> None:
    """A process that was ended in the middle of a task could not report that the task run is over."""
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        client.set_task_run_state(future.task_run_id, Crashed(message="its process was ended"), force=True)
