"""The work pool, and what a flow run may choose of how its worker starts it: nothing.

Prefect's own template takes a command line, a working directory and variables of the environment from whoever starts a
run. What runs need of the environment, the worker has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

POOL = "crl"
TYPE = "process"
WORKER_ENVIRONMENT = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # Without heartbeats nobody would notice that a run died together with its worker.
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
}
"""What a worker of the pool has in its environment, which its runs inherit: they bring none of their own."""
# Neither part may be empty. No `env` in the first: Prefect would merge that of a run into it.
TEMPLATE: dict[str, Any] = {
    "job_configuration": {"stream_output": True},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}
_PAGE = 200


def ensure_pool(client: SyncPrefectClient) -> str:
    """Make the pool, or bring the one that exists to our template; says which."""
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists

    wanted = WorkPoolCreate(
        name=POOL,
        type=TYPE,
        description="Training on this machine: each flow run is a process of its own.",
        base_job_template=TEMPLATE,
    )
    try:
        client.create_work_pool(wanted)
    except ObjectAlreadyExists:
        found = client.read_work_pool(POOL)
        if found.type != TYPE:
            return f"found, of type {found.type}: its template is yours to close"
        if found.base_job_template == TEMPLATE:
            return "found"
        client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=TEMPLATE))
        return "closed: from now on a run chooses no command, folder or environment"
    return "made"


def clear_job_variables(client: SyncPrefectClient) -> list[str]:
    """Take job variables off the deployments of the pool; with them no run could be started. Their names."""
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName

    if client.read_work_pool(POOL).type != TYPE:
        return []
    ours = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    found: list[DeploymentResponse] = []
    while page := client.read_deployments(work_pool_filter=ours, limit=_PAGE, offset=len(found)):
        found += page
    cleared = [each for each in found if each.job_variables]
    for each in cleared:
        client.update_deployment(each.id, DeploymentUpdate(job_variables={}))
    return sorted(each.name for each in cleared)
