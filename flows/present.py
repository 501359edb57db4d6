"""The present flow run: its log, the name and tags by which people find it in lists, the state that it shows."""

from __future__ import annotations

import contextlib
import logging
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.exceptions import MissingContextError
from prefect.logging import get_logger, get_run_logger

from crl.config import Method
from crl.policies.machine import replaced


def present_run() -> FlowRun | None:
    """The flow run that this is; None outside one."""
    context = FlowRunContext.get()
    return None if context is None else context.flow_run


def run_logger() -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    """The log of the flow run; outside one, Prefect's."""
    try:
        return get_run_logger()
    except MissingContextError:
        return get_logger("flows")


def log_precision(method: Method) -> None:
    """Log where roles are computed in another precision than was asked for."""
    if (said := replaced(method)) is not None:
        run_logger().info(said)


def label(experiment: str, what: str) -> None:
    """Call the present flow run `<experiment>: <what>` and tag it with the experiment; outside a flow run, nothing.

    A label that cannot be written is no reason to stop.
    """
    run = present_run()
    if run is None:
        return
    name, tags = f"{experiment}: {what}", sorted({*run.tags, experiment})
    if (run.name, run.tags) == (name, tags):
        return
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        client.update_flow_run(run.id, name=name, tags=tags)
        run.name, run.tags = name, tags


def show(state: State[Any], run_id: str | UUID | None) -> None:
    """Propose a state of a flow run; without an id, nothing.

    It is a note for people and may fail; a run that is being cancelled stays so.
    """
    if run_id is None:
        return
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(str(run_id)), state)


def rounds_text(first: int, last: int) -> str:
    """`rounds 0–2`, or `round 2` for one."""
    return f"round {first}" if first == last else f"rounds {first}–{last}"
