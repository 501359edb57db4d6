"""So many events in any span of time."""

import threading
import time
from collections import deque
from collections.abc import Callable


class SlidingWindow:
    """At most `limit` events within `seconds`."""

    def __init__(self, limit: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        if limit < 1 or seconds <= 0:
            raise ValueError("limit must be at least 1 and seconds positive")
        self.limit = limit
        self.seconds = seconds
        self._clock = clock
        self._events: deque[float] = deque()
        self._lock = threading.Lock()

    def try_acquire(self, count: int = 1) -> bool:
        """Let `count` events happen now, or none of them and say False."""
        if count < 1 or count > self.limit:
            raise ValueError(f"count must be between 1 and {self.limit}")
        with self._lock:
            now = self._forget()
            if len(self._events) + count > self.limit:
                return False
            self._events.extend([now] * count)
            return True

    def remaining(self) -> int:
        """How many events may happen now."""
        with self._lock:
            self._forget()
            return self.limit - len(self._events)

    def retry_after(self, count: int = 1) -> float:
        """Seconds until `count` events may happen; 0.0 if they may now."""
        if count < 1 or count > self.limit:
            raise ValueError(f"count must be between 1 and {self.limit}")
        with self._lock:
            now = self._forget()
            too_many = len(self._events) + count - self.limit
            if too_many <= 0:
                return 0.0
            return self._events[too_many - 1] + self.seconds - now

    def _forget(self) -> float:
        now = self._clock()
        while self._events and now - self._events[0] >= self.seconds:
            self._events.popleft()
        return now
