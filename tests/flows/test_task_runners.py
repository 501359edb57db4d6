"""Parts of a stage as tasks on Prefect's task runners: equal digests, one part retried alone, what a failure leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter

from crl.errors import DataCheckFailed
from crl.run.directory import RunDirectory
from flows.train import train
from tests.unit.engine.fake_recipe import PARTS
from tests.unit.engine.harness import digests, leftovers, make_driver, make_experiment

SHARDS = 4


@pytest.fixture(scope="module")
def one_shard(tmp_path_factory):
    """Digests of two rounds of the fake recipe with one shard."""
    with make_driver(tmp_path_factory.mktemp("one-shard")) as driver:
        driver.run_rounds(2)
        return digests(driver.run)


def spread_over(runner: str, **more: Any):
    return make_experiment(shards=SHARDS, task_runner=runner, **more)


def tasks_of_round(number: int) -> dict[str, Any]:
    """Task runs of the newest child run `round N`, by name."""
    with get_client(sync_client=True) as client:
        rounds = client.read_flow_runs(flow_run_filter=FlowRunFilter(name={"any_": [f"round {number}"]}))
        newest = max(rounds, key=lambda run: run.created)
        found = client.read_task_runs(task_run_filter=TaskRunFilter(flow_run_id={"any_": [newest.id]}))
        return {run.name: run for run in found}


@pytest.mark.parametrize(
    "runner",
    ["threads", pytest.param("processes", marks=pytest.mark.slow), pytest.param("dask", marks=pytest.mark.slow)],
)
def test_a_killed_part_is_retried_alone_and_the_digests_are_those_of_one_shard(runner, fake, tmp_path, one_shard):
    path = fake({"spread/2": ["kill_once", str(tmp_path / "marker")]})
    state = train(spread_over(runner), rounds=2, return_state=True)
    assert state.result() == {"run": str(path), "rounds": [0, 1, 2]}
    assert digests(RunDirectory.open(path)) == one_shard

    for number, counts in ((1, [1, 1, 2, 1]), (2, [1, 1, 1, 1])):
        runs = tasks_of_round(number)
        parts = [runs[f"spread {part} of {PARTS}"] for part in range(1, PARTS + 1)]
        assert [part.run_count for part in parts] == counts
        assert all(part.state.is_completed() for part in parts)
        assert runs["spread"].run_count == 1, "the stage itself did not fail"
        assert len(runs) == 4 + PARTS
