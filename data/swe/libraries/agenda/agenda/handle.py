"""One call that is to happen."""

from collections.abc import Callable
from typing import Any


class Handle:
    """What `call_at` and its relatives return. `state` is waiting, done or cancelled."""

    def __init__(self, time: float, priority: int, order: int, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.time = time
        self.priority = priority
        self.order = order
        self.call = call
        self.args = args
        self.state = "waiting"
        self.interval: float | None = None
        self.start = time
        self.count = 0
        self.times: int | None = None

    def cancel(self) -> bool:
        """Prevent the call, and all to come if it repeats; False if there is nothing to prevent any more."""
        if self.state != "waiting":
            return False
        self.state = "cancelled"
        return True

    @property
    def waiting(self) -> bool:
        return self.state == "waiting"

    def __lt__(self, other: "Handle") -> bool:
        return (self.time, self.priority, self.order) < (other.time, other.priority, other.order)
