"""Runs rounds on engines, without Prefect: the one path that flows, the command line and tests share.

A driver owns a run for as long as it is open: it holds the lease, has checked the record, writes the journal and keeps
the engines warm between stages and rounds. It decides nothing about stages; it asks the recipe. What is complete is
skipped, so a first run, a retry and a resume are the same call.
"""

from __future__ import annotations

import contextlib
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

from crl.config import Runtime
from crl.engine.events import (
    Event,
    RetryScheduled,
    RoundDone,
    RoundStarted,
    StageDone,
    StageErrored,
    StageSkipped,
    Subscriber,
)
from crl.engine.jobs import Job, JobKind, StageOutcome
from crl.engine.overlapping import OverlappingRounds
from crl.engine.services import prepare_environment
from crl.engine.spread import PartRunner
from crl.engine.supervisor import Cancelled
from crl.engine.targets import remember_target, targets
from crl.engine.track import Track
from crl.errors import CrlError, StageFailed
from crl.rounds.approvals import PendingApproval, pending_approval
from crl.rounds.recipe import recipe_in
from crl.rounds.stage import Recipe, Stage
from crl.run.directory import RunDirectory
from crl.run.journal import Journal, not_committed
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
        self._lease: Lease | None = None
        self._stack = contextlib.ExitStack()
        self._no_pause = threading.Event()
        """Set once the driver closes or is interrupted: no retry is waited for any more."""

    # -- opening and closing ---------------------------------------------------------------------------------------

    def __enter__(self) -> Driver:
        from crl.run.verify import require_intact

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
        number = 0
        while self.round_complete(number):
            number += 1
        return number

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

    def run_stage(self, round_number: int, stage_name: str) -> StageOutcome:
        """Run one attempt of a stage, or skip it where it is complete. Errors are those of `crl.errors`."""
        stage = self.recipe.stage(self.run.method, round_number, stage_name)
        if self._overlapping is not None:
            (self._overlapping.enter_second_track if stage.second_track else self._overlapping.check)(round_number)
        place = (round_number, stage_name)
        if self.run.is_complete(*place):
            if self._attempts.pop(place, 0):  # its engine died, or was ended, right behind the commit
                self._tell_commit(place)
            outcome = StageOutcome(
                round_number,
                stage_name,
                digest=self.run.manifest(round_number, stage_name).digest,
                seconds=0.0,
                skipped=True,
            )
            self._emit(StageSkipped(round_number, stage_name, outcome.digest))
            return outcome
        if (pending := self.pending_approval(round_number, stage_name)) is not None:
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
            if not isinstance(error, Cancelled):
                self._failed(place, error)
            raise
        self._record("stage_committed", place, digest=outcome.digest, seconds=round(time.monotonic() - started, 3))
        del self._attempts[place]
        self._emit(StageDone(round_number, stage_name, outcome.digest, time.monotonic() - started, outcome.rows))
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
            raise StageFailed(f"round {round_number} ended without {', '.join(missing)}", where=str(self.run.path))
        prune(
            self.run.path,
            self.recipe.checkpoint_stages(),
            keep_last=max(self.runtime.keep_checkpoints, self.recipe.reach()),
            keep_every=self.runtime.keep_every,
            token=self.token,
        )
        self._emit(RoundDone(round_number, 0.0 if idle else time.monotonic() - started))

    def run_round(self, round_number: int) -> list[StageOutcome]:
        """Every stage of a round in order, transient failures retried as `runtime` says."""
        with self.round(round_number) as stages:
            return [self._with_retries(round_number, stage) for stage in stages]

    def run_rounds(self, last: int) -> list[int]:
        """Run until round `last` is complete; returns the rounds that had something to do."""
        numbers = [number for number in range(self.next_round(), last + 1) if not self.round_complete(number)]
        self.visit(numbers, self.run_round)
        return numbers

    def visit(self, numbers: Iterable[int], run_round: Callable[[int], object]) -> None:
        """Have rounds run one after another; where they overlap, two at a time, each by a thread of its own."""
        if len(self._tracks) == 1:
            for number in numbers:
                run_round(number)
            return
        self._overlapping = OverlappingRounds(self._cancel)
        try:
            self._overlapping.run(numbers, run_round)
        finally:
            self._overlapping = None

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

    def _with_retries(self, round_number: int, stage: str) -> StageOutcome:
        attempt = 1
        while True:
            try:
                return self.run_stage(round_number, stage)
            except CrlError as error:
                if not error.transient or attempt > self.runtime.retries:
                    raise
                # Jitter keeps several runs on one machine from failing together again.
                delay = self.runtime.retry_delay_seconds * 2 ** (attempt - 1) * random.uniform(1.0, 1.5)
                attempt += 1
                self._emit(RetryScheduled(round_number, stage, attempt, delay, error.found))
                self._no_pause.wait(delay)

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
