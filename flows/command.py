"""How `crl train` runs the flow: what it registers first, and what it says where there is no server."""

from __future__ import annotations

import httpx
from prefect.settings import get_current_settings

from crl.cli.shared import shown
from crl.config import Experiment
from crl.config.load import runs_root
from crl.errors import NoServer, ServerLost
from flows.limits import ensure_limit
from flows.temporary import start_temporary_server
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
        start_temporary_server()
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
