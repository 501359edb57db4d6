"""Prefect's temporary server in a session of its own: Ctrl-C in a terminal is for the run, which still needs it.

A terminal, Slurm and systemd send their signal to every process of a group. With a server that had ended first, the run
asked it again for five minutes before it could report its own end.
"""

from __future__ import annotations

import functools
import subprocess
from types import SimpleNamespace
from unittest.mock import patch

from prefect.server.api import server as prefect_server
from prefect.settings import get_current_settings


def start_temporary_server() -> None:
    """Start it where the settings name no server, as Prefect's first request would. It ends with this process.

    Raises RuntimeError where it does not start in time.
    """
    settings = get_current_settings()
    if settings.api.url is not None or not settings.server.ephemeral.enabled:
        return
    apart = functools.partial(subprocess.Popen, start_new_session=True)  # Prefect offers no setting for it
    with patch.object(prefect_server, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": apart})):
        prefect_server.SubprocessASGIServer().start()
