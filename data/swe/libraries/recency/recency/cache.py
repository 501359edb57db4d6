"""The cache: a dictionary in order of use."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from recency.stats import Stats

_ABSENT = object()


class _Entry:
    __slots__ = ("expires", "value")

    def __init__(self, value: Any, expires: float | None) -> None:
        self.value = value
        self.expires = expires


class Cache:
    """At most `capacity` entries. With `lifetime` (seconds) an entry expires that long after it was put.

    `clock` returns the time in seconds; tests give their own.
    """

    def __init__(
        self, capacity: int, lifetime: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        if lifetime is not None and lifetime <= 0:
            raise ValueError("lifetime must be positive")
        self.capacity = capacity
        self.lifetime = lifetime
        self._clock = clock
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._stats = Stats()
        self._lock = threading.RLock()
        self._loading: dict[Hashable, threading.Event] = {}

    @property
    def stats(self) -> Stats:
        """A copy of the counts: it does not change afterwards."""
        with self._lock:
            return self._stats.copy()

    def get(self, key: Hashable, default: Any = None) -> Any:
        """The value of a key, which becomes the one used last; `default` where there is none."""
        with self._lock:
            value = self._find(key)
            if value is _ABSENT:
                self._stats.misses += 1
                return default
            self._stats.hits += 1
            self._entries.move_to_end(key)
            return value

    def peek(self, key: Hashable, default: Any = None) -> Any:
        """The value of a key; neither its order nor the counts change."""
        with self._lock:
            value = self._find(key)
            return default if value is _ABSENT else value

    def put(self, key: Hashable, value: Any, lifetime: float | None = None) -> None:
        """Store a value as the one used last. `lifetime` is for this entry, in place of the cache's own."""
        with self._lock:
            lasts = self.lifetime if lifetime is None else lifetime
            expires = None if lasts is None else self._clock() + lasts
            if key not in self._entries and len(self._entries) >= self.capacity:
                self._make_room()
            self._entries[key] = _Entry(value, expires)
            self._entries.move_to_end(key)

    def get_or_load(self, key: Hashable, load: Callable[[Any], Any]) -> Any:
        """The value of a key; where there is none, `load(key)` is called, stored and returned.

        Threads that ask for one key at once wait for a single call. If it raises, the exception passes to the caller
        that loaded, nothing is stored, and one of those that wait tries again.
        """
        while True:
            with self._lock:
                value = self.get(key, _ABSENT)
                if value is not _ABSENT:
                    return value
                loading = self._loading.get(key)
                if loading is None:
                    self._loading[key] = threading.Event()
                    break
            loading.wait()
        try:
            value = load(key)
            self.put(key, value)
            return value
        finally:
            with self._lock:
                self._loading.pop(key).set()

    def discard(self, key: Hashable) -> bool:
        """Remove a key; whether it was there."""
        with self._lock:
            found = self._find(key) is not _ABSENT
            self._entries.pop(key, None)
            return found

    def keys(self) -> list[Hashable]:
        """The keys that have not expired, the one used longest ago first."""
        with self._lock:
            self._remove_expired()
            return list(self._entries)

    def resize(self, capacity: int) -> None:
        """Change the capacity; entries beyond it are removed, those used longest ago first."""
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        with self._lock:
            self.capacity = capacity
            while len(self._entries) > capacity:
                self._make_room()

    def clear(self) -> None:
        """Remove all entries and set the counts to zero."""
        with self._lock:
            self._entries.clear()
            self._stats.reset()

    def __len__(self) -> int:
        return len(self.keys())

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return self._find(key) is not _ABSENT

    def _find(self, key: Hashable) -> Any:
        entry = self._entries.get(key)
        if entry is None:
            return _ABSENT
        if entry.expires is not None and self._clock() >= entry.expires:
            del self._entries[key]
            return _ABSENT
        return entry.value

    def _make_room(self) -> None:
        """Remove at least one entry: the expired ones, or else the one used longest ago, which is an eviction."""
        if not self._remove_expired():
            self._entries.popitem(last=False)
            self._stats.evictions += 1

    def _remove_expired(self) -> int:
        now = self._clock()
        old = [key for key, entry in self._entries.items() if entry.expires is not None and now >= entry.expires]
        for key in old:
            del self._entries[key]
        return len(old)
