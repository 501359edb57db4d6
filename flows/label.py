"""Names and tags by which people find a flow run in lists."""

from __future__ import annotations

import contextlib

from prefect import get_client
from prefect.context import FlowRunContext


def label(experiment: str, what: str) -> None:
    """Call the present flow run `<experiment>: <what>` and tag it with the experiment; outside a flow run, nothing.

    A label that cannot be written is no reason to stop.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is None:
        return
    name, tags = f"{experiment}: {what}", sorted({*run.tags, experiment})
    if (run.name, run.tags) == (name, tags):
        return
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        client.update_flow_run(run.id, name=name, tags=tags)
        run.name, run.tags = name, tags


def rounds_text(first: int, last: int) -> str:
    """`rounds 0–2`, or `round 2` for one."""
    return f"round {first}" if first == last else f"rounds {first}–{last}"
