"""What people set on deployments in the UI stays when they are deployed again.

`prefect deploy` writes the schedules and parameters of `prefect.yaml` over them: a schedule that somebody switched on
would be off again after every start of the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleUpdate, DeploymentUpdate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound


def deployed(client: SyncPrefectClient, names: Iterable[str]) -> dict[str, DeploymentResponse]:
    """Those of the deployments (by full name) that are on the server."""
    found = {}
    for name in names:
        try:
            found[name] = client.read_deployment_by_name(name)
        except ObjectNotFound:
            continue
    return found


def keep_choices(client: SyncPrefectClient, before: Mapping[str, DeploymentResponse]) -> list[str]:
    """Put schedules, parameters and pauses back to what they were `before`; returns the names of what differed."""
    kept = []
    for name, old in before.items():
        new = client.read_deployment_by_name(name)
        update: dict[str, Any] = {}
        known = (new.parameter_openapi_schema or {}).get("properties", {})
        parameters = {**new.parameters, **{key: value for key, value in old.parameters.items() if key in known}}
        if parameters != new.parameters:
            update["parameters"] = parameters
        if old.paused != new.paused:
            update["paused"] = old.paused
        if _schedules(old) != _schedules(new):
            update["schedules"] = [
                DeploymentScheduleUpdate(
                    schedule=each.schedule, active=each.active, parameters=each.parameters, slug=each.slug
                )
                for each in old.schedules
            ]
        if update:
            client.update_deployment(new.id, DeploymentUpdate(**update))
            kept.append(name)
    return kept


def _schedules(deployment: DeploymentResponse) -> list[dict[str, Any]]:
    wanted = {"schedule", "active", "parameters", "slug"}
    return [each.model_dump(mode="json", include=wanted) for each in deployment.schedules]
