"""`python -m flows.server`: Prefect's server, closed to pages of others, with its garbage collected beside the loop.

It answers its own pages and programs (`flows/origin.py`), tells browsers to ask no other host and to show it in no
frame of another page, and lets no other user read its database.

On SQLite every transaction takes the write lock when it begins, and waits for it. Prefect begins most of them without
it (DEFERRED) and asks for it with the first change. Where another one has committed since the first read, SQLite
refuses that at once, whatever it was told to wait: the request fails with 503. Starting a run reads before it writes.

There a connection waits for the write lock in a thread of its own, for up to a minute, and the holder of the lock
commits from the event loop. Garbage is collected in whichever thread happens to allocate, mostly that of the loop.
Where it holds a cursor of a waiting connection, freeing the cursor waits for that connection: nobody commits, and
nothing is answered, until the minute is over and requests fail with 503 (Prefect 3.8, seen with native stacks under
load). In a thread of its own the collection waits alone.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import stat
import sys
import threading
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import flows  # noqa: F401  (first: it turns telemetry off)
from crl.cli.shared import say
from crl.errors import BadInput
from flows.origin import OwnOrigin

HEADER = (
    "Content-Security-Policy",
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'",
)
"""Of every answer: browsers then send no request to any other host, and no page of another puts ours under a click.

Without it, Prefect's second UI calls Amplitude, an analytics service, at every page load, even where
PREFECT_SERVER_ANALYTICS_ENABLED is false."""

_LOOK_SECONDS = 0.1
_FULL_SECONDS = 60.0
"""From one collection of everything to the next: it takes half a second of a server's time."""


def create_app() -> OwnOrigin:
    """The app of Prefect's server, for uvicorn."""
    from prefect.server.api.server import create_app as create_prefect_app

    collect_beside()
    lock_at_the_beginning()
    return OwnOrigin(create_prefect_app())


def prefect_home() -> Path:
    """Where Prefect keeps its database: $PREFECT_HOME, or what its profile says."""
    from prefect.settings import get_current_settings

    return get_current_settings().home


def close_to_others(folder: Path) -> None:
    """Let nobody but its owner enter a folder, which is made if need be. Raises OSError where it cannot be made.

    A person's home and a folder that all may write in, such as /tmp, stay as they are, and so does another's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.resolve() != Path.home().resolve() and not folder.stat().st_mode & stat.S_ISVTX:
        with contextlib.suppress(PermissionError):
            folder.chmod(0o700)


def _close_database() -> None:
    """Close the folder of Prefect's home, the database wherever it is, and all that this process will write."""
    from prefect.settings import get_current_settings
    from sqlalchemy import make_url

    os.umask(0o077)
    close_to_others(prefect_home())
    address = get_current_settings().server.database.connection_url
    url = None if address is None else make_url(address.get_secret_value())
    if url is None or (url.get_backend_name() == "sqlite" and url.database):
        file = str(prefect_home() / "prefect.db" if url is None else url.database)
        for path in map(Path, (file, f"{file}-wal", f"{file}-shm")):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                path.chmod(0o600)


def lock_at_the_beginning() -> None:
    """From now on, have every transaction on SQLite begin with the write lock (IMMEDIATE)."""
    from prefect.server.database.configurations import AioSqliteConfiguration
    from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

    begin = AioSqliteConfiguration.begin_transaction

    def begin_locked(
        self: AioSqliteConfiguration, session: AsyncSession, with_for_update: bool = True
    ) -> AbstractAsyncContextManager[AsyncSessionTransaction]:
        return begin(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = begin_locked  # type: ignore[method-assign,assignment]


def collect_beside(full_seconds: float = _FULL_SECONDS) -> None:
    """From now on, collect this process's garbage in one thread and in no other; old objects every `full_seconds`."""
    gc.disable()
    threading.Thread(target=_collect, args=(full_seconds,), name="garbage", daemon=True).start()


def _collect(full_seconds: float) -> None:
    """As the interpreter does by itself: young objects often, the old ones now and then."""
    young, middle, _ = gc.get_threshold()
    full = time.monotonic()
    while True:
        time.sleep(_LOOK_SECONDS)
        if time.monotonic() - full > full_seconds:
            gc.collect()
            full = time.monotonic()
        elif gc.get_count()[0] > young:
            gc.collect(1 if gc.get_count()[1] > middle else 0)


def main(arguments: list[str] | None = None) -> int:
    """Serve until the end."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m flows.server", description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=4200)
    chosen = parser.parse_args(arguments)
    # At the host and port of the page. Prefect's default is port 4200 of the browser's machine.
    os.environ.setdefault("PREFECT_UI_API_URL", "/api")
    os.environ.setdefault("PREFECT_SERVER_EVENTS_CAUSAL_ORDERING", "flows.ordering")
    try:
        _close_database()
        app = create_app()
    except BadInput as error:
        say(f"server: {error}", stderr=True)
        return error.exit_code
    uvicorn.run(app, host=chosen.host, port=chosen.port, headers=[HEADER])
    return 0


if __name__ == "__main__":
    sys.exit(main())
