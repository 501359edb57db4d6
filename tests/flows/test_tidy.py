"""Tidying on a real server: what dead runs left is marked, what lives or has ended is left alone."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect import flow, get_client, task
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext
from prefect.events.filters import EventFilter
from prefect.states import Cancelled, Completed, Crashed, Paused, Running, Suspended

from flows.automations import SILENT, WATCHED
from flows.limits import ensure_limit
from flows.tidy import end_earlier_attempts, tidy, tidy_up, watch_unfinished
from flows.train import train
from tests.processes import wait_until
from tests.unit.engine.harness import make_experiment


@flow(name="train")
def parent_flow() -> None: ...


@flow(name="round")
def child_flow() -> None: ...


@task(name="stage")
def stage() -> None: ...


class Family:
    """A run as a killed process leaves it: a complete round, a round that is under way, a stage of each."""

    def __init__(self, client, state=None, child_state=None):
        self.client = client
        self.parent = client.create_flow_run(parent_flow, state=Running()).id
        self.done, self.done_stage = self._round("0", Completed(), Completed())
        self.child, self.stage = self._round("1", child_state or Running(), Running())
        if state is not None:
            client.set_flow_run_state(self.parent, state, force=True)

    def _round(self, key, state, stage_state):
        tracking = self._task(self.parent, f"round-{key}", state)
        child = self.client.create_flow_run(child_flow, parent_task_run_id=tracking, state=state)
        return child.id, self._task(child.id, key, stage_state)

    def _task(self, flow_run_id, key, state):
        return self.client.create_task_run(stage, flow_run_id=flow_run_id, dynamic_key=key, state=state).id

    def states(self):
        """Types of state: parent, round 1, its stage."""
        runs = [self.client.read_flow_run(self.parent), self.client.read_flow_run(self.child)]
        return [run.state.type for run in (*runs, self.client.read_task_run(self.stage))]

    def complete_ones(self):
        return {
            self.client.read_flow_run(self.done).state.type,
            self.client.read_task_run(self.done_stage).state.type,
        }

    def beat(self, ago=0.0, of=None):
        """A heartbeat of the parent, or of another run, reaches the server; it stores events every few seconds."""
        run = of or self.parent
        event = {
            "occurred": (datetime.now(UTC) - timedelta(seconds=ago)).isoformat(),
            "event": "prefect.flow-run.heartbeat",
            "resource": {"prefect.resource.id": f"prefect.flow-run.{run}"},
            "id": str(uuid4()),
        }
        self.client.request("POST", "/events", json=[event]).raise_for_status()
        wait_until(lambda: "prefect.flow-run.heartbeat" in events_of(self.client, run), "it is stored")


def events_of(client, flow_run_id):
    """What happened to a flow run."""
    wanted = EventFilter.model_validate({"resource": {"id": [f"prefect.flow-run.{flow_run_id}"]}})
    return [event.event for event in client.read_events(wanted, limit=50).events]


@pytest.fixture
def client(prefect_server):
    with get_client(sync_client=True) as opened:
        yield opened


CRASHED, CANCELLED, RUNNING = StateType.CRASHED, StateType.CANCELLED, StateType.RUNNING


@pytest.mark.slow
def test_what_a_crashed_run_left_becomes_crashed_and_says_why(client):
    family = Family(client, Crashed())
    other = Family(client, Crashed())
    tidy(family.parent)
    assert family.states() == [CRASHED, CRASHED, CRASHED]
    assert "whose process died" in client.read_flow_run(family.child).state.message
    assert family.complete_ones() == {StateType.COMPLETED}
    assert other.states() == [CRASHED, RUNNING, RUNNING]  # an id means this run and no other
    tidy()
    assert other.states() == [CRASHED, CRASHED, CRASHED]
    assert str(tidy_up(client)) == "nothing to tidy"


@pytest.mark.slow
def test_children_of_a_cancelled_run_are_cancelled_and_waiting_ones_end_too(client):
    family = Family(client, Cancelled())
    waiting = Family(client, Crashed(), child_state=Paused(timeout_seconds=600))
    tidy_up(client)
    assert family.states() == [CANCELLED, CANCELLED, CANCELLED]
    assert waiting.states() == [CRASHED, CRASHED, CRASHED]


@pytest.mark.slow
def test_a_run_that_lives_is_not_touched_and_one_marked_in_error_is_put_right(client, monkeypatch):
    silence = 9000  # in place of 90 s: longer than this test takes on any machine
    monkeypatch.setattr("flows.tidy.SILENCE_SECONDS", silence)
    alive = Family(client)
    beats = Family(client, Crashed())
    silent = Family(client, Crashed())
    silent.beat(ago=30)  # before it was marked: no sign of life
    undelivered = Family(client, Crashed(message=f"{SILENT} 90 s"))
    client.set_flow_run_state(undelivered.child, Crashed(message=f"{SILENT} 90 s"), force=True)
    undelivered.beat(ago=20, of=undelivered.child)
    undelivered.beat(ago=20)  # it could not be delivered in time
    gone = Family(client, Crashed(message=f"{SILENT} 90 s"))
    gone.beat(ago=silence - 5)
    time.sleep(1.5)  # clearly after the mark
    beats.beat()
    tidied = tidy_up(client)
    assert alive.states() == [RUNNING, RUNNING, RUNNING]
    assert beats.states() == [RUNNING, RUNNING, RUNNING] and len(tidied.revived) == 3
    assert undelivered.states() == [RUNNING, RUNNING, RUNNING]
    assert gone.states() == [CRASHED, CRASHED, CRASHED]
    assert silent.states() == [CRASHED, CRASHED, CRASHED]
    for family in (alive, beats, undelivered):
        client.set_flow_run_state(family.parent, Completed(), force=True)


@pytest.mark.slow
def test_unfinished_runs_that_beat_are_watched_again(client):
    """Only they: nobody would hear of the others, and a suspended one has no process."""
    beating, silent, suspended = Family(client), Family(client), Family(client)
    for family in (beating, suspended):
        family.beat()
    client.set_flow_run_state(suspended.parent, Suspended(timeout_seconds=600), force=True)
    watched = {run.id for run in watch_unfinished(client)}
    assert beating.parent in watched and not watched & {silent.parent, suspended.parent, beating.done}
    wait_until(lambda: WATCHED in events_of(client, beating.parent), "the event is stored")
    for family in (beating, silent, suspended):
        client.set_flow_run_state(family.parent, Cancelled(), force=True)


@pytest.mark.slow
def test_a_training_run_of_a_deployment_has_the_others_watched(client, fake, monkeypatch):
    """What the server missed of a run that died, it is told again by one that lives."""
    fake({})
    dead = Family(client)
    dead.beat(ago=600)
    ensure_limit("fake")
    assert train(make_experiment(), rounds=1)["rounds"] == [0, 1]
    assert WATCHED not in events_of(client, dead.parent), "typed in a terminal, with a server of its own perhaps"
    monkeypatch.setattr("flows.tidy.deployment", SimpleNamespace(id=str(uuid4())))
    assert train(make_experiment(), rounds=1)["rounds"] == [2]
    wait_until(lambda: WATCHED in events_of(client, dead.parent), "it is watched")
    client.set_flow_run_state(dead.parent, Cancelled(), force=True)


def test_a_retry_ends_what_its_earlier_attempts_left(client):
    @flow(name="train", retries=1, retry_delay_seconds=0)
    def retried():
        run = FlowRunContext.get().flow_run
        if run.run_count == 1:
            tracking = client.create_task_run(stage, run.id, "1", state=Running()).id
            left.append(client.create_flow_run(child_flow, parent_task_run_id=tracking, state=Running()).id)
            raise RuntimeError("the first attempt ends")
        assert client.read_flow_run(left[0]).state.is_running()
        end_earlier_attempts()
        assert client.read_flow_run(left[0]).state.is_crashed()

    left = []
    assert retried(return_state=True).is_completed()
