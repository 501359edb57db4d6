"""The deployments of `prefect.yaml` on a server.

`prefect deploy` makes those that are missing. On one that is there it would write the file's parameters, schedules and
pause over what people have set in the UI: of such a deployment only what belongs to the code is changed, where it
differs, in one request. So nothing is lost, even where this is killed.
"""

from __future__ import annotations

import contextlib
import copy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from httpx import HTTPStatusError, codes
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.utilities.templating import apply_values

from crl.errors import SetupFailed
from crl.paths import shipped
from flows.parameters import run_choice

FILE = shipped() / "prefect.yaml"
Fields = dict[str, Any]
RUN_CHOOSERS = ("resume/resume", "evaluate/evaluate")
"""Deployments whose form chooses a run."""


def deploy(client: SyncPrefectClient) -> Iterator[tuple[str, str]]:
    """Make or update each deployment; yields its full name and what was done. Raises SetupFailed."""
    file = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    # What the build step of the file finds out for `prefect deploy`.
    file["pull"] = apply_values(file["pull"], {"folder": {"stdout": str(Path.cwd())}})
    missing = []
    for wanted in file["deployments"]:
        flow = _flow(wanted["entrypoint"])
        name = f"{flow.name}/{wanted['name']}"
        try:
            found = client.read_deployment_by_name(name)
        except ObjectNotFound:
            missing.append(name)
        else:
            yield name, _update(client, found, _code(wanted, flow, file["pull"]), flow)
    if missing:
        _make(missing, {**file, "build": []})
        yield from ((name, "made") for name in missing)


def offer_runs(client: SyncPrefectClient) -> None:
    """Have the forms that choose a run list those that are there now; one of a deployment that is gone is left out."""
    for name in RUN_CHOOSERS:
        with contextlib.suppress(ObjectNotFound):
            found = client.read_deployment_by_name(name)
            schema = copy.deepcopy(found.parameter_openapi_schema or {})
            field = schema.get("properties", {}).get("run_path", {})
            if field.get("anyOf") != (choice := run_choice()["anyOf"]):
                schema["properties"]["run_path"] = {**field, "anyOf": choice}
                client.update_deployment(found.id, DeploymentUpdate(parameter_openapi_schema=schema))


def _flow(entrypoint: str) -> Flow[..., Any]:
    module, _, function = entrypoint.rpartition(".")
    flow: Flow[..., Any] = getattr(import_module(module), function)
    return flow


def _make(names: list[str], file: Fields) -> None:
    """`prefect deploy`, as anybody would type it, with a file that says where flow runs work."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE.name
        path.write_text(yaml.safe_dump(file), encoding="utf-8")
        # Without the flow: Prefect would look for its name at the end of `path:function`.
        asked = [word for name in names for word in ("--name", name.partition("/")[2])]
        words = ["prefect", "--no-prompt", "deploy", "--prefect-file", str(path), *asked]
        done = subprocess.run(
            [sys.executable, "-P", "-m", *words],  # -P: a folder `flows` here is another one
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SetupFailed(
            f"`{shlex.join(words)}` ended with exit code {done.returncode}:\n{done.stdout.strip()[-2000:]}",
            where=str(FILE),
        )


def _code(wanted: Fields, flow: Flow[..., Any], pull_steps: list[Fields]) -> Fields:
    """What of a deployment belongs to the code, and not to people, as `prefect deploy` writes it."""
    pool = wanted["work_pool"]
    queue = {"work_queue_name": pool["work_queue_name"]} if "work_queue_name" in pool else {}
    return {
        "version": flow.version,
        "description": wanted.get("description") or flow.description,
        "tags": wanted.get("tags") or [],
        "path": None,
        "entrypoint": wanted["entrypoint"],
        "pull_steps": wanted.get("pull", pull_steps),
        "parameter_openapi_schema": flow.parameters.model_dump(mode="json", exclude_unset=True),
        "work_pool_name": pool["name"],
        "job_variables": pool.get("job_variables") or {},
        **queue,
    }


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
