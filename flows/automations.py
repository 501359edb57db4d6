"""What the server does by itself: mark dead runs, have their remains tidied, report a failure to somebody.

Each automation is described here as it shall be; :func:`ensure` makes it so and leaves the switch (on or off) to the
people who use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, RunDeployment, SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture

from flows.present import HEARTBEAT

HEARTBEAT_SECONDS = 30
"""How often a flow run says that it lives."""
SILENCE_SECONDS = 90
"""A run without a heartbeat for so long is dead: three heartbeats."""
START_SECONDS = 20 * 60
"""A run that was handed to a process and never said that it lives is dead after this.

Longer than the 15 minutes for which a restarted server may keep back what it hears of a run's state: a shorter time
would be over before it began. Runs that a restart finds unfinished are found out sooner, see `flows/tidy.py`.
"""
_MARKED_SECONDS = 10
"""Later than a silent run is marked, its remains are looked for."""
FLOWS = ("train", "resume", "evaluate", "compare")
"""Flows whose crash leaves something to tidy. Not `tidy` itself: a crash of it must not start it for ever."""

NOTIFICATION_BLOCK = "crl-failures"
SILENT = "No sign of life for"
"""How the message of a run begins that was marked because it was silent."""
WATCHED = "prefect.flow-run.watched"
"""Our own event: from here on the run has to show a sign of life. See `flows/tidy.py`."""
_OURS = {"prefect.resource.role": "flow", "prefect.resource.name": list(FLOWS)}


@dataclass(frozen=True)
class Made:
    """The result of :func:`ensure`: `made`, `found` or `updated`, and whether the automation is switched on."""

    name: str
    outcome: str
    enabled: bool


def _silence(seconds: float, *, after: set[str], **more: Any) -> EventTrigger:
    """Fires for each flow run of which nothing is heard for so long after one of the events `after`."""
    return _of_each_run(
        posture=Posture.Proactive,
        after=after,
        expect={"prefect.flow-run.*"},
        within=timedelta(seconds=seconds),
        **more,
    )


def _event(*events: str) -> EventTrigger:
    """Fires at once when one of the events happens to a run of our flows."""
    return _of_each_run(posture=Posture.Reactive, expect=set(events), match_related=_OURS, within=timedelta(0))


def _of_each_run(**more: Any) -> EventTrigger:
    return EventTrigger(
        match={"prefect.resource.id": "prefect.flow-run.*"}, for_each={"prefect.resource.id"}, threshold=1, **more
    )


def _crash(message: str) -> list[Any]:
    return [ChangeFlowRunState(state=StateType.CRASHED, message=message)]


def dead_runs() -> list[AutomationCore]:
    """Runs whose process is gone become CRASHED, which is the state that Retry works from.

    Whatever happens to a run counts as a sign of life, so a run that ended, paused or waits for its retry is left
    alone. Nothing is forced: the server refuses to crash a run that has ended.
    """
    return [
        AutomationCore(
            name="crl: mark silent runs as crashed",
            description=f"A run says every {HEARTBEAT_SECONDS} s that it lives. Without a word for {SILENCE_SECONDS} s "
            "its process is gone (killed, machine lost) and nobody is left to say so. Keep this switched on.",
            trigger=_silence(SILENCE_SECONDS, after={HEARTBEAT, WATCHED}),
            actions=_crash(
                f"{SILENT} {SILENCE_SECONDS} s: the process of this run was killed or its machine is gone. What was "
                "complete is safe in the run directory; Retry continues there."
            ),
        ),
        AutomationCore(
            name="crl: mark runs that never began as crashed",
            description=f"A run that was handed to a process shows a sign of life within {START_SECONDS // 60} min. "
            "Only runs of the deployments: others may not send heartbeats. Keep this switched on.",
            trigger=_silence(
                START_SECONDS,
                after={"prefect.flow-run.Pending", "prefect.flow-run.Running"},
                match_related=[
                    {"prefect.resource.role": "flow", "prefect.resource.name": [*FLOWS, "tidy"]},
                    {"prefect.resource.role": "deployment"},
                ],
            ),
            actions=_crash(
                f"No sign of life within {START_SECONDS // 60} min of its start: the process of this run was killed "
                "before it began to work. Retry starts it again."
            ),
        ),
    ]


def tidying(tidy_deployment: UUID) -> list[AutomationCore]:
    """What a dead run left running (child runs, stages) is marked by a run of the deployment `tidy`.

    Told by its crash, and once more by its silence: after a restart the server keeps back what it hears of the state of
    an older run for up to 15 minutes (it orders such events by the one before, which it has forgotten), and a kill of
    everything can lose the run of `tidy` itself. Heartbeats are not ordered.
    """
    action = RunDeployment(
        source="selected",
        deployment_id=tidy_deployment,
        parameters={"flow_run_id": {"__prefect_kind": "jinja", "template": "{{ flow_run.id }}"}},
    )
    return [
        AutomationCore(
            name="crl: tidy up after a crashed run",
            description="A killed run cannot say that its rounds and stages died with it; the deployment tidy/tidy "
            "does.",
            trigger=_event("prefect.flow-run.Crashed"),
            actions=[action],
        ),
        AutomationCore(
            name="crl: tidy up after a silent run",
            description="The same for a run that is found dead by its silence, once it is marked: also where the "
            "server was stopped meanwhile.",
            trigger=_silence(SILENCE_SECONDS + _MARKED_SECONDS, after={HEARTBEAT, WATCHED}, match_related=_OURS),
            actions=[action],
        ),
    ]


def notification(block_document: UUID) -> AutomationCore:
    """An example to copy: notify somebody that a run failed or crashed. Switched off until a person wants it."""
    return AutomationCore(
        name="crl: tell of failures (example)",
        description=f"Sends a message through the block {NOTIFICATION_BLOCK} when a run fails or crashes. The block "
        "calls a web address (as it comes: the pages that `make ui` serves on this machine, which print the message); "
        "put in your own, or a block for e-mail or chat, and switch this on.",
        enabled=False,
        trigger=_event("prefect.flow-run.Failed", "prefect.flow-run.Crashed"),
        actions=[
            SendNotification(
                block_document_id=block_document,
                subject="{{ flow.name }} run {{ flow_run.name }}: {{ flow_run.state.name }}",
                body="{{ flow.name }} run {{ flow_run.name }} is {{ flow_run.state.name }}: "
                "{{ flow_run.state.message }}\n{{ flow_run|ui_url }}",
            )
        ],
    )


def ensure(client: SyncPrefectClient, wanted: AutomationCore) -> Made:
    """Make an automation, or bring it up to date; a person's switch stays as it is."""
    found = client.read_automations_by_name(wanted.name)
    if not found:
        client.create_automation(wanted)
        return Made(wanted.name, "made", wanted.enabled)
    first, *more = found
    for double in more:  # two set-ups at the same moment
        client.delete_automation(double.id)
    if _substance(first) == _substance(wanted):
        return Made(wanted.name, "found", first.enabled)
    client.update_automation(first.id, wanted.model_copy(update={"enabled": first.enabled}))
    return Made(wanted.name, "updated", first.enabled)


def ensure_block(url: str) -> UUID:
    """The block that the example notification sends through; one that exists is a person's and stays as it is."""
    # Both are coroutines where an event loop runs; typed as such wherever they are called.
    blocks: Any = CustomWebhookNotificationBlock
    try:
        block = blocks.load(NOTIFICATION_BLOCK)
    except ValueError:
        block = blocks(name=NOTIFICATION_BLOCK, url=url, json_data={"subject": "{{subject}}", "body": "{{body}}"})
        block.save(NOTIFICATION_BLOCK)
    identifier: UUID = block._block_document_id
    return identifier


def _substance(automation: AutomationCore | Automation) -> dict[str, Any]:
    return automation.model_dump(mode="json", include={"description", "trigger", "actions"})
