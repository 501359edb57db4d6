"""The flows through a real Prefect server: what is retried, what is not, what a retried flow run does and shows."""

from __future__ import annotations

import threading
from pathlib import Path
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.events.filters import EventFilter
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry

from crl.errors import BadInput, DataCheckFailed, StageFailed
from crl.run.directory import RunDirectory, manifests
from crl.run.head import heads
from flows.train import resume, train
from tasks.events import EXPERIMENT, ROUND_COMPLETED, STOPPED
from tests.processes import wait_until
from tests.unit.engine.harness import digests, make_driver, make_experiment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    with make_driver(tmp_path_factory.mktemp("undisturbed")) as driver:
        driver.run_rounds(2)
        return digests(driver.run)


def flow_runs(**filters):
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(flow_run_filter=FlowRunFilter(**filters) if filters else None)


def task_runs(flow_run_id):
    with get_client(sync_client=True) as client:
        found = client.read_task_runs(task_run_filter=TaskRunFilter(flow_run_id={"any_": [flow_run_id]}))
        return {run.name: run for run in found}


def artifacts(key):
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    with get_client(sync_client=True) as client:
        return client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))


def told_of(experiment):
    """Heads by round, of the events `crl.round.completed` about an experiment."""
    return {each["round"]: each["head"] for each in payloads(ROUND_COMPLETED, experiment)}


def payloads(event, experiment):
    wanted = {"event": {"name": [event]}, "resource": {"id": [f"{EXPERIMENT}.{experiment}"]}}
    with get_client(sync_client=True) as client:
        return [each.payload for each in client.read_events(EventFilter.model_validate(wanted), limit=50).events]


def children_of(state):
    """Child flow runs of a flow run, by name without that of the experiment, the newest of each name."""
    parent = state.state_details.flow_run_id
    tracking = [run.id for run in task_runs(parent).values()]
    found = sorted(flow_runs(parent_task_run_id={"any_": tracking}), key=lambda run: run.created)
    return {run.name.removesuffix(" of fake"): run for run in found}


def test_a_transient_failure_is_retried_and_the_record_is_that_of_an_undisturbed_run(fake, tmp_path, undisturbed):
    path = fake({"draw": ["kill_once", str(tmp_path / "marker")]})
    state = train(make_experiment(), rounds=2, return_state=True)
    assert state.result() == {"run": str(path), "rounds": [0, 1, 2]}
    assert digests(RunDirectory.open(path)) == undisturbed
    children = children_of(state)
    assert set(children) == {"round 0", "round 1", "round 2"}
    assert all(run.name.endswith(" of fake") and "fake" in run.tags for run in children.values())
    # The run's own page: where it stands and where to look, its artifacts, the head to keep.
    assert state.message.startswith("rounds 0–2 complete. Round 2: "), state.message
    told = heads(manifests(path))
    assert str(path / "report.html") in state.message and f"Head after round 2: {told[2]}" in state.message
    own = [
        str(each.flow_run_id) for kind in ("rounds", "learning-curve", "report") for each in artifacts(f"fake-{kind}")
    ]
    assert own.count(str(state.state_details.flow_run_id)) == 3
    # Every round was told to automations, with its head.
    wait_until(lambda: len(told_of("fake")) == 3, lambda: str(told_of("fake")), every=0.5)
    assert told_of("fake") == {number: told[number] for number in range(3)}
    stages = task_runs(children["round 1"].id)
    assert set(stages) == {"draw", "spread", "learn", "total"}
    assert (stages["draw"].run_count, stages["spread"].run_count) == (2, 1)
    assert any("draw" in artifact.data for artifact in artifacts("fake-rounds"))

    # The same again finds nothing to do; more rounds go on from there.
    assert resume(path) == {"run": str(path), "rounds": []}
    assert train(make_experiment(), rounds=1)["rounds"] == [3]


