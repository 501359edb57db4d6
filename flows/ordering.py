"""In which order the server's automations hear of flow runs: as the events come.

Prefect lets an event wait, up to 15 minutes, for the one that it follows. Two of those never come: the `Scheduled` of a
run that the scheduler inserted, which sends no event, and whatever was heard before the server was restarted. All that
such a run reports within five minutes waits as well, its failure among it. The events of a flow run come from this one
server, in the order in which its states were set, so there is nothing to wait for. Those of task runs, which come from
other processes, keep their order.
"""

from __future__ import annotations

from prefect.server.events.ordering import memory
from prefect.server.events.schemas.events import ReceivedEvent


class CausalOrdering(memory.CausalOrdering):
    """Prefect's own, less the waiting of flow runs."""

    async def wait_for_leader(self, event: ReceivedEvent) -> None:
        """Raises EventArrivedEarly for an event that is to wait."""
        if not event.event.startswith("prefect.flow-run."):
            await super().wait_for_leader(event)
