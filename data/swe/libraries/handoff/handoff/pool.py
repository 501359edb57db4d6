"""Threads that work on jobs."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from handoff.future import Future
from handoff.queue import BoundedQueue, Closed


class Pool:
    """`workers` threads. With `waiting`, `submit` waits while so many jobs have not begun."""

    def __init__(self, workers: int, waiting: int = 1000) -> None:
        if workers < 1:
            raise ValueError("workers must be at least 1")
        self._jobs = BoundedQueue(waiting)
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[..., Any], *args: Any) -> Future:
        """Have `job(*args)` done by a thread. Raises Closed once the pool is closed."""
        future = Future()
        self._jobs.put((future, job, args))
        return future

    def map(self, job: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """The results of a job for each item, in their order; raises what the first one of them raised."""
        futures = [self.submit(job, item) for item in items]
        return [future.result() for future in futures]

    def close(self, cancel: bool = False) -> None:
        """Accept no more jobs and wait for those there are; with `cancel`, those that have not begun are cancelled."""
        self._jobs.close()
        if cancel:
            for future, _, _ in self._jobs.drain():
                future.cancel()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: type | None, *raised: object) -> None:
        self.close(cancel=kind is not None)

    def _work(self) -> None:
        while True:
            try:
                future, job, args = self._jobs.get()
            except Closed:
                return
            future.run(job, args)