def test_a_run_that_may_not_go_on_says_so_wherever_one_looks(fake, tmp_path):
    path = fake({})
    state = train(make_experiment(stop_at={"hours": 1e-9}), rounds=2, return_state=True)
    assert state.result() == {"run": str(path), "rounds": [0]}
    assert "Stopped after round 0: its stages took" in state.message and "runtime.stop_at.hours" in state.message
    assert "stop_at=null" in state.message
    assert any("stopped after round 0" in each.data for each in artifacts("fake-rounds"))
    wait_until(lambda: payloads(STOPPED, "fake"), lambda: "the event", every=0.5)
    (told,) = payloads(STOPPED, "fake")
    assert (told["round"], told["head"]) == (0, heads(manifests(path))[0])
    assert told["reason"] in state.message.replace("Stopped", "stopped")
    assert set(children_of(state)) == {"round 0"}
    # Somebody who wants more gets them; the round under way is what was asked for.
    assert train(make_experiment(), rounds=1)["rounds"] == [1]


def test_a_breach_is_not_retried_and_shows_as_an_artifact_and_a_retried_flow_run_finishes(fake, tmp_path, undisturbed):
    path = fake({"spread/1": ["breach", ""]})
    state = train(make_experiment(), rounds=2, return_state=True)
    with pytest.raises(DataCheckFailed, match="row 3 has"):
        state.result()
    run = RunDirectory.open(path)
    assert run.complete_stages(1) == ["draw"] and not run.complete_stages(2)
    failed = task_runs(children_of(state)["round 1"].id)["spread"]
    assert failed.run_count == 1 and failed.state.is_failed() and "row 3 has" in failed.state.message
    assert any("row 3 has -1.0" in artifact.data for artifact in artifacts("fake-data-checks"))

    # Retry in the UI: the same flow run again. It finishes its rounds, and no more.
    fake({})
    with get_client(sync_client=True) as client:
        identifier = UUID(str(state.state_details.flow_run_id))
        client.set_flow_run_state(identifier, AwaitingRetry(), force=True)
        again = run_flow(train, flow_run=client.read_flow_run(identifier), return_type="state",
                         parameters={"experiment": make_experiment(), "rounds": 2})  # fmt: skip
    assert again.result()["rounds"] == [1, 2]
    assert digests(run) == undisturbed


def test_rounds_that_overlap_are_two_child_flows_at_a_time_and_a_retry_continues_both(fake, tmp_path):
    with make_driver(tmp_path / "in turn", overlap=True, overlap_engines=1) as driver:
        driver.run_rounds(3)
        expected = digests(driver.run)
    marker = tmp_path / "held"
    path = fake({"total": ["hold_once", str(marker)], "learn": ["raise_once", str(tmp_path / "raised")]})
    made = make_experiment(overlap=True)
    state = train(made, rounds=3, return_state=True)  # round 1 breaks in its first track, before anything is held
    with pytest.raises(StageFailed, match="the fake broke"):
        state.result()
    run = RunDirectory.open(path)

    def release():
        wait_until(lambda: run.is_complete(2, "learn"), "round 2 had learned")
        assert not run.is_complete(1, "total")
        Path(f"{marker}-go").touch()

    releasing = threading.Thread(target=release)
    releasing.start()
    with get_client(sync_client=True) as client:
        identifier = UUID(str(state.state_details.flow_run_id))
        client.set_flow_run_state(identifier, AwaitingRetry(), force=True)
        again = run_flow(train, flow_run=client.read_flow_run(identifier), return_type="state",
                         parameters={"experiment": made, "rounds": 3})  # fmt: skip
    releasing.join()
    assert again.result()["rounds"] == [1, 2, 3]
    assert digests(run) == expected
    children = children_of(again)
    assert set(children) == {"round 0", "round 1", "round 2", "round 3"}
    assert all(child.state.is_completed() for child in children.values())
    assert children["round 1"].start_time < children["round 2"].start_time < children["round 1"].end_time
    assert children["round 3"].start_time >= children["round 1"].end_time
    for name in ("round 1", "round 2", "round 3"):
        assert set(task_runs(children[name].id)) == {"draw", "spread", "learn", "total"}


def test_bad_input_and_a_second_owner_fail_the_flow_with_their_own_errors(fake, tmp_path):
    with pytest.raises(BadInput):
        train(tmp_path / "missing.yaml", rounds=1)
    fake({"prepare": ["bad_input", ""]})
    with pytest.raises(BadInput, match="the fake refuses"):
        train(make_experiment(), rounds=1)
