"""Working through the runs of a study: so many at a time, each in a child process with an engine of its own.

What is complete is skipped before anything is started. A run that fails is reported and leaves the others alone. A
command that ended early continues where it stopped: each run is resumed from its own record.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from crl.engine.process import ProcessGroup, describe_exit
from crl.errors import BadInput, CrlError, EngineDied, LeaseHeld, StageFailed, StudyIncomplete, from_payload
from crl.lab.study.plan import PlannedRun
from crl.paths import quoted

LOCK = ".lock"
_CHILD = "crl.lab.study.child"
_KEPT_LINES = 40
_PATIENCE_SECONDS = 10.0
_TICK_SECONDS = 0.2

OnEvent = Callable[[PlannedRun, dict[str, Any]], None]
"""Told of a run, from any thread: `started`, `round` (round, success), `retry`, `note` and `waits` (text), `finished`,
`failed`."""


class Interrupted(BaseException):
    """The study was asked to stop; the run goes on the next time. Not an error."""


class Children:
    """The child processes of a study, so that all can be ended at once."""

    def __init__(self) -> None:
        self._processes: set[ProcessGroup] = set()
        self._changing = threading.Lock()
        self._stopped = threading.Event()
        self.unprepared: dict[str, CrlError] = {}
        """Why a run could not prepare for others, by its name, where trying again is of no use."""

    @property
    def stopped(self) -> bool:
        """Whether no more are to be started."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End every child in order: it ends its engine and gives the lease back."""
        self._stopped.set()
        with self._changing:
            processes = list(self._processes)
        for process in processes:
            process.terminate()

    def work(self, order: dict[str, Any], on_event: Callable[[dict[str, Any]], None]) -> None:
        """Have a child do an order, and wait. Raises what the child failed with, Interrupted where it was stopped."""
        failures: list[CrlError] = []
        log: deque[str] = deque(maxlen=_KEPT_LINES)

        def told(line: str) -> None:
            event = _event(line)
            if event is None:
                log.append(line)
            elif event["event"] == "failed":
                failures.append(from_payload(event["error"]))
            else:
                on_event(event)

        # Libraries of the child itself stay on one thread; its engine gets the threads of the method.
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        process = ProcessGroup(
            [sys.executable, "-m", _CHILD, json.dumps(order)],
            environment={**single, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            on_line=told,
        )
        with self._changing:
            if self._stopped.is_set():
                raise Interrupted
            process.start()
            self._processes.add(process)
        try:
            code = process.wait()
        finally:
            process.stop(_PATIENCE_SECONDS)
            self._processes.discard(process)
        if self._stopped.is_set() and code:
            raise Interrupted
        end_of_log = "\n".join(log)
        for failure in failures:
            # An error that does not explain itself: the end of the log holds its traceback.
            if isinstance(failure, StageFailed):
                failure.where = f"{failure.where}; the end of the log:\n{end_of_log}"
            raise failure
        if code:
            raise EngineDied(
                f"the process of the run {describe_exit(code)}", where=f"the end of its log:\n{end_of_log}"
            )


def run_one(planned: PlannedRun, children: Children, on_event: OnEvent) -> None:
    """Run one run of a study to its last round, unless it is there. Raises its error, or Interrupted."""
    if children.stopped:
        raise Interrupted
    if planned.is_finished():
        return
    if planned.parent is not None and not planned.begun:
        _begin_with(planned, planned.parent, children, on_event)
    on_event(planned, {"event": "started"})
    told = partial(on_event, planned)
    _prepare_forks(planned, children, told)
    _advance(planned, children, told, planned.rounds)
    on_event(planned, {"event": "finished"})


def _begin_with(planned: PlannedRun, parent: PlannedRun, children: Children, on_event: OnEvent) -> None:
    """Make a run that another one prepares for."""

    def told(event: dict[str, Any]) -> None:
        if event["event"] in ("retry", "note"):
            on_event(planned, event)

    on_event(planned, {"event": "waits", "text": f"waits for round 0 of {parent.name}, which prepares for it"})
    try:
        _prepare_forks(parent, children, told)
    except CrlError as error:
        raise from_payload(
            {**error.payload(), "found": f"{parent.name} could not prepare for it: {error.found}"}
        ) from None
    if planned.begun:
        return
    try:
        _fork(planned, parent)
    except CrlError as error:
        raise BadInput(
            f"it cannot begin with round 0 of {parent.name}: {error.found}",
            expected=error.expected,
            where=f"arm {planned.arm}",
            next_step=f"leave prepared_by of the arm out, or remove {parent.path}: it is then run again",
        ) from None


def _prepare_forks(parent: PlannedRun, children: Children, on_event: Callable[[dict[str, Any]], None]) -> None:
    """Run round 0 of a run that prepares for others, and make these: when it goes on, what they begin with is deleted.

    One that cannot be made does not stop it; it is told when that one's turn comes.
    """
    with parent.forking:
        missing = [each for each in parent.forks if not each.begun]
        if missing and parent.rounds_done() < 0:
            if parent.name in children.unprepared:
                raise children.unprepared[parent.name]
            try:
                _advance(parent, children, on_event, 0)
            except CrlError as error:
                if not error.transient:
                    children.unprepared[parent.name] = error
                raise
        for each in missing:
            if children.stopped:
                raise Interrupted
            with suppress(CrlError):
                _fork(each, parent)


def _fork(planned: PlannedRun, parent: PlannedRun) -> None:
    from crl.engine.targets import fork_run
    from crl.run.directory import RunDirectory

    parent_run, experiment = RunDirectory.open(parent.path), planned.experiment
    fork_run(parent_run, 0, experiment, planned.path.parent, runtime=experiment.runtime)


def _advance(planned: PlannedRun, children: Children, on_event: Callable[[dict[str, Any]], None], rounds: int) -> None:
    """Run a run up to a round."""
    from crl.run.directory import RunDirectory

    planned.path.parent.mkdir(parents=True, exist_ok=True)
    RunDirectory.create_or_open(planned.experiment, planned.path.parent)
    order = {
        "run": str(planned.path.absolute()),
        "rounds": rounds,
        "runtime": planned.experiment.runtime.model_dump(mode="json"),
    }
    children.work(order, on_event)


def run_all(runs: Sequence[PlannedRun], jobs: int, on_event: OnEvent) -> dict[str, CrlError]:
    """Every run that is not finished, `jobs` at a time; returns the errors of those that failed, by run name.

    An interruption of this thread ends every child before it goes on its way.
    """
    children = Children()
    failed: dict[str, CrlError] = {}

    def work(planned: PlannedRun) -> None:
        try:
            run_one(planned, children, on_event)
        except CrlError as error:
            failed[planned.name] = error
            on_event(planned, {"event": "failed", "error": error.payload()})
        except Interrupted:
            pass

    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="study") as pool:
        waiting: set[Future[None]] = {pool.submit(work, planned) for planned in runs}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
                for each in done:
                    each.result()
        except BaseException:
            children.stop()
            raise
    return failed


