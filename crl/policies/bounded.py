"""Limits for a piece of Python that somebody else wrote and that runs in this process: a chat template.

A template is tried before work starts, in a process of its own (`untrusted`); what it does with later texts it does
here. :func:`bounded` ends it after a time, and lets it take no more than so much memory on top of what the process has.
One call in C that does not end (a power of huge numbers) is beyond it.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

from crl.limits import MEGABYTE

SECONDS = 60.0
BYTES = 4_000 * MEGABYTE
_GUARD = threading.Lock()
_inside = 0
_before = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


class TookTooLong(Exception):
    """What ran had not ended after its time."""


@contextlib.contextmanager
def bounded(seconds: float = SECONDS, memory: int = BYTES) -> Iterator[None]:
    """Raise TookTooLong in the block when its time is over, and MemoryError where it asks for more than `memory`."""
    thread, lock, ended = threading.get_ident(), threading.Lock(), False

    def stop() -> None:
        with lock:
            if not ended:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TookTooLong))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    _enter(memory)
    try:
        yield
    finally:
        with lock:
            ended = True
        _leave()
        timer.cancel()


def _enter(memory: int) -> None:
    global _inside, _before
    with _GUARD, contextlib.suppress(OSError, ValueError):
        _inside += 1
        if _inside == 1:
            _before = resource.getrlimit(resource.RLIMIT_AS)
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            most = pages * resource.getpagesize() + memory
            if _before[0] == resource.RLIM_INFINITY or most < _before[0]:
                resource.setrlimit(resource.RLIMIT_AS, (most, _before[1]))


def _leave() -> None:
    global _inside
    with _GUARD, contextlib.suppress(OSError, ValueError):
        _inside -= 1
        if _inside == 0:
            resource.setrlimit(resource.RLIMIT_AS, _before)
