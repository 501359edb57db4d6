"""Runs that a real worker starts: what is refused where, what is retried, and what Cancel leaves behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from crl.run.directory import RunDirectory
from crl.run.lease import lease_state
from tests.operate import Operation, as_parameter, operation
from tests.processes import command_line, wait_until
from tests.unit.engine.harness import digests, make_driver, make_experiment

pytestmark = pytest.mark.slow

CANCEL_SECONDS = 10.0
"""A cancelled run's engines have ended by then."""


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operation]:
    with operation(tmp_path_factory.mktemp("operation"), {"CRL_FAKE": "{}"}) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    with make_driver(tmp_path_factory.mktemp("undisturbed")) as driver:
        driver.run_rounds(1)
        return digests(driver.run)


def experiment(name: str) -> dict[str, Any]:
    """The fake experiment under a name of its own, and so with a limit of its own."""
    return as_parameter(make_experiment().model_copy(update={"name": name}))


def tasks_of(operated: Operation, run_id: str, name: str) -> list[dict[str, Any]]:
    children = {child["id"] for child in operated.children(run_id)}
    return [task for task in operated.task_runs() if task["flow_run_id"] in children and task["name"] == name]


def test_the_server_refuses_a_wrong_value_and_names_the_field(operated: Operation) -> None:
    for parameters, field in (
        ({"experiment": "conf/tiny.yaml", "rounds": 0}, "rounds"),
        ({"experiment": "conf/tiny.yaml", "rounds": 1, "settings": {"method.seed": -1}}, "method.seed"),
    ):
        with pytest.raises((AssertionError, httpx.HTTPError), match=field):
            operated.run("train/train", parameters)


def test_what_the_form_cannot_know_fails_the_run_at_once_and_names_the_field(operated: Operation) -> None:
    wrong = experiment("wrong")
    wrong["method"]["families"][0]["environment"] |= {"size_min": 9, "size_max": 4}
    runs = {
        "method.families.0.environment": operated.run("train/train", {"experiment": wrong, "rounds": 1}),
        "runtime.shards": operated.run(
            "train/train", {"experiment": {**experiment("x"), "runtime": {"shards": 0}}, "rounds": 1}
        ),
        "method.sede: unknown key; did you mean 'seed'?": operated.run(
            "train/train", {"experiment": "conf/tiny.yaml", "overrides": {"method.sede": 1}}
        ),
        "run_path: there is no run 'nobody'": operated.run("resume/resume", {"run_path": "nobody"}),
    }
    for said, run_id in runs.items():
        found = operated.wait_for(run_id)
        assert found["state_name"] == "Failed" and found["run_count"] == 1
        assert found["state"]["message"].startswith("BadInput: ") and said in found["state"]["message"]


def test_a_transient_failure_is_retried_and_a_permanent_one_is_not(
    operated: Operation, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    once = json.dumps({"draw": ["kill_once", str(tmp_path / "killed")]})
    breach = json.dumps({"draw": ["breach", ""]})
    parameters = {name: {"experiment": experiment(name), "rounds": 1} for name in ("transient", "permanent")}
    retried = operated.run("train/train", parameters["transient"], variables={"CRL_FAKE": once})
    failed = operated.run("train/train", parameters["permanent"], variables={"CRL_FAKE": breach})

    assert operated.wait_for(retried)["state_name"] == "Completed"
    assert digests(RunDirectory.open(operated.runs / "transient")) == undisturbed
    found = operated.wait_for(failed)
    message = found["state"]["message"]
    assert message.startswith("DataCheckFailed (round 1, draw): table metrics") and "What to do: look" in message
    assert (found["name"], found["tags"]) == ("permanent: rounds 0–1", ["permanent", "training"])
    assert [child["name"] for child in operated.children(failed)] == ["round 0 of permanent", "round 1 of permanent"]
    of_round = operated.children(failed)[1]["state"]["message"]
    assert re.fullmatch(rf"{re.escape(of_round)}. Head after round 0: [0-9a-f]{{64}}", message)

    def arrived() -> bool:
        return bool(tasks_of(operated, retried, "draw")) and bool(tasks_of(operated, failed, "draw"))

    wait_until(arrived, "the events of the tasks have arrived")
    (task,) = tasks_of(operated, retried, "draw")
    assert task["run_count"] == 2
    (task,) = tasks_of(operated, failed, "draw")
    assert (task["run_count"], task["state"]["message"]) == (1, of_round)


def test_cancel_ends_the_engines_and_leaves_a_run_that_resumes(
    operated: Operation, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    path, marker = operated.runs / "cancelled", tmp_path / "asleep"
    run_id = operated.run(
        "train/train",
        {"experiment": experiment("cancelled"), "rounds": 1},
        variables={"CRL_FAKE": json.dumps({"draw": ["sleep", str(marker)]})},
    )
    wait_until(marker.exists, "the stage sleeps")
    assert operated.limit("cancelled")["active_slots"] == 1
    operated.cancel(run_id)

    def engines() -> list[int]:
        found = operated.flow_processes(run_id)
        return [process.pid for process in found if "crl.engine.worker" in command_line(process)]

    wait_until(lambda: not engines(), "its engines end", CANCEL_SECONDS)
    wait_until(lambda: not operated.flow_processes(run_id), "Prefect's own process of the run ends too")
    assert operated.wait_for(run_id)["state_name"] == "Cancelled"
    assert lease_state(path) is None, "the lease was given back"
    wait_until(lambda: operated.limit("cancelled")["active_slots"] == 0, "the slot is free")
    assert RunDirectory.open(path).complete_stages(1) == []

    operated.resume_without_server("cancelled")
    assert digests(RunDirectory.open(path)) == undisturbed
