"""How `crl train` runs the flow: what it registers first, and what it says where there is no server.

Prefect's temporary server is the app of `flows.server`: on a busy machine Prefect's own, which does not wait for the
lock of its SQLite file, answered 503 to the first tasks of a run. It gets a session of its own: Ctrl-C in a terminal,
which signals every process of its group, is for the run, which still needs it. A server that had ended first was asked
again for five minutes before the run reported its own end.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
from prefect.settings import get_current_settings

from crl.cli.shared import shown
from crl.config import Experiment
from crl.config.load import runs_root
from crl.errors import NoServer, ServerLost
from flows.limits import ensure_limit
from flows.origin import OwnOrigin
from flows.server import create_app
from flows.train import already_checked
from flows.train import train as flow


def train(experiment: Experiment, rounds: int) -> None:
    """Run the flow `train` in this process on an experiment that was checked already.

    Raises NoServer where no server answers as Prefect's does or the temporary one does not start, ServerLost where it
    ends meanwhile, else what the flow fails with.
    """
    _register(experiment.name)
    before = already_checked.set(True)
    try:
        flow(experiment, rounds)
    except httpx.TransportError as error:  # Prefect asked again for minutes
        run = shown(runs_root(experiment) / experiment.name)
        raise ServerLost(
            f"Prefect's server ended while the flow ran: {error}",
            next_step=f"every complete stage is kept: crl resume {run} goes on without a server",
        ) from error
    finally:
        already_checked.reset(before)


def _register(name: str) -> None:
    """Make the experiment's concurrency limit. It is the first thing asked of the server, started if need be."""
    try:
        _start_temporary_server()
        ensure_limit(name)
    except (RuntimeError, httpx.HTTPError, ValueError) as error:  # Prefect has no class of its own for it
        url = get_current_settings().api.url
        if not url:
            raise NoServer(
                f"Prefect's temporary server did not start: {error}",
                next_step="try again when the machine is less busy, start a server (`make ui`), or give --no-prefect",
            ) from error
        raise NoServer(
            f"no Prefect server can be used at {url}: {error}",
            expected="the address of a server's API, which ends in /api",
            where="PREFECT_API_URL, or the active Prefect profile",
            next_step="start it (`make ui`), correct the address (where it wants a password: PREFECT_API_AUTH_STRING), "
            "unset PREFECT_API_URL to use a temporary one, or give --no-prefect",
        ) from error


def _start_temporary_server() -> None:
    """Start it where the settings name no server, as Prefect's first request would. It ends with this process.

    Raises RuntimeError where it does not start in time.
    """
    settings = get_current_settings()
    if settings.api.url or not settings.server.ephemeral.enabled:
        return
    from prefect.server.api import server as prefect_server  # seconds, which a server of one's own does not cost

    no_app: Any = None
    OwnOrigin(no_app)  # what the server would refuse to start with is said here
    # Prefect has settings neither for the app, nor a session of its own, nor the patience with a first answer.
    with _replaced(prefect_server, subprocess, Popen=_own_server), patiently(prefect_server):
        prefect_server.SubprocessASGIServer().start()


def _own_server(args: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
    """Start what Prefect would start, with the app of `flows.server`."""
    own = f"{create_app.__module__}:{create_app.__name__}"
    words = [own if word == "prefect.server.api.server:create_app" else word for word in args]
    return subprocess.Popen(words, start_new_session=True, **more)


def patiently(prefect_server: ModuleType) -> AbstractContextManager[Any]:
    """While it is open, Prefect waits minutes for the first answer of a server that it starts. On a busy machine it
    comes later than after five seconds, and Prefect would give up although the time for the start is not over."""
    return _replaced(prefect_server, httpx, Client=functools.partial(httpx.Client, timeout=300.0))


def _replaced(user: ModuleType, used: ModuleType, **names: Any) -> AbstractContextManager[Any]:
    """`user` sees other names in the module `used`, and nobody else does."""
    return patch.object(user, used.__name__, SimpleNamespace(**{**vars(used), **names}))
