"""What the server does by itself: mark dead runs, have their remains tidied, report a failure to somebody.

Each automation is described here as it shall be; :func:`ensure` makes it so and leaves the switch (on or off) to the
people who use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.blocks.notifications import CustomWebhookNotificationBlock, SendgridEmail, SlackWebhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, RunDeployment, SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from pydantic import SecretStr

from crl.rounds.alarms import COLLAPSED
from flows.present import HEARTBEAT
from tasks.events import ALARM, EXPERIMENT

HEARTBEAT_SECONDS = 30
"""How often a flow run says that it lives."""
SILENCE_SECONDS = 90
"""A run without a heartbeat for so long is dead: three heartbeats."""
START_SECONDS = 10 * 60
"""A run that was handed to a process and never said that it lives is dead after this: a busy machine takes minutes to
start one."""
FLOWS = ("train", "resume", "evaluate", "compare")
"""Flows whose crash leaves something to tidy. Not `tidy` itself: a crash of it must not start it for ever."""

WEBHOOK, MAIL, SLACK = "crl-failures", "crl-mail", "crl-slack"
"""Blocks of the example notifications."""
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


def tidying(tidy_deployment: UUID) -> AutomationCore:
    """What a dead run left running (child runs, stages) is marked by a run of the deployment `tidy`."""
    return AutomationCore(
        name="crl: tidy up after a crashed run",
        description="A killed run cannot say that its rounds and stages died with it; the deployment tidy/tidy does.",
        trigger=_event("prefect.flow-run.Crashed"),
        actions=[
            RunDeployment(
                source="selected",
                deployment_id=tidy_deployment,
                parameters={"flow_run_id": {"__prefect_kind": "jinja", "template": "{{ flow_run.id }}"}},
            )
        ],
    )


def notifications(blocks: Mapping[str, UUID]) -> list[AutomationCore]:
    """Examples to copy: tell somebody of a failure, of an alarm, of a collapse, each through another kind of block.
    Switched off until a person wants them."""
    alarm = "{{ event.payload.alarm }}\n{{ event.payload.report }}\nhead: {{ event.payload.head }}"
    collapsed = {"crl.metric": COLLAPSED}
    return [
        _example(
            "failures", blocks[WEBHOOK], "when a run fails or crashes",
            _event("prefect.flow-run.Failed", "prefect.flow-run.Crashed"),
            "{{ flow.name }} run {{ flow_run.name }}: {{ flow_run.state.name }}",
            "{{ flow.name }} run {{ flow_run.name }} is {{ flow_run.state.name }}: {{ flow_run.state.message }}\n"
            "What is complete is kept; Retry continues there: {{ flow_run|ui_url }}",
        ),
        _example(
            "alarms", blocks[MAIL], "for each alarm of a round", _of_experiments(ALARM),
            "{{ event.payload.experiment }}, round {{ event.payload.round }}: alarm", alarm,
        ),
        _example(
            "collapse", blocks[SLACK], "when a run has stopped learning", _of_experiments(ALARM, **collapsed),
            "{{ event.payload.experiment }} has collapsed in round {{ event.payload.round }}", alarm,
        ),
    ]  # fmt: skip


def _example(what: str, block: UUID, when: str, trigger: EventTrigger, subject: str, body: str) -> AutomationCore:
    return AutomationCore(
        name=f"crl: tell of {what} (example)",
        description=f"Sends a message {when}. Put your own address into its block, or choose another block (webhook, "
        "mail, Slack), and switch this on.",
        enabled=False,
        trigger=trigger,
        actions=[SendNotification(block_document_id=block, subject=subject, body=body)],
    )


def _of_experiments(event: str, **labels: str) -> EventTrigger:
    """Fires at once for each event of this name (`tasks/events.py`) about any experiment."""
    return EventTrigger(
        match={"prefect.resource.id": f"{EXPERIMENT}.*", **labels},
        expect={event},
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
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


def ensure_blocks(url: str) -> dict[str, UUID]:
    """The blocks that the examples send through, by name; one that exists is a person's and stays as it is.

    The webhook is that of the pages (`flows/pages.py`), which print what they are sent; the other addresses are made
    up.
    """
    wanted: dict[str, Any] = {
        WEBHOOK: CustomWebhookNotificationBlock(
            name=WEBHOOK, url=url, json_data={"subject": "{{subject}}", "body": "{{body}}"}
        ),
        MAIL: SendgridEmail(
            api_key=SecretStr("SG.your-key"), sender_email="crl@example.org", to_emails=["you@example.org"]
        ),
        SLACK: SlackWebhook(url=SecretStr("https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXX")),
    }
    found: dict[str, UUID] = {}
    for name, block in wanted.items():
        # Both are coroutines where an event loop runs; typed as such wherever they are called.
        try:
            known: Any = type(block).load(name)
        except ValueError:
            known = block
            known.save(name)
        found[name] = known._block_document_id
    return found


def _substance(automation: AutomationCore | Automation) -> dict[str, Any]:
    return automation.model_dump(mode="json", include={"description", "trigger", "actions"})
