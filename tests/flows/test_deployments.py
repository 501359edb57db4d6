"""Deployments on a real server: what a first start makes, and what people have set when they are deployed again."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_URL

from flows.deployments import FILE, _update, deploy
from flows.setup import ensure_pool
from flows.train import train

Json = dict[str, Any]

NIGHTLY = "train/nightly"
OWN = {"id", "created", "updated", "created_by", "updated_by", "flow_id", "work_queue_id", "deployment_id"}
"""What differs from one deployment to the next that is made of the same file."""
CRON = {"cron": "0 14 * * *", "timezone": "UTC", "day_or": True}
DIALOG = {"overrides": {"__prefect_kind": "json"}, "settings": {"method.families": None}}
CHOSEN = {"experiment": "conf/tiny.yaml", "rounds": 1, "settings": {"name": "mine", "method.families": None}}


class Server:
    """What a person does to deployments in the UI, by the same requests."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self.client = client

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client.request(method, path, json=body)  # type: ignore[arg-type]
        return answer.json() if answer.content else None

    def deployment(self, name: str = NIGHTLY) -> Json:
        found: Json = self.ask("GET", f"/deployments/name/{name}")
        return found

    def change(self, name: str = NIGHTLY, **fields: Any) -> None:
        self.ask("PATCH", f"/deployments/{self.deployment(name)['id']}", fields)

    def choices(self) -> Json:
        """Everything that people set, of every deployment."""
        found = {each["name"]: each for each in self.ask("POST", "/deployments/filter", {})}
        kept = ("parameters", "paused", "concurrency_options", "global_concurrency_limit", "enforce_parameter_schema")
        return {
            name: {
                **{key: each[key] for key in kept},
                "schedules": sorted(each["schedules"], key=lambda schedule: str(schedule["id"])),
            }
            for name, each in found.items()
        }

    def made(self) -> Json:
        """Everything of every deployment that the file decides."""

        def without(value: Any) -> Any:
            if isinstance(value, list):
                return [without(each) for each in value]
            if not isinstance(value, dict):
                return value
            return {key: without(each) for key, each in value.items() if key not in OWN}

        found = {each["name"]: without(each) for each in self.ask("POST", "/deployments/filter", {})}
        for each in found.values():
            if each["global_concurrency_limit"] is not None:
                each["global_concurrency_limit"].pop("name")  # has the id of the deployment in it
        return found

    def clear(self) -> None:
        for each in self.ask("POST", "/deployments/filter", {}):
            self.ask("DELETE", f"/deployments/{each['id']}")


