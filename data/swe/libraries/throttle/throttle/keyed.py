"""One limiter per key, such as a user or an address."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any


class PerKey:
    """Limiters made by `make`, each forgotten once it was not asked for `idle` seconds (never, if None)."""

    def __init__(
        self, make: Callable[[], Any], idle: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._idle = idle
        self._clock = clock
        self._limiters: dict[Hashable, Any] = {}
        self._asked: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def limiter(self, key: Hashable) -> Any:
        """The limiter of a key; it is made at the first call. Threads that ask at once get the same one."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            if key not in self._limiters:
                self._limiters[key] = self._make()
            self._asked[key] = now
            return self._limiters[key]

    def try_acquire(self, key: Hashable, count: int = 1) -> bool:
        return bool(self.limiter(key).try_acquire(count))

    def retry_after(self, key: Hashable, count: int = 1) -> float:
        return float(self.limiter(key).retry_after(count))

    def keys(self) -> list[Hashable]:
        """Keys whose limiters are kept, in the order in which they were made."""
        with self._lock:
            self._forget(self._clock())
            return list(self._limiters)

    def __len__(self) -> int:
        return len(self.keys())

    def _forget(self, now: float) -> None:
        if self._idle is None:
            return
        old = [key for key, asked in self._asked.items() if now - asked >= self._idle]
        for key in old:
            del self._limiters[key], self._asked[key]
