"""What a flow run may choose of how a worker starts it: nothing, also on a pool of an older version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import flow, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import PrefectHTTPStatusError
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from flows.setup import POOL, TEMPLATE, clear_job_variables, ensure_pool

pytestmark = pytest.mark.usefixtures("prefect_server")

CHOSEN: list[dict[str, Any]] = [
    {"command": "touch /tmp/evil"},
    {"working_dir": "/tmp"},
    {"env": {"PYTHONPATH": "/tmp/evil"}},
    {"env.LD_PRELOAD": "/tmp/evil.so"},
    {"stream_output": False},
    {"name": "x"},
]


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    """A client of a server that has the pool of an older version, with a deployment that brings an environment."""
    with get_client(sync_client=True) as made:
        old = ProcessWorker.get_default_base_job_template()
        made.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=old))
        yield made
        made.delete_work_pool(POOL)


def deployed(client: SyncPrefectClient, name: str, variables: dict[str, Any]) -> Any:
    @flow
    def guarded() -> None:
        pass

    identifier = client.create_flow(guarded)
    return client.create_deployment(
        identifier, name, work_pool_name=POOL, job_variables=variables, entrypoint="x.py:guarded"
    )


def test_an_old_pool_and_its_deployments_are_brought_to_the_template(client: SyncPrefectClient) -> None:
    beat = {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}}
    with_variables, without = deployed(client, "old", beat), deployed(client, "plain", {})
    assert ensure_pool(client).startswith("closed")
    assert client.read_work_pool(POOL).base_job_template == TEMPLATE
    assert ensure_pool(client) == "found"
    with pytest.raises(PrefectHTTPStatusError, match="422"):
        client.create_flow_run_from_deployment(with_variables)  # as after an update of the project alone
    assert clear_job_variables(client) == ["old"] and clear_job_variables(client) == []
    for deployment in (with_variables, without):
        client.create_flow_run_from_deployment(deployment)
        for chosen in CHOSEN:
            with pytest.raises(PrefectHTTPStatusError, match="422"):
                client.create_flow_run_from_deployment(deployment, job_variables=chosen)


@pytest.mark.slow
def test_what_is_there_before_the_pool_is_closed_has_no_effect(client: SyncPrefectClient) -> None:
    deployment = deployed(client, "late", {})
    chosen = {key: value for each in CHOSEN for key, value in each.items() if "." not in key}
    early = client.create_flow_run_from_deployment(deployment, job_variables=chosen)
    ensure_pool(client)
    body = {
        "flow_id": str(early.flow_id), "deployment_id": str(deployment), "work_pool_name": POOL,
        "job_variables": {**chosen, "env.LD_PRELOAD": "/tmp/evil.so"},
    }  # fmt: skip
    late = client.request("POST", "/flow_runs/", json=body)
    assert late.status_code == 201, "Prefect checks nothing here"
    plain = prepared(client.create_flow_run_from_deployment(deployment).id)
    for identifier in (early.id, late.json()["id"]):
        assert prepared(identifier) == plain


def prepared(identifier: Any) -> dict[str, Any]:
    """How a worker would start a flow run, without what names the run itself."""

    async def read() -> ProcessJobConfiguration:
        async with get_client() as client:
            run, pool = await client.read_flow_run(identifier), await client.read_work_pool(POOL)
            return await ProcessJobConfiguration.resolve_for_flow_run(
                run, client=client, work_pool=pool, worker_name="x"
            )

    found = asyncio.run(read())
    own = {"PREFECT__FLOW_RUN_ID", "PREFECT__FLOW_RUN_NAME"}
    environment = {key: value for key, value in found.env.items() if key not in own}
    return {**found.model_dump(include={"command", "working_dir", "stream_output"}), "env": environment}
