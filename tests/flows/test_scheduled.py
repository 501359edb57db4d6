"""Schedules as Prefect's dialog makes them, on a real server: what the runs that come of them train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.schedules import CronSchedule
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry, Failed, Pending

import flows.train
from crl.config import Experiment
from crl.errors import BadInput
from flows.train import train

Parameters = dict[str, Any]

UNTOUCHED: Parameters = {"overrides": {"__prefect_kind": "json"}, "settings": {"method.families": None}}
"""What the dialog sends where nothing was filled in but the time."""
DEPLOYED: Parameters = {
    "experiment": "conf/tiny.yaml",
    "rounds": 1,
    "settings": {"name": "mine", "method.seed": 5, "method.families": None},
    "overrides": {"method.recipe.bank.capacity": 40, "runtime.retries": 1},
}
"""As somebody has filled in the form of the deployment."""

NOTHING_LEFT: Any = SimpleNamespace(
    set_target=lambda rounds, purpose: (1, rounds), next_round=lambda: 1, round_complete=lambda number: True,
    visit=lambda numbers, run_round: None, stopped=None, run=SimpleNamespace(path="there"),
)  # fmt: skip
"""A driver that has nothing to do."""


def as_json(value: Any) -> Parameters:
    """A field of the form under "Use JSON Input"."""
    return {"__prefect_kind": "json", "value": json.dumps(value)}


class Desk:
    """A deployment of `train` with schedules; what its runs would train is noted and not done."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self.client = client
        self.trained: list[tuple[Experiment, int]] = []
        self.deployment: UUID = client.create_deployment(
            client.create_flow_from_name("train"),
            f"nightly {datetime.now(UTC).timestamp()}",
            parameters=DEPLOYED,
            parameter_openapi_schema=train.parameters.model_dump(mode="json", exclude_unset=True),
        )

    def add(self, parameters: Parameters) -> UUID:
        """Another schedule; the server checks its parameters as little as the dialog's."""
        at = CronSchedule(cron="* * * * *", timezone="UTC")
        wanted = DeploymentScheduleCreate(schedule=at, active=True, parameters=parameters)
        return self.client.create_deployment_schedules(self.deployment, [wanted])[0].id

    def edit(self, **parameters: Any) -> None:
        self.client.update_deployment(self.deployment, DeploymentUpdate(parameters={**DEPLOYED, **parameters}))

    def missed(self, minutes: int = 3) -> list[FlowRun]:
        """Runs that were due in these last minutes, the oldest first."""
        span = [(datetime.now(UTC) - timedelta(minutes=each)).isoformat() for each in (minutes, 0)]
        asked = {"start_time": span[0], "end_time": span[1], "max_runs": 50}
        self.client.request("POST", f"/deployments/{self.deployment}/schedule", json=asked).raise_for_status()
        found = [run for run in self.client.read_flow_runs() if run.deployment_id == self.deployment]
        due = [run for run in found if run.expected_start_time and run.expected_start_time < datetime.now(UTC)]
        return sorted(due, key=lambda run: run.expected_start_time or run.created)

    def run(self, flow_run: FlowRun) -> State[Any]:
        """What a worker's process does with a run."""
        state = run_flow(train, flow_run=self.client.read_flow_run(flow_run.id), return_type="state")
        assert isinstance(state, State)
        return state

    def scheduled(self, parameters: Parameters) -> tuple[Experiment, int]:
        """What a run of a schedule with these parameters trains: the experiment, and how many rounds."""
        self.add(parameters)
        state = self.run(self.missed()[-1])
        assert state.is_completed(), state.message
        return self.trained[-1]


@pytest.fixture
def desk(prefect_server: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with get_client(sync_client=True) as client:
        made = Desk(client)
        monkeypatch.setattr(flows.train, "begun", lambda experiment, rounds: made.trained.append((experiment, rounds)))
        monkeypatch.setattr(flows.train, "exclusive", lambda run, runtime: nullcontext(NOTHING_LEFT))
        yield made
        client.delete_deployment(made.deployment)


@pytest.mark.slow
def test_a_schedule_that_only_has_a_time_trains_what_the_deployment_says(desk: Desk, caplog: Any) -> None:
    made, rounds = desk.scheduled(UNTOUCHED)
    assert (made.name, made.method.seed, made.runtime.retries, rounds) == ("mine", 5, 1, 1)
    assert "everything is as the deployment" in caplog.text
    assert 'experiment mine: conf/tiny.yaml, changed:\n  name: "mine"\n  method.seed: 5' in caplog.text


def test_what_a_schedule_sets_is_what_its_runs_and_their_retries_train(desk: Desk, caplog: Any) -> None:
    schedule = desk.add({**UNTOUCHED, "rounds": as_json(4), "settings": {"method.seed": 9, "method.families": None}})
    late = desk.missed()[-1]
    # Edited after the run was due: it trains what both say when it begins.
    desk.edit(settings={"name": "edited"})
    assert desk.run(late).is_completed()
    made, rounds = desk.trained.pop()
    assert (made.name, made.method.seed, made.runtime.retries, rounds) == ("edited", 9, 1, 4)
    assert "the schedule sets rounds, method.seed; all else is as the deployment" in caplog.text
    shown = {"experiment": "conf/tiny.yaml", "rounds": 4, "settings": {"name": "edited", "method.seed": 9},
             "overrides": DEPLOYED["overrides"] | {"method.seed": 9}}  # fmt: skip
    assert desk.client.read_flow_run(late.id).parameters == shown

    # Whatever people do meanwhile, Retry goes on with what the run began.
    desk.edit(settings={"name": "another"}, overrides={"runtime.retries": 3})
    desk.client.delete_deployment_schedule(desk.deployment, schedule)
    desk.client.set_flow_run_state(late.id, Failed(), force=True)
    desk.client.set_flow_run_state(late.id, AwaitingRetry(), force=True)
    assert desk.run(late).is_completed()
    assert desk.trained == [(made, rounds)]


@pytest.mark.slow
def test_of_missed_runs_that_ask_for_the_same_in_other_words_one_works(desk: Desk) -> None:
    desk.add(UNTOUCHED)
    desk.add({"rounds": as_json(1)})
    desk.add({"rounds": 2})
    missed = desk.missed()
    for run in missed:
        desk.run(run)
    assert [rounds for _, rounds in desk.trained].count(2) == 1
    assert 1 <= [rounds for _, rounds in desk.trained].count(1) <= 2, "two may be due in the same minute"
    assert len(missed) >= 9


def test_a_run_whose_schedule_was_deleted_does_not_work(desk: Desk) -> None:
    schedule = desk.add(UNTOUCHED)
    late = desk.missed()[-1]
    desk.client.set_flow_run_state(late.id, Pending())  # a worker has it; before that the server deletes it as well
    desk.client.delete_deployment_schedule(desk.deployment, schedule)
    state = desk.run(late)
    assert state.is_cancelled() and "was deleted" in str(state.message) and desk.trained == []


@pytest.mark.slow
def test_a_value_that_no_run_can_take_fails_the_run_and_is_named(desk: Desk) -> None:
    desk.add({"rounds": as_json(0)})
    state = desk.run(desk.missed()[-1])
    assert state.is_failed() and str(state.message).startswith("BadInput") and "rounds" in str(state.message)
    with pytest.raises(BadInput, match="rounds"):
        train(rounds=0)
    assert desk.trained == []
