"""`python -m flows.setup`: everything that must exist on a Prefect server before training is safe. Idempotent.

Work pool, a concurrency limit for every experiment, the automations, the deployments of `prefect.yaml`; then what an
earlier end left behind, the remains of dead runs. It talks to the server of PREFECT_API_URL and prints what it made and
what it found.

What a flow run may choose of how the pool's worker starts it is nothing: Prefect's own template takes a command line, a
working directory and variables of the environment from whoever starts a run. What runs need of the environment, the
worker has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import flows  # noqa: F401  (first: it turns telemetry off)

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

TIDY = "tidy/tidy"
PAGES = "http://127.0.0.1:4201"
_CONNECT_SECONDS, _ANSWER_SECONDS = 30.0, 300.0
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


def set_up(*, pages: str = PAGES) -> Iterator[str]:
    """Make what is missing; yields a line for each thing made, found or changed.

    `pages` is the address that the example notification calls. Raises NoServer, SetupFailed.
    """
    from prefect import get_client

    from flows.automations import SILENCE_SECONDS, dead_runs, ensure, ensure_blocks, notifications, tidying
    from flows.deployments import deploy
    from flows.limits import ensure_limit, limit_name
    from flows.tidy import tidy_up, watch_unfinished

    address = require_server()
    yield f"server        {address}"
    with get_client(sync_client=True) as client:
        yield f"work pool     {POOL}: {ensure_pool(client)}"
        if cleared := clear_job_variables(client):
            yield f"              job variables were removed from deployments: {', '.join(cleared)}"
        names = experiments()
        made = [name for name in names if ensure_limit(name)]
        yield f"limits        one run at a time for {len(names)} experiments; made {len(made)}" + (
            f" ({', '.join(limit_name(name) for name in made)})" if made else ""
        )
        for name, outcome in deploy(client):
            yield f"deployment    {name}: {outcome}"
        tidy_deployment = client.read_deployment_by_name(TIDY).id
        examples = notifications(ensure_blocks(f"{pages}/notification"))
        for wanted in (*dead_runs(), tidying(tidy_deployment), *examples):
            result = ensure(client, wanted)
            yield f"automation    {result.name}: {result.outcome}, {'on' if result.enabled else 'off'}"
        yield f"dead runs     {tidy_up(client)}"
        watched = watch_unfinished(client)
        yield f"unfinished    {len(watched)} runs" + (
            f"; one without a sign of life within {SILENCE_SECONDS} s is marked as crashed" if watched else ""
        )


def require_server() -> str:
    """The address of the server. Raises NoServer where none is named, none answers, or not as Prefect's would."""
    import httpx
    from prefect import get_client
    from prefect.settings import get_current_settings

    from crl.errors import NoServer

    address = get_current_settings().api.url
    step = "start one with `crl ui`, or name a running one: export PREFECT_API_URL=http://127.0.0.1:4200/api"
    if address is None:
        raise NoServer("no Prefect server is named", expected="PREFECT_API_URL", next_step=step)
    # A busy server answers late: SQLite alone may be locked for a minute. One that is not there is found out sooner.
    patience = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
    try:
        if httpx.get(f"{address}/health", timeout=patience).raise_for_status().json() is not True:
            raise ValueError("/health does not say `true`")
        with get_client(sync_client=True) as client:
            client.api_version()  # a server that wants a password wants none for /health
    except (httpx.HTTPError, ValueError) as error:
        raise NoServer(
            f"no Prefect server can be used there: {error or type(error).__name__}",
            expected="the address of a server's API, which ends in /api",
            where=address,
            next_step=f"{step} (and PREFECT_API_AUTH_STRING where it wants a password)",
        ) from None
    return address


def experiments() -> list[str]:
    """Names of all experiments at hand: the files that a form offers, and the run directories."""
    from crl.config.load import experiment_files, read_yaml, runs_root
    from crl.paths import experiment_file
    from crl.run.find import runs_in
    from flows.pages import NAME

    named = {str(read_yaml(experiment_file(path))["name"]) for path in experiment_files()}
    found = {name for name in named if NAME.fullmatch(name)}  # a file of the folder may have any
    return sorted(found | {path.name for path in runs_in(runs_root()) if NAME.fullmatch(path.name)})


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

    from flows.present import PAGE, all_pages

    if client.read_work_pool(POOL).type != TYPE:
        return []
    ours = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    found = all_pages(lambda offset: client.read_deployments(work_pool_filter=ours, limit=PAGE, offset=offset))
    cleared = [each for each in found if each.job_variables]
    for each in cleared:
        client.update_deployment(each.id, DeploymentUpdate(job_variables={}))
    return sorted(each.name for each in cleared)


def main(arguments: list[str] | None = None) -> int:
    """Print what was made; the exit code is that of the error, if any."""
    from crl.cli.shared import say
    from crl.errors import CrlError

    parser = argparse.ArgumentParser(prog="python -m flows.setup", description=__doc__.splitlines()[0])
    parser.add_argument("--pages", default=PAGES, help="address of the report pages, which notifications are sent to")
    chosen = parser.parse_args(arguments)
    try:
        for line in set_up(pages=chosen.pages):
            say(line)
    except CrlError as error:
        say(f"set-up: {error}", stderr=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
