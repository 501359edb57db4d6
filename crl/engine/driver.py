"""Runs rounds on engines, without Prefect: the one path that flows, the command line and tests share.

A driver owns a run for as long as it is open: it holds the lease, has checked the record, writes the journal and keeps
the engines warm between stages and rounds. It decides nothing about stages; it asks the recipe. What is complete is
skipped, so a first run, a retry and a resume are the same call. A failure is retried in :meth:`Driver.run_stage` and
nowhere else.

A run has one track, or two where its rounds overlap: each has engines and a display of its own, so that two stages of
two rounds can run side by side. A track runs one stage at a time: its missing parts first (`parts.py`), then whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from crl.config import Method, Runtime
from crl.engine.events import (
    Event,
    LogLine,
    Progress,
    Remark,
    RetryScheduled,
    RoundDone,
    RoundStarted,
    StageDone,
    StageErrored,
    StageSkipped,
    StageStarted,
    Subscriber,
)
from crl.engine.failures import advised
from crl.engine.jobs import Job, JobKind, StageOutcome
from crl.engine.overlapping import OverlappingRounds
from crl.engine.parts import PartOrder, PartProgress, PartRunner, Spread, run_spread
from crl.engine.pool import EnginePool
from crl.engine.services import prepare_environment
from crl.engine.supervisor import Cancelled, Engine
from crl.engine.targets import next_round, remember_target, targets
from crl.errors import CrlError, StageFailed
from crl.records import Weights
from crl.rounds.approvals import PendingApproval, pending_approval
from crl.rounds.guards import Guards, Stop
from crl.rounds.recipe import recipe_in
from crl.rounds.stage import Recipe, Stage
from crl.run.directory import RunDirectory
from crl.run.journal import STOPPED, Journal, not_committed
from crl.run.lease import Lease

_T = TypeVar("_T")
_open_drivers: dict[Path, Driver] = {}
_watchers: list[Subscriber] = []


class Driver:
    """Context manager: inside, this process owns the run.

    Args:
        run: the run directory.
        runtime: shards, time limit, retries, retention.
        environment: added to the engines' environment.

    Raises on entering: LeaseHeld where another attempt owns the run, RecordDamaged where the record does not verify.
    """

    def __init__(
        self,
        run: RunDirectory,
        runtime: Runtime,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.run, self.runtime = run, runtime
        self.recipe: Recipe = recipe_in(run)
        added = {**prepare_environment(run.method.threads), **(environment or {})}
        count = runtime.overlap_engines if run.method.overlap else 1
        self._tracks = [Track(run.method, runtime, added, self._emit, number=number) for number in range(count)]
        self._overlapping: OverlappingRounds | None = None
        """While rounds overlap: who may run what."""
        self._subscribers: list[Subscriber] = []
        self._attempts: dict[tuple[int, str], int] = {}
        self._guards = Guards(run, runtime)
        self.stopped: Stop | None = None
        """Why the last :meth:`visit` began no further round."""
        self._lease: Lease | None = None
        self._stack = contextlib.ExitStack()
        self._no_pause = threading.Event()
        """Set once the driver closes or is interrupted: no retry is waited for any more."""

    # -- opening and closing ---------------------------------------------------------------------------------------

    def __enter__(self) -> Driver:
        from crl.audit.verify import require_intact

        with contextlib.ExitStack() as stack:
            lease = Lease.acquire(self.run.path, seconds=self.runtime.lease_seconds, on_lost=self._cancel)
            self._lease = stack.enter_context(lease)
            require_intact(self.run.path, from_rows=partial(self.recipe.from_rows, self.run.method), changed=True)
            self._journal = Journal(self.run.path)
            for place in sorted(not_committed(self.run.path)):
                if self.run.is_complete(*place):
                    self._tell_commit(place)
            key = Path(self.run.path).resolve()
            _open_drivers[key] = self
            stack.callback(_open_drivers.pop, key, None)
            # What a killed engine left unfinished goes with this attempt; finished parts stay, a resume uses them.
            stack.callback(self.run.sweep, self.token + 1)
            for track in self._tracks:
                stack.callback(track.engines.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._no_pause.set()
        self._stack.__exit__(kind, error, traceback)

    @property
    def token(self) -> int:
        """Fencing token of the lease."""
        if self._lease is None:
            raise AssertionError("the driver is not open")
        return self._lease.token

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Have every event handed to `callback`, from whichever thread; returns what ends it. It must be quick."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback) if callback in self._subscribers else None

    # -- what there is to do ---------------------------------------------------------------------------------------

    def stages(self, round_number: int) -> tuple[str, ...]:
        """Names of the stages due in a round, in order."""
        return tuple(stage.name for stage in self.recipe.stages_of(self.run.method, round_number))

    def round_complete(self, round_number: int) -> bool:
        """Whether every stage due in the round is complete."""
        return all(self.run.is_complete(round_number, stage) for stage in self.stages(round_number))

    def next_round(self) -> int:
        """The first round whose stages are not all complete; round 0 prepares."""
        return next_round(self.run)

    def set_target(self, rounds: int, *, purpose: str | None = None) -> tuple[int, int]:
        """Set out for so many further rounds; returns the (first, last) round to run.

        `purpose` names who asks (a flow run's id): asked again, it gets the same answer, so a retried flow run finishes
        what it set out to do and no more.
        """
        first = self.next_round()
        return self._remember(first, max(first - 1, 0) + rounds, purpose)

    def unfinished(self, *, more: int = 0, purpose: str | None = None) -> tuple[int, int]:
        """(first, last) round of what was set out for and not reached, and of so many `more` rounds behind that; the
        whole of it is set out for now. last < first where nothing is left."""
        first = self.next_round()
        begun = any(self.run.is_complete(first, stage) for stage in self.stages(first))
        last = max([first if begun else -1, *(target.last for target in targets(self._journal))])
        if more:
            last = max(last, first - 1, 0) + more
        return self._remember(first, last, purpose) if last >= first else (first, last)

    def _remember(self, first: int, last: int, purpose: str | None) -> tuple[int, int]:
        return remember_target(self._journal, first, last, purpose=purpose, token=self.token, runtime=self.runtime)

    # -- running ---------------------------------------------------------------------------------------------------

    def run_stage(self, round_number: int, stage_name: str, *, retries: int | None = None) -> StageOutcome:
        """Run a stage, or skip it where it is complete, and retry it where it fails.

        A failure whose class says that it is transient (`crl/errors.py`; `failures.py` gives every exception of a
        stage its class) is tried again, at most `retries` times (None: `runtime.retries`), after delays that double
        from `runtime.retry_delay_seconds` and are spread. All others are raised at once, as those of `crl.errors`. With
        any part runner, parts that are complete do not run again. While another attempt owns the run, or another round
        has failed, nothing is tried again. Under Prefect the task of the stage is what is retried, by the same rule
        (`tasks/stage.py`, which asks for 0 here), so that its pages show it.
        """
        stage = self.recipe.stage(self.run.method, round_number, stage_name)
        place, tried = (round_number, stage_name), 0
        retries = self.runtime.retries if retries is None else retries
        while True:
            if self._overlapping is not None:
                (self._overlapping.enter_second_track if stage.second_track else self._overlapping.check)(round_number)
            if self.run.is_complete(*place):
                return self._skip(place)
            if (pending := self.pending_approval(*place)) is not None:
                raise pending.error()
            self._attempts[place] = self._attempts.get(place, 0) + 1
            self._record("stage_started", place, attempt=self._attempts[place])
            started = time.monotonic()
            try:
                outcome = self._track_of(stage).run(stage, self._job(place))
            except BaseException as error:
                # A newer attempt ends our engines and sweeps away what they were writing: whatever broke, that is why.
                if self._lease is not None and isinstance(error, Exception | Cancelled):
                    self._lease.check()
                if isinstance(error, CrlError):
                    tries = self._attempts[place], self.runtime.retries + 1
                    advised(error, self.run.path, place, stage.role, tries)
                if not isinstance(error, Cancelled):
                    self._failed(place, error)
                if not isinstance(error, CrlError) or not error.transient or tried == retries:
                    raise
                # Jitter keeps several runs on one machine from failing together again.
                delay = self.runtime.retry_delay_seconds * 2**tried * random.uniform(1.0, 1.5)
                tried += 1
                self._emit(RetryScheduled(*place, self._attempts[place] + 1, delay, error.found))
                self._no_pause.wait(delay)
            else:
                seconds = time.monotonic() - started
                self._record("stage_committed", place, digest=outcome.digest, seconds=round(seconds, 3))
                del self._attempts[place]
                self._emit(StageDone(*place, outcome.digest, seconds, outcome.rows))
                return outcome

    def pending_approval(self, round_number: int, stage_name: str) -> PendingApproval | None:
        """What a person has to decide before the stage can run; None where nothing is awaited."""
        return pending_approval(self.run, self.recipe, round_number, stage_name)

    def free_engines(self, round_number: int, stage_name: str) -> None:
        """End the engines of a stage's track; the next stage starts new ones. For a wait that may take days."""
        self._track_of(self.recipe.stage(self.run.method, round_number, stage_name)).engines.stop()

    def check(self, round_number: int) -> None:
        """Raise StaleAttempt where another attempt owns the run by now, StageFailed where another round has failed."""
        if self._lease is not None:
            self._lease.check()
        if self._overlapping is not None:
            self._overlapping.check(round_number)

    @contextmanager
    def round(self, round_number: int) -> Iterator[tuple[str, ...]]:
        """Around the stages of a round: gives their names, and afterward prunes what retention lets go."""
        from crl.run.retention import prune

        started, stages = time.monotonic(), self.stages(round_number)
        idle = self.round_complete(round_number)
        self._emit(RoundStarted(round_number, stages))
        yield stages
        if not self.round_complete(round_number):
            missing = [stage for stage in stages if not self.run.is_complete(round_number, stage)]
            raise StageFailed(
                f"round {round_number} ended, but these stages are missing: {', '.join(missing)}",
                where=str(self.run.path),
            )
        prune(
            self.run.path,
            self.recipe.checkpoint_stages(),
            keep_last=max(self.runtime.save_total_limit, self.recipe.reach()),
            keep_every=self.runtime.keep_every,
            keep=self._guards.rounds_kept(),
            token=self.token,
        )
        self._emit(RoundDone(round_number, 0.0 if idle else time.monotonic() - started))

    def run_round(self, round_number: int) -> None:
        """Every stage of a round in order."""
        with self.round(round_number) as stages:
            for stage in stages:
                self.run_stage(round_number, stage)

    def run_rounds(self, last: int) -> list[int]:
        """Run until round `last` is complete, or one may not begin; returns the rounds that were run."""
        numbers = [number for number in range(self.next_round(), last + 1) if not self.round_complete(number)]
        self.visit(numbers, self.run_round)
        return [number for number in numbers if self.round_complete(number)]

    def visit(self, numbers: Iterable[int], run_round: Callable[[int], object]) -> None:
        """Have rounds run one after another; where they overlap, two at a time, each by a thread of its own.

        A round that is not complete after its visit is visited once more: Prefect may take it for done where the record
        does not. No round is visited that may not begin (`crl/rounds/guards.py`), and none after it: :attr:`stopped`.
        """
        self.stopped, numbers = None, self._that_may_begin(numbers)
        if len(self._tracks) > 1:
            self._overlapping = OverlappingRounds(self._cancel, self.round_complete)
            try:
                self._overlapping.run(numbers, run_round)
            finally:
                self._overlapping = None
            return
        for number in numbers:
            run_round(number)
            if not self.round_complete(number):
                run_round(number)

    def _that_may_begin(self, numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            if not any(self.run.is_complete(number, stage) for stage in self.stages(number)):
                self.stopped = self._guards.stop_before(number)
            if self.stopped is not None:
                self._journal.record(
                    STOPPED,
                    token=self.token,
                    round_number=self.stopped.round,
                    setting=self.stopped.setting,
                    reason=self.stopped.in_words,
                    next_step=self.stopped.next_step,
                )
                self._emit(Remark(f"{self.stopped.in_words}; {self.stopped.next_step}"))
                return
            yield number

    # -- parts in other hands --------------------------------------------------------------------------------------

    def spread_with(self, runner: PartRunner | None) -> None:
        """Have the missing parts of stages run by `runner` where there is more than one shard; None: by the engines.

        A second track keeps its engines: what `runner` has is busy with the first.
        """
        self._tracks[0].part_runner = runner

    def keep(self, context: AbstractContextManager[_T]) -> _T:
        """Enter a context that is left when the driver closes, before its engines end and the lease is given back."""
        return self._stack.enter_context(context)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _skip(self, place: tuple[int, str]) -> StageOutcome:
        """The outcome of a stage that is complete already."""
        if self._attempts.pop(place, 0):  # its engine died, or was ended, right behind the commit
            self._tell_commit(place)
        digest = self.run.manifest(*place).digest
        self._emit(StageSkipped(*place, digest))
        return StageOutcome(*place, digest=digest, seconds=0.0, skipped=True)

    def _job(self, place: tuple[int, str]) -> Job:
        return Job(
            JobKind.stage,
            run_path=str(Path(self.run.path).resolve()),
            round=place[0],
            stage=place[1],
            token=self.token,
            attempt=self._attempts[place],
            command=" ".join(sys.argv),
            expectations=self.runtime.expectations,
            broken_episodes_limit=self.runtime.broken_episodes_limit,
        )

    def _track_of(self, stage: Stage) -> Track:
        return self._tracks[min(int(stage.second_track), len(self._tracks) - 1)]

    def _cancel(self) -> None:
        self._no_pause.set()
        for track in self._tracks:
            track.cancel()

    def _failed(self, place: tuple[int, str], error: BaseException) -> None:
        with contextlib.suppress(CrlError):  # the disk may be full: the error itself matters more than the diary
            self._record("stage_failed", place, error=error, attempt=self._attempts[place])
        if isinstance(error, CrlError):
            self._emit(StageErrored(*place, error.payload(), error.transient))

    def _record(self, event: str, place: tuple[int, str], **more: Any) -> None:
        self._journal.record(event, token=self.token, round_number=place[0], stage=place[1], **more)

    def _tell_commit(self, place: tuple[int, str]) -> None:
        """Write down a commit that whoever made it did not live to tell."""
        manifest = self.run.manifest(*place)
        token = manifest.provenance.get("token", self.token)
        self._journal.record(
            "stage_committed", token=token, round_number=place[0], stage=place[1], digest=manifest.digest
        )

    def _emit(self, event: Event) -> None:
        for subscriber in (*self._subscribers, *_watchers):
            with contextlib.suppress(Exception):  # a broken display must not stop training
                subscriber(event)


class Track:
    """One of a run's tracks, counted from 0: the second one's engines take the devices behind those of the first."""

    def __init__(
        self,
        method: Method,
        runtime: Runtime,
        environment: Mapping[str, str],
        emit: Callable[[Event], None],
        *,
        number: int = 0,
    ) -> None:
        self._method, self._runtime, self._emit = method, runtime, emit
        self.engines = EnginePool(
            environment,
            on_line=lambda engine, text: emit(LogLine(text, engine, *self._now)),
            prefix="second-" if number else "",
            first_shard=number * runtime.shards,
            gpus=runtime.engine_gpus,
            nodes=runtime.nodes,
        )
        self.part_runner: PartRunner | None = None
        """Who runs the missing parts of stages where there is more than one shard; None: the engines."""
        self._now: tuple[int | None, str | None] = (None, None)

    def run(self, stage: Stage, job: Job) -> StageOutcome:
        """Run one attempt of a stage; raises what it raises, EngineDied, StageTimedOut, Cancelled."""
        limit, started = self._runtime.stage_time_limit_seconds, time.monotonic()
        main, progress = self._engine_of(stage), self._progress_of(job, started)
        self._now = (job.round, job.stage)
        try:
            self.engines.release_others(main, to_train=stage.update or Weights in stage.writes)
            missing: list[int] = []
            if stage.parts is not None and self._runtime.shards > 1:
                counted = main.run(dataclasses.replace(job, kind=JobKind.count_parts), time_limit=limit)
                missing = counted["missing"]
            self._emit(StageStarted(job.round, job.stage, attempt=job.attempt, parts=len(missing) or None))
            if missing:
                combined = PartProgress(counted["count"], lambda metrics: progress({"metrics": metrics}))
                combined.finished_before(counted["count"] - len(missing))
                self._spread(job, missing, combined, started)
                if self.part_runner is not None:  # they may have waited for a worker: the rest has all of the time
                    started = time.monotonic()
            left = limit - (time.monotonic() - started)
            return StageOutcome.from_json(main.run(job, on_message=progress, time_limit=left))
        finally:
            self._now = (job.round, None)

    def cancel(self) -> None:
        """End what it runs, from another thread: that raises Cancelled."""
        self.engines.cancel()
        if self.part_runner is not None:
            self.part_runner.cancel()

    def _spread(self, job: Job, parts: list[int], combined: PartProgress, started: float) -> None:
        """Run the parts, in the time that the stage has left; those that others run may wait for a worker first, and
        each has the time of a whole stage."""

        def order(part: int) -> PartOrder:
            limit = self._runtime.stage_time_limit_seconds
            if self.part_runner is None:
                limit -= time.monotonic() - started
            of_part = dataclasses.replace(job, kind=JobKind.part, part=part)
            return PartOrder(of_part, combined.count, self.engines.environment, limit, self._runtime.engine_gpus)

        run_spread(
            Spread(tuple(parts), order, combined.report),
            self.part_runner,
            lambda count: self.engines.shards(min(self._runtime.shards, count)),
        )

    def _progress_of(self, job: Job, started: float) -> Callable[[dict[str, Any]], None]:
        working: float | None = None

        def progress(message: dict[str, Any]) -> None:
            nonlocal working
            now = time.monotonic()
            working = now if working is None else working
            metrics = dict(message["metrics"])
            done, total = int(metrics.pop("done")), int(metrics.pop("total"))
            self._emit(
                Progress(job.round, job.stage, done, total, now - started, metrics, working_seconds=now - working)
            )

        return progress

    def _engine_of(self, stage: Stage) -> Engine:
        """The engine a stage runs in: an update over several ranks has one of its own, all else the first shard's."""
        if stage.update and stage.role is not None:
            ranks = self._method.role(stage.role).deepspeed.ranks
            if ranks > 1:
                return self.engines.ranks(ranks)
        return self.engines.shard(0)


def driver_for(run_path: str | Path) -> Driver:
    """The driver that is open on a run in this process: how a task finds what its flow opened."""
    driver = _open_drivers.get(Path(run_path).resolve())
    if driver is None:
        raise StageFailed(
            f"no driver is open on {run_path} in this process",
            expected="a flow (or `with Driver(…)`) that holds the run's lease",
            next_step="run the flow `train` or `resume`; a stage's task cannot be run alone",
        )
    return driver


def watch(callback: Subscriber) -> Callable[[], None]:
    """Have the events of every driver of this process, present and future, handed over; returns what ends it.

    For displays that start before a flow opens its driver.
    """
    _watchers.append(callback)
    return lambda: _watchers.remove(callback) if callback in _watchers else None


def announce(event: Event) -> None:
    """Hand an event to whoever watches this process, before any driver is open."""
    for subscriber in tuple(_watchers):
        with contextlib.suppress(Exception):  # as for a driver's own
            subscriber(event)
