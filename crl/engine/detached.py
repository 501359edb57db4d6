"""Engines without a driver: a process that is sent a part order runs it in an engine of its own.

Such a process is a Dask worker. It may outlive the driver, and it may be on another machine that sees the same files.
The engine stays warm between parts. A thread watches the lease of the attempt it works for and ends the engine soon
after that attempt ended, in whatever way; where no part runs, it has the models freed, since what comes after the parts
may need the same device.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from crl.engine.jobs import ProgressMetrics
from crl.engine.parts import PartOrder, PartOutcome, run_on
from crl.engine.pool import device_environment
from crl.engine.supervisor import Cancelled, Engine
from crl.errors import CrlError, StaleAttempt
from crl.run.lease import attempt_lives, check_token

_TICK_SECONDS = 0.5
_IDLE_SECONDS = 1.0
"""Parts that wait are handed out at once: an engine that is idle for longer has none left to run."""

_engines: list[DetachedEngine] = []
_choosing = threading.Lock()


def run_order(
    order: PartOrder,
    *,
    shard: int = 0,
    on_line: Callable[[str, str], None] = lambda engine, text: None,
    on_metrics: Callable[[ProgressMetrics], None] = lambda metrics: None,
) -> PartOutcome:
    """Run a part in an engine of this process, which stays warm for the next one.

    Args:
        order: the part, under the token of a living attempt.
        shard: chooses among several devices.
        on_line: called with the engine's name and a line it wrote.
        on_metrics: called with the part's progress.

    Raises what the part raises, EngineDied, StageTimedOut; StaleAttempt where the attempt has ended or ends meanwhile.
    """
    _require_living(order)
    engine = _take(order, shard)
    try:
        return engine.run(order, on_line, on_metrics)
    finally:
        engine.idle_since = time.monotonic()
        engine.busy = False


def end_engines(run_path: str, token: int) -> None:
    """End the engines of this process that run a part of an attempt that was cancelled and still holds its lease."""
    for engine in tuple(_engines):
        if engine.works_for(run_path, token):
            engine.cancel()


class DetachedEngine:
    """One engine, and the thread that watches the lease of the attempt it works for.

    Args:
        order: the first part it will run; its environment is the engine's.
        shard: chooses among several devices.
    """

    def __init__(self, order: PartOrder, shard: int) -> None:
        self.kind = _kind(order, shard)
        self.busy = True
        """Whether a part runs in it, or was promised to it."""
        self.idle_since = time.monotonic()
        self.released = True
        """Whether it holds no models."""
        self._order = order
        self._on_line: Callable[[str, str], None] = lambda engine, text: None
        self._engine = Engine(
            name=f"shard-{shard}",
            environment={**order.environment, **device_environment(shard, order.gpus)},
            on_line=lambda text: self._on_line(self._engine.name, text),
        )
        threading.Thread(target=self._watch, name="lease-watch", daemon=True).start()

    def run(
        self, order: PartOrder, on_line: Callable[[str, str], None], on_metrics: Callable[[ProgressMetrics], None]
    ) -> PartOutcome:
        """Run a part. Raises as :func:`run_order` does."""
        self._order, self._on_line, self.released = order, on_line, False
        try:
            return run_on(self._engine, order, on_metrics)
        except Cancelled:
            _require_living(order)
            raise

    def works_for(self, run_path: str, token: int) -> bool:
        """Whether its latest part belongs to this attempt."""
        return (self._order.job.run_path, self._order.job.token) == (run_path, token)

    def cancel(self) -> None:
        """End the part that runs."""
        if self.busy:
            self._engine.cancel()

    def _watch(self) -> None:
        while True:
            time.sleep(_TICK_SECONDS)
            if not _lives(self._order):
                self.cancel()
                if self._leave():
                    self._engine.stop()
                    return
            elif not self.busy and not self.released and time.monotonic() - self.idle_since > _IDLE_SECONDS:
                self.released = True
                with contextlib.suppress(CrlError):  # it died idle: then nothing is held
                    self._engine.release()

    def _leave(self) -> bool:
        with _choosing:
            if not self.busy:
                _engines.remove(self)
            return not self.busy


def _take(order: PartOrder, shard: int) -> DetachedEngine:
    """An idle engine of the same kind, else a new one."""
    with _choosing:
        for engine in _engines:
            if not engine.busy and engine.kind == _kind(order, shard):
                engine.busy = True
                return engine
        engine = DetachedEngine(order, shard)
        _engines.append(engine)
        return engine


def _kind(order: PartOrder, shard: int) -> tuple[dict[str, str], int, int]:
    return dict(order.environment), shard, order.gpus


def _lives(order: PartOrder) -> bool:
    try:
        return attempt_lives(Path(order.job.run_path), order.job.token)
    except OSError:
        return True  # a file system that is away for a moment; without the lease nothing is committed anyway


def _require_living(order: PartOrder) -> None:
    if _lives(order):
        return
    check_token(Path(order.job.run_path), order.job.token)
    raise StaleAttempt(
        f"the process that owned the run as attempt {order.job.token} has ended",
        expected="a living owner of the run",
        where=order.job.run_path,
        next_step="nothing was committed; `crl resume` goes on with the run",
    )