def make_warm_starts(paths: Sequence[Path], say: Callable[[str], None]) -> None:
    """Make warm starts that are missing, one after another, each in a process of its own: this one loads no model.

    `say` is called with each line of progress. Raises what making one raises.
    """
    for path in paths:
        children = Children()
        try:
            children.work({"warm_start": str(path)}, lambda event: say(str(event.get("text", ""))))
        except BaseException:
            children.stop()
            raise


def prepare(runs: Sequence[PlannedRun], warm_starts: Sequence[Path], say: Callable[[str], None]) -> None:
    """Hold what is to be run against this machine, and make warm starts that are missing; no run is touched.

    One run of each arm is checked, and the disk for all; `say` is called with lines for a person. Raises BadInput and
    its kinds, and what making a warm start raises.
    """
    from crl.lab.warm.config import load_warm_start
    from crl.lab.warm.make import check_warm_start
    from crl.policies.machine import replaced
    from crl.preflight import check_before_warm_starts, check_ready
    from crl.preflight.estimate import still_to_write
    from crl.run.files import require_free

    preparing = [run.parent for run in runs if run.parent is not None and not run.begun]
    arms = {run.arm: run for run in reversed([*runs, *preparing])}.values()
    models = {role.model or "" for planned in arms for role in planned.experiment.method.roles.values()}
    starts = {path: load_warm_start(path) for path in warm_starts}
    # Those that these runs begin with: others may be for other arms.
    needed_starts = [path for path, start in starts.items() if any(m.startswith(f"warm:{start.name}/") for m in models)]
    for path in needed_starts:  # first: making one takes minutes
        check_warm_start(starts[path])
    here = [
        (run, run.experiment.model_copy(update={"runtime": run.experiment.runtime.without_prefect()})) for run in arms
    ]
    for _, experiment in here:
        check_before_warm_starts(experiment)
    make_warm_starts(needed_starts, lambda line: say(f"warm start: {line}"))
    for planned, experiment in here:
        check_ready(experiment, planned.path, planned.rounds)
    for said in dict.fromkeys(replaced(planned.experiment.method) for planned in arms):
        if said is not None:
            say(said)
    if runs:
        left = ((run, run.rounds - max(run.rounds_done(), 0)) for run in runs)
        needed = sum(still_to_write(run.experiment, run.path, rounds) or 0 for run, rounds in left)
        reserve = max(run.experiment.runtime.min_free_gigabytes for run in runs)
        require_free(runs[0].path.parent, needed_bytes=needed, reserve_bytes=int(reserve * 1e9))


def incomplete(failed: Mapping[str, CrlError], directory: Path) -> StudyIncomplete:
    """The error that names the runs that failed."""
    lines = [
        f"  {name}: {str(error.found).splitlines()[0]}"
        + (f"; {error.next_step}" if isinstance(error, BadInput) and error.next_step else "")
        for name, error in sorted(failed.items())
    ]
    begun = [directory / name for name in sorted(failed) if (directory / name).is_dir()]
    more = f"`crl status {quoted(begun[0])}` says more; " if begun else ""
    return StudyIncomplete(
        f"{len(failed)} run{'' if len(failed) == 1 else 's'} failed:\n" + "\n".join(lines),
        where=str(directory),
        next_step=f"{more}the same command goes on with them",
    )


def default_jobs(runs: Sequence[PlannedRun]) -> int:
    """As many runs at a time as the cores of this process hold, each with the threads of its method; one with a GPU,
    which all would share."""
    from crl.policies.machine import gpu_count

    if gpu_count():
        return 1
    threads = max((run.experiment.method.threads for run in runs), default=1)
    return max(1, len(os.sched_getaffinity(0)) // threads if hasattr(os, "sched_getaffinity") else 1)


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Hold the study for this process. Raises LeaseHeld where another one works on it."""
    from filelock import FileLock, Timeout

    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise LeaseHeld(
            "another process works on this study",
            expected="one `crl compare` of a study at a time",
            where=str(directory),
            next_step="wait until it ends; `crl compare STUDY --table-only` shows how far it is",
        ) from None
    try:
        yield
    finally:
        lock.release()


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None
