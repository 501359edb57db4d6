"""Ends the flow runs of `make ui` so that people find them ended, and Retry continues them.

Prefect's worker, when it is asked to end, kills the processes of its flow runs; they would stay RUNNING. A flow run
that is asked itself ends its engines and reports that it crashed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
import psutil

from crl.run.guardian import guard, marked

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_FLOW_RUN = "PREFECT__FLOW_RUN_ID"
_PATIENCE_SECONDS = 30.0
_MESSAGE = (
    "Stopped together with `make ui`. What was complete is safe in the run directory; Retry continues there, as do the "
    "deployment resume, the next scheduled run and `crl resume`."
)


def end_flow_runs(client_of: Callable[[], SyncPrefectClient]) -> list[str]:
    """SIGTERM to every flow run that this process's guardian looks after; returns their ids when they have ended.

    `client_of` makes a client of the server. Whatever does not end in time is left to the guardian.
    """
    found = _flow_runs()
    for process in found.values():
        with contextlib.suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(found.values(), timeout=_PATIENCE_SECONDS)
    if found:
        _mark(client_of, found)
    return list(found)


def _mark(client_of: Callable[[], SyncPrefectClient], identifiers: Iterable[str]) -> None:
    """Give each its state with our message: also those that could not report, because they had hardly begun."""
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    with client_of() as client:
        for identifier in identifiers:
            # A server that does not answer is about to end anyway: the next start finds these runs silent. A run that
            # was deleted in the UI needs no mark.
            with contextlib.suppress(httpx.HTTPError, ObjectNotFound):
                state = client.read_flow_run(UUID(identifier)).state
                if state is not None and (state.is_crashed() or not state.is_final()):
                    client.set_flow_run_state(UUID(identifier), Crashed(message=_MESSAGE), force=True)


def _flow_runs() -> dict[str, psutil.Process]:
    """The process of each flow run, by its id; engines and other children of it are not among them."""
    found: dict[str, psutil.Process] = {}
    for process in marked(guard()):
        with contextlib.suppress(psutil.Error, OSError):
            identifier = process.environ().get(_FLOW_RUN)
            parent = process.parent()
            if identifier is not None and (parent is None or parent.environ().get(_FLOW_RUN) != identifier):
                found[identifier] = process
    return found
