"""What becomes of a job."""

import threading
from collections.abc import Callable
from typing import Any


class Cancelled(Exception):
    """The job was cancelled before it began."""


class Future:
    """The result of a job, once there is one. `state` is waiting, running, done, failed or cancelled."""

    def __init__(self) -> None:
        self.state = "waiting"
        self._value: Any = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._callbacks: list[Callable[[Future], None]] = []

    def run(self, job: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Do the job unless it was cancelled, and keep what it returned or raised."""
        with self._lock:
            if self.state != "waiting":
                return
            self.state = "running"
        try:
            value = job(*args)
        except BaseException as error:
            self._end("failed", None, error)
        else:
            self._end("done", value, None)

    def cancel(self) -> bool:
        """Prevent the job; False if it has begun."""
        with self._lock:
            if self.state == "cancelled":
                return True
            if self.state != "waiting":
                return False
            self.state = "cancelled"
        self._end("cancelled", None, Cancelled())
        return True

    def result(self, timeout: float | None = None) -> Any:
        """What the job returned; waits for it. Raises what the job raised, Cancelled, or TimeoutError."""
        if not self._over.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value

    def on_end(self, callback: Callable[["Future"], None]) -> None:
        """Call `callback(future)` when the job is over, at once if it is. What it raises is dropped."""
        with self._lock:
            if not self._over.is_set():
                self._callbacks.append(callback)
                return
        self._call(callback)

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def _end(self, state: str, value: Any, error: BaseException | None) -> None:
        with self._lock:
            self.state, self._value, self._error = state, value, error
            self._over.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[["Future"], None]) -> None:
        try:
            callback(self)
        except Exception:
            return
