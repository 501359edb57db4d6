"""A queue that holds at most so many items."""

import threading
import time
from collections import deque
from typing import Any


class Closed(Exception):
    """The queue is closed."""


class BoundedQueue:
    """At most `size` items, first in, first out."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError("size must be at least 1")
        self.size = size
        self._items: deque[Any] = deque()
        self._closed = False
        self._lock = threading.Lock()
        self._not_empty = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)

    def put(self, item: Any, timeout: float | None = None) -> None:
        """Add an item, waiting for room. Raises Closed, and TimeoutError after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._not_full:
            while not self._closed and len(self._items) >= self.size:
                self._wait(self._not_full, end)
            if self._closed:
                raise Closed
            self._items.append(item)
            self._not_empty.notify()

    def get(self, timeout: float | None = None) -> Any:
        """Take the oldest item, waiting for one. Raises Closed once there is none and will be none."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._not_empty:
            while not self._items and not self._closed:
                self._wait(self._not_empty, end)
            if not self._items:
                raise Closed
            item = self._items.popleft()
            self._not_full.notify()
            return item

    def drain(self) -> list[Any]:
        """Take all items there are, without waiting."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
            self._not_full.notify_all()
            return items

    def close(self) -> None:
        """Accept no more items and wake all who wait."""
        with self._lock:
            self._closed = True
            self._not_empty.notify_all()
            self._not_full.notify_all()

    @property
    def closed(self) -> bool:
        with self._lock:
            return self._closed

    def __len__(self) -> int:
        with self._lock:
            return len(self._items)

    def _wait(self, condition: threading.Condition, end: float | None) -> None:
        if end is None:
            condition.wait()
            return
        left = end - time.monotonic()
        if left <= 0 or not condition.wait(left):
            raise TimeoutError
