"""Prefect's server as `make ui` starts it: the same app, with its garbage collected beside the event loop.

On SQLite a connection waits for the write lock in a thread of its own, for up to a minute, and the holder of the lock
commits from the event loop. Garbage is collected in whichever thread happens to allocate, mostly that of the loop.
Where it holds a cursor of a waiting connection, freeing the cursor waits for that connection: nobody commits, and
nothing is answered, until the minute is over and requests fail with 503 (Prefect 3.8, seen with native stacks under
load). In a thread of its own the collection waits alone.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

_LOOK_SECONDS = 0.1
_FULL_SECONDS = 60.0
"""From one collection of everything to the next: it takes half a second of a server's time."""


def create_app() -> FastAPI:
    """The app of Prefect's server, for `uvicorn --factory`."""
    from prefect.server.api.server import create_app as create_prefect_app

    collect_beside()
    return create_prefect_app()


def collect_beside() -> None:
    """From now on, collect this process's garbage in one thread and in no other."""
    gc.disable()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


def _collect() -> None:
    """As the interpreter does by itself: young objects often, the old ones now and then."""
    young, middle, _ = gc.get_threshold()
    full = time.monotonic()
    while True:
        time.sleep(_LOOK_SECONDS)
        if time.monotonic() - full > _FULL_SECONDS:
            gc.collect()
            full = time.monotonic()
        elif gc.get_count()[0] > young:
            gc.collect(1 if gc.get_count()[1] > middle else 0)
