"""Prefect's temporary server in a session of its own: Ctrl-C in a terminal is for the run, which still needs it.

A terminal signals every process of its group. A server that had ended first was asked again for five minutes before the
run reported its own end.
"""

from __future__ import annotations

import functools
import subprocess
from contextlib import AbstractContextManager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
from prefect.settings import get_current_settings


def start_temporary_server() -> None:
    """Start it where the settings name no server, as Prefect's first request would. It ends with this process.

    Raises RuntimeError where it does not start in time.
    """
    settings = get_current_settings()
    if settings.api.url or not settings.server.ephemeral.enabled:
        return
    from prefect.server.api import server as prefect_server  # seconds, which a server of one's own does not cost

    # Prefect has settings neither for a session of its own nor for the patience with a first answer.
    apart = functools.partial(subprocess.Popen, start_new_session=True)
    with _replaced(prefect_server, subprocess, Popen=apart), patiently(prefect_server):
        prefect_server.SubprocessASGIServer().start()


def patiently(prefect_server: ModuleType) -> AbstractContextManager[Any]:
    """While it is open, Prefect waits minutes for the first answer of a server that it starts. On a busy machine it
    comes later than after five seconds, and Prefect would give up although the time for the start is not over."""
    return _replaced(prefect_server, httpx, Client=functools.partial(httpx.Client, timeout=300.0))


def _replaced(user: ModuleType, used: ModuleType, **names: Any) -> AbstractContextManager[Any]:
    """`user` sees other names in the module `used`, and nobody else does."""
    return patch.object(user, used.__name__, SimpleNamespace(**{**vars(used), **names}))
