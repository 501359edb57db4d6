"""A clock and the calls that wait for it."""

import heapq
from collections.abc import Callable
from typing import Any

from agenda.handle import Handle


class Scheduler:
    """Begins at the time `start`; `run_until` and `run_next` move it."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._heap: list[Handle] = []
        self._scheduled = 0
        self._running = False

    @property
    def now(self) -> float:
        return self._now

    def call_at(self, time: float, call: Callable[..., Any], *args: Any, priority: int = 0) -> Handle:
        """Call `call(*args)` at a time, which may be now but not in the past."""
        if time < self._now:
            raise ValueError(f"{time} has passed: it is {self._now}")
        handle = Handle(time, priority, self._scheduled, call, args)
        self._push(handle)
        return handle

    def call_later(self, delay: float, call: Callable[..., Any], *args: Any, priority: int = 0) -> Handle:
        """Call `call(*args)` after so much time."""
        if delay < 0:
            raise ValueError("delay must not be negative")
        return self.call_at(self._now + delay, call, *args, priority=priority)

    def call_every(
        self, interval: float, call: Callable[..., Any], *args: Any, times: int | None = None, priority: int = 0
    ) -> Handle:
        """Call `call(*args)` every `interval`, the first time one interval from now; `times` calls, or without end."""
        if interval <= 0:
            raise ValueError("interval must be positive")
        if times is not None and times < 1:
            raise ValueError("times must be at least 1")
        handle = self.call_at(self._now + interval, call, *args, priority=priority)
        handle.start = self._now
        handle.interval = interval
        handle.times = times
        return handle

    def pending(self) -> list[Handle]:
        """Calls that wait, in the order in which they will happen."""
        return sorted(handle for handle in self._heap if handle.waiting)

    def next_time(self) -> float | None:
        """When the next call happens, or None."""
        self._drop_cancelled()
        return self._heap[0].time if self._heap else None

    def run_next(self) -> bool:
        """Move to the next call and make it; False if none waits."""
        self._drop_cancelled()
        if not self._heap:
            return False
        handle = heapq.heappop(self._heap)
        self._now = handle.time
        self._make(handle)
        return True

    def run_until(self, time: float) -> int:
        """Make all calls up to a time, that time included, and move the clock there; how many calls were made."""
        if time < self._now:
            raise ValueError(f"{time} has passed: it is {self._now}")
        if self._running:
            raise RuntimeError("the scheduler is running already")
        self._running, made = True, 0
        try:
            while (upcoming := self.next_time()) is not None and upcoming <= time:
                self.run_next()
                made += 1
        finally:
            self._running = False
        self._now = time
        return made

    def run_all(self, limit: int = 10_000) -> int:
        """Make calls until none waits; how many. More than `limit` of them raise RuntimeError."""
        made = 0
        while self.next_time() is not None:
            if made >= limit:
                raise RuntimeError(f"more than {limit} calls")
            self.run_next()
            made += 1
        return made

    def _push(self, handle: Handle) -> None:
        handle.order = self._scheduled
        self._scheduled += 1
        heapq.heappush(self._heap, handle)

    def _make(self, handle: Handle) -> None:
        """Make a call; one that repeats is scheduled again first, so that the call may cancel it."""
        handle.count += 1
        more = handle.interval is not None and (handle.times is None or handle.count < handle.times)
        if more and handle.interval is not None:
            handle.time = handle.start + (handle.count + 1) * handle.interval
            self._push(handle)
        else:
            handle.state = "done"
        handle.call(*handle.args)

    def _drop_cancelled(self) -> None:
        while self._heap and not self._heap[0].waiting:
            heapq.heappop(self._heap)
