"""A limit of time for a piece of Python that somebody else wrote and that runs in this process: a chat template.

A template is tried before work starts, in a process of its own with limits of time and memory (`untrusted`); what it
does with later texts it does here. One call in C that does not end (a power of huge numbers) is beyond it. Memory is
not limited here: that limit is the process's, and would be in the way of threads that load or compute meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

SECONDS = 60.0


class TookTooLong(Exception):
    """What ran had not ended after its time."""


@contextlib.contextmanager
def bounded(seconds: float = SECONDS) -> Iterator[None]:
    """Raise TookTooLong in the block when its time is over."""
    thread, lock, ended = threading.get_ident(), threading.Lock(), False

    def stop() -> None:
        with lock:
            if not ended:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TookTooLong))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            ended = True
        timer.cancel()
