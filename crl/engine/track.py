"""The engines of one track of rounds, and how an attempt of a stage runs on them: its missing parts first, then whole.

A run has one track, or two where its rounds overlap: each has engines and a display of its own, so that two stages of
two rounds can run side by side. It runs one stage at a time and decides nothing about stages.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from crl.config import Method, Runtime
from crl.engine.events import Event, LogLine, Progress, StageStarted
from crl.engine.jobs import Job, JobKind, StageOutcome
from crl.engine.parts import PartProgress, run_parts
from crl.engine.pool import EnginePool
from crl.engine.spread import PartOrder, PartRunner, Spread, run_on
from crl.engine.supervisor import Engine
from crl.records import Weights
from crl.rounds.stage import Stage


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
        place, started = (job.round, job.stage), time.monotonic()
        self._now = place
        try:
            return self._attempt(stage, job, place, started)
        finally:
            self._now = (job.round, None)

    def cancel(self) -> None:
        """End what it runs, from another thread: that raises Cancelled."""
        self.engines.cancel()
        if self.part_runner is not None:
            self.part_runner.cancel()

    def _attempt(self, stage: Stage, job: Job, place: tuple[int, str], started: float) -> StageOutcome:
        main = self._engine_of(stage)
        self.engines.release_others(main, to_train=stage.update or Weights in stage.writes)
        missing: list[int] = []
        progress = self._progress_of(place, started)
        if stage.parts is not None and self._runtime.shards > 1:
            counted = main.run(dataclasses.replace(job, kind=JobKind.count_parts), time_limit=self._left(started))
            missing = counted["missing"]
        self._emit(StageStarted(*place, attempt=job.attempt, parts=len(missing) if missing else None))
        if missing:
            combined = PartProgress(counted["count"], lambda figures: progress({"figures": figures}))
            combined.finished_before(counted["count"] - len(missing))
            started = self._spread(job, missing, combined, started)
        return StageOutcome.from_json(main.run(job, on_message=progress, time_limit=self._left(started)))

    def _spread(self, job: Job, parts: list[int], combined: PartProgress, started: float) -> float:
        """Run the parts; returns from when on the time of the stage counts.

        Parts that others run may wait for a worker first: each has the time of a whole stage, and so has the rest.
        """

        def order(part: int) -> PartOrder:
            of_part = dataclasses.replace(job, kind=JobKind.part, part=part)
            limit = self._runtime.stage_time_limit_seconds if self.part_runner is not None else self._left(started)
            return PartOrder(of_part, combined.count, self.engines.environment, limit, self._runtime.engine_gpus)

        if self.part_runner is not None:
            self.part_runner(Spread(tuple(parts), order, combined.report))
            return time.monotonic()
        if len(parts) > 1:
            engines = self.engines.shards(min(self._runtime.shards, len(parts)))
            run_parts(engines, parts, lambda engine, part: run_on(engine, order(part), partial(combined.report, part)))
        return started

    def _progress_of(self, place: tuple[int, str], started: float) -> Callable[[dict[str, Any]], None]:
        working: float | None = None

        def progress(message: dict[str, Any]) -> None:
            nonlocal working
            now = time.monotonic()
            working = now if working is None else working
            figures = dict(message["figures"])
            done, total = int(figures.pop("done")), int(figures.pop("total"))
            self._emit(Progress(*place, done, total, now - started, figures, now - working))

        return progress

    def _left(self, started: float) -> float:
        return self._runtime.stage_time_limit_seconds - (time.monotonic() - started)

    def _engine_of(self, stage: Stage) -> Engine:
        """The engine a stage runs in: an update over several ranks has one of its own, all else the first shard's."""
        if stage.update and stage.role is not None:
            ranks = self._method.role(stage.role).deepspeed.ranks
            if ranks > 1:
                return self.engines.ranks(ranks)
        return self.engines.shard(0)
