"""The deployments of `prefect.yaml` on a server.

`prefect deploy` writes schedules, parameters and the pause of the file over those that people have set in the UI. Here
a deployment that is missing is made as the file has it; of one that is there only what belongs to the code is changed,
in one request, so that nothing is lost where this is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from httpx import HTTPStatusError, codes
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.objects import ConcurrencyOptions
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.utilities.templating import apply_values

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "prefect.yaml"
Fields = dict[str, Any]


def deploy(client: SyncPrefectClient) -> Iterator[tuple[str, str]]:
    """Make or update each deployment; yields its full name and what was done."""
    file = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    # What the build step of the file finds out for `prefect deploy`.
    pull_steps = apply_values(file["pull"], {"checkout": {"stdout": str(ROOT)}})
    for wanted in file["deployments"]:
        flow = _flow(wanted["entrypoint"])
        name = f"{flow.name}/{wanted['name']}"
        code = _code(wanted, flow, pull_steps)
        try:
            found = client.read_deployment_by_name(name)
        except ObjectNotFound:
            _create(client, wanted, flow, code)
            yield name, "made"
        else:
            yield name, _update(client, found, code, flow)


def _flow(entrypoint: str) -> Flow[..., Any]:
    path, _, function = entrypoint.partition(":")
    flow: Flow[..., Any] = getattr(import_module(".".join(Path(path).with_suffix("").parts)), function)
    return flow


def _code(wanted: Fields, flow: Flow[..., Any], pull_steps: list[Fields]) -> Fields:
    """What of a deployment belongs to the code, and not to people."""
    pool = wanted["work_pool"]
    queue = {"work_queue_name": pool["work_queue_name"]} if "work_queue_name" in pool else {}
    return {
        "version": flow.version,
        "description": wanted["description"],
        "tags": wanted["tags"],
        "path": None,
        "entrypoint": wanted["entrypoint"],
        "pull_steps": pull_steps,
        "parameter_openapi_schema": flow.parameters.model_dump(mode="json", exclude_unset=True),
        "work_pool_name": pool["name"],
        "job_variables": pool.get("job_variables", {}),
        **queue,
    }


def _create(client: SyncPrefectClient, wanted: Fields, flow: Flow[..., Any], code: Fields) -> None:
    limit = wanted.get("concurrency_limit") or {}
    strategy = {"collision_strategy": limit["collision_strategy"]} if limit else None
    client.create_deployment(
        client.create_flow_from_name(flow.name),
        wanted["name"],
        parameters=wanted.get("parameters"),
        schedules=[_schedule(each) for each in wanted["schedules"]],
        concurrency_limit=limit.get("limit"),
        concurrency_options=None if strategy is None else ConcurrencyOptions.model_validate(strategy),
        enforce_parameter_schema=True,
        **code,
    )


def _schedule(wanted: Fields) -> DeploymentScheduleCreate:
    """A schedule as the file writes it: when, and beside that what Prefect keeps of any schedule."""
    beside = {name: value for name, value in wanted.items() if name in DeploymentScheduleCreate.model_fields}
    when = {name: value for name, value in wanted.items() if name not in beside}
    return DeploymentScheduleCreate.model_validate({**beside, "schedule": when})


def _update(client: SyncPrefectClient, found: DeploymentResponse, code: Fields, flow: Flow[..., Any]) -> str:
    """Bring to the code what differs, and nothing else; says what was done."""
    code["tags"] = [*found.tags, *(tag for tag in code["tags"] if tag not in found.tags)]
    changes = {name: value for name, value in code.items() if getattr(found, name) != value}
    known = {name: value for name, value in found.parameters.items() if name in flow.parameters.properties}
    if known != found.parameters:  # with a parameter that the flow does not have, no run would begin
        changes["parameters"] = known
    if not changes:
        return "found"
    try:
        client.update_deployment(found.id, DeploymentUpdate(**changes))
    except HTTPStatusError as error:
        if error.response.status_code != codes.CONFLICT:
            raise
        # What people have set does not fit the form any more. They are to find it in the UI, not to lose it.
        client.update_deployment(found.id, DeploymentUpdate(**changes, enforce_parameter_schema=False))
        return f"updated; its parameters need a look (Edit): {error.response.json().get('detail')}"
    return f"updated ({', '.join(changes)})"
