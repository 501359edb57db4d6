"""Prefect's temporary server in a session of its own: Ctrl-C in a terminal is for the run, which still needs it.

A terminal signals every process of its group. A server that had ended first was asked again for five minutes before the
run reported its own end.
"""

from __future__ import annotations

import functools
import subprocess
from types import SimpleNamespace
from unittest.mock import patch

from prefect.settings import get_current_settings


def start_temporary_server() -> None:
    """Start it where the settings name no server, as Prefect's first request would. It ends with this process.

    Raises RuntimeError where it does not start in time.
    """
    settings = get_current_settings()
    if settings.api.url or not settings.server.ephemeral.enabled:
        return
    from prefect.server.api import server as prefect_server  # seconds, which a server of one's own does not cost

    apart = functools.partial(subprocess.Popen, start_new_session=True)  # Prefect offers no setting for it
    with patch.object(prefect_server, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": apart})):
        prefect_server.SubprocessASGIServer().start()
