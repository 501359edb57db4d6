"""A bucket that refills at a steady rate."""

import threading
import time
from collections.abc import Callable


class TokenBucket:
    """`rate` tokens a second, at most `capacity` of them; it begins full."""

    def __init__(self, rate: float, capacity: float, clock: Callable[[], float] = time.monotonic) -> None:
        if rate <= 0 or capacity <= 0:
            raise ValueError("rate and capacity must be positive")
        self.rate = rate
        self.capacity = capacity
        self._clock = clock
        self._tokens = float(capacity)
        self._filled = clock()
        self._lock = threading.Lock()

    @property
    def tokens(self) -> float:
        """How many tokens there are now."""
        with self._lock:
            self._refill()
            return self._tokens

    def try_acquire(self, count: float = 1) -> bool:
        """Take so many tokens, or none and say False. More than the capacity can never be had: ValueError."""
        self._check(count)
        with self._lock:
            self._refill()
            if self._tokens < count:
                return False
            self._tokens -= count
            return True

    def retry_after(self, count: float = 1) -> float:
        """Seconds until so many tokens are there; 0.0 if they are."""
        self._check(count)
        with self._lock:
            self._refill()
            return max(0.0, (count - self._tokens) / self.rate)

    def acquire(self, count: float = 1, sleep: Callable[[float], None] = time.sleep) -> float:
        """Take so many tokens, sleeping until they are there; the seconds slept."""
        slept = 0.0
        while not self.try_acquire(count):
            pause = self.retry_after(count)
            sleep(pause)
            slept += pause
        return slept

    def give_back(self, count: float = 1) -> None:
        """Return tokens that were not needed; the bucket does not overflow."""
        with self._lock:
            self._refill()
            self._tokens = min(self.capacity, self._tokens + count)

    def _check(self, count: float) -> None:
        if count <= 0:
            raise ValueError("count must be positive")
        if count > self.capacity:
            raise ValueError(f"{count} tokens are more than the capacity of {self.capacity}")

    def _refill(self) -> None:
        """Add what came since the last time. A clock that goes back adds nothing."""
        now = self._clock()
        if now > self._filled:
            self._tokens = min(self.capacity, self._tokens + (now - self._filled) * self.rate)
        self._filled = now
