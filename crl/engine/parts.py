"""Spreads the parts of a stage over several engines, one thread per engine; any of them may run any part."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

from crl.engine.jobs import ProgressFigures
from crl.engine.supervisor import Engine
from crl.errors import CrlError


class PartProgress:
    """Progress of parts that run side by side as progress of the stage.

    `done` and `total` are sums; a part that has not reported counts as large as the mean of those that have.
    Whole-number figures are summed, other numbers averaged by what each part has done, else the latest counts.
    """

    def __init__(self, count: int, tell: Callable[[dict[str, Any]], None]) -> None:
        self.count, self._tell = count, tell
        self._latest: dict[int, ProgressFigures] = {}
        self._finished_before = 0
        self._lock = threading.Lock()

    def finished_before(self, parts: int) -> None:
        """Parts that were complete when the stage began."""
        self._finished_before = parts

    def report(self, part: int, figures: ProgressFigures) -> None:
        """Take the figures of one part and report those of the stage."""
        with self._lock:
            self._latest[part] = figures
            self._tell(self._combined())

    def _combined(self) -> dict[str, Any]:
        seen = list(self._latest.values())
        mean = sum(int(figures["total"]) for figures in seen) / len(seen)
        done = sum(int(figures["done"]) for figures in seen)
        combined: dict[str, Any] = {
            "done": done + round(mean * self._finished_before),
            "total": round(mean * self.count),
        }
        for name in dict.fromkeys(name for figures in seen for name in figures if name not in ("done", "total")):
            combined[name] = _combine([(figures[name], int(figures["done"])) for figures in seen if name in figures])
        return combined


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