@pytest.fixture
def server(prefect_server: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """One on which nothing is deployed."""
    address = PREFECT_API_URL.value()
    assert address is not None
    monkeypatch.setenv("PREFECT_API_URL", address)  # of `prefect deploy`
    with get_client(sync_client=True) as client:
        ensure_pool(client)
        made = Server(client)
        made.clear()
        yield made
        made.clear()


@pytest.mark.slow
def test_what_people_set_stays(server: Server) -> None:
    assert {done for _, done in deploy(server.client)} == {"made"}
    assert [*server.made()] == sorted(each["name"] for each in yaml.safe_load(FILE.read_text())["deployments"])
    nightly = server.deployment()
    schedules, (own,) = f"/deployments/{nightly['id']}/schedules", nightly["schedules"]
    # Edit, the switch, + Schedule in the dialog of today (no slug) and in that of before (a slug), Pause, a deletion.
    server.change(parameters=CHOSEN)
    server.ask("PATCH", f"{schedules}/{own['id']}", {"active": True})
    server.ask("POST", schedules, [{"schedule": CRON, "active": True, "parameters": DIALOG}])
    server.ask("POST", schedules, [{"schedule": CRON, "active": False, "slug": "afternoon"}])
    train = server.deployment("train/train")
    server.ask("POST", f"/deployments/{train['id']}/schedules", [{"schedule": {"interval": 3600}, "active": True}])
    server.change("evaluate/evaluate", paused=True)
    chosen = server.choices()
    assert {done for _, done in deploy(server.client)} == {"found"}
    assert server.choices() == chosen and len(chosen["nightly"]["schedules"]) == 3

    # A schedule of the file that was deleted stays away, be it the only one or not; a deployment is made again.
    server.ask("DELETE", f"{schedules}/{own['id']}")
    chosen = server.choices()
    server.ask("DELETE", f"/deployments/{server.deployment('compare/compare')['id']}")
    assert [name for name, done in deploy(server.client) if done == "made"] == ["compare/compare"]
    assert server.choices() == chosen
    for each in server.deployment()["schedules"]:
        server.ask("DELETE", f"{schedules}/{each['id']}")
    list(deploy(server.client))
    assert server.deployment()["schedules"] == [] and server.deployment()["parameters"] == CHOSEN


@pytest.mark.slow
def test_other_code_updates_what_is_the_codes_and_no_more(server: Server) -> None:
    list(deploy(server.client))
    new = server.made()
    nightly = server.deployment()
    schedules, (own,) = f"/deployments/{nightly['id']}/schedules", nightly["schedules"]
    server.ask("POST", schedules, [{"schedule": CRON, "active": True, "parameters": DIALOG}])
    server.ask("PATCH", f"{schedules}/{own['id']}", {"active": True})
    for name in ("train/nightly", "resume/resume"):
        server.change(
            name, description="of before", tags=["old", "mine"], entrypoint="old/train.py:train", path="/old",
            pull_steps=[], parameter_openapi_schema={"type": "object", "properties": {}}, version="0",
            work_pool_name=None, job_variables={"env": {"OLD": "1"}},
        )  # fmt: skip
    server.change(parameters={**CHOSEN, "gone": 1})  # which the flow has not any more
    server.change(paused=True)
    chosen = server.choices()
    chosen["nightly"]["parameters"].pop("gone")

    # Wherever it is killed, nothing that people set is lost.
    steps = deploy(server.client)
    for name, done in steps:
        assert ("updated" in done) == (name in ("train/nightly", "resume/resume")), (name, done)
        found = server.choices()
        found["nightly"]["parameters"].pop("gone", None)
        assert found == chosen
    assert server.choices() == chosen
    now = server.made()
    for name in ("nightly", "resume"):
        assert {*now[name].pop("tags")} == {"old", "mine", *new[name]["tags"]}
        for key in ("description", "path", "entrypoint", "pull_steps", "parameter_openapi_schema", "version",
                    "work_pool_name", "job_variables"):  # fmt: skip
            assert now[name][key] == new[name][key], (name, key)


@pytest.mark.slow
def test_parameters_that_the_new_form_refuses_are_kept_and_named(server: Server) -> None:
    list(deploy(server.client))
    chosen = {**CHOSEN, "settings": {"method.gone": 1}}
    server.change(parameter_openapi_schema={"type": "object", "properties": {}}, parameters=chosen)
    done = dict(deploy(server.client))[NIGHTLY]
    assert "method.gone" in done and "Edit" in done
    assert server.deployment()["parameters"] == chosen
    assert server.deployment()["parameter_openapi_schema"]["properties"]
    assert dict(deploy(server.client))[NIGHTLY] == "found"


def test_an_update_sends_what_differs_and_nothing_that_people_set() -> None:
    """No server: what is sent, where the code is another."""
    sent: list[Json] = []
    client: Any = SimpleNamespace(
        update_deployment=lambda identifier, update: sent.append(update.model_dump(exclude_unset=True))
    )
    code = {"description": "new", "tags": ["training"], "entrypoint": "flows.train.train", "work_pool_name": "crl"}
    found: Any = SimpleNamespace(id=uuid4(), parameters=CHOSEN, **{**code, "tags": ["mine"]})
    assert _update(client, found, dict(code), train) == "updated (tags)"
    found.tags = ["mine", "training"]
    assert _update(client, found, dict(code), train) == "found"
    assert _update(client, found, {**code, "description": "newer"}, train) == "updated (description)"
    assert sent == [{"tags": ["mine", "training"]}, {"description": "newer"}]
