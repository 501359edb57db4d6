"""One server holds one set of weights: what would give it two at a time is refused before work starts."""

from __future__ import annotations

from typing import Any

import pytest

from crl.config import Runtime
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.preflight import checks, checks_here
from tests import tiny_run

ADDRESS = "http://gpu:8000"
BOTH = {"method.roles.actor.engine": "vllm", "method.roles.extractor.engine": "vllm"}
OVERLAP = {**BOTH, "method.overlap": True}
ASKS = {"method.prompts": "paper_ask", "method.rollout.search_and_ask": {}}
TRIAL = {"method.recipe.trial": {}}


@pytest.fixture(autouse=True)
def reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server answers."""
    monkeypatch.setattr("crl.engine.vllm_server.check_server", lambda role, server, context: None)
    monkeypatch.setattr("httpx.get", lambda url, **more: None)


def refusals(changes: dict[str, Any], servers: dict[str, dict[str, Any]], **runtime: Any) -> dict[str, BadInput]:
    """Why servers are refused, by role."""
    made = load_experiment(tiny_run.ROOT / "conf/tiny.yaml", changes)
    # As a run that goes on, which keeps its method and may be given another runtime.
    made = made.model_copy(update={"runtime": Runtime.model_validate({"servers": servers, **runtime})})
    found = {}
    for where, check in checks(made):
        if where.startswith("runtime.servers."):
            try:
                check()
            except BadInput as error:
                found[where.removeprefix("runtime.servers.")] = error
    return found


def refused(changes: dict[str, Any], addresses: dict[str, str], **runtime: Any) -> list[str]:
    """Servers that are refused for their address."""
    found = refusals(changes, {role: {"address": address} for role, address in addresses.items()}, **runtime)
    for role, error in found.items():
        assert error.where == f"runtime.servers.{role}.address" and error.expected and error.next_step
    return list(found)


def test_two_roles_with_weights_of_their_own_need_two_servers() -> None:
    assert refused(BOTH, {"actor": ADDRESS, "extractor": f"{ADDRESS}/"}) == ["extractor"]
    assert refused(BOTH, {"actor": ADDRESS, "extractor": "http://gpu:8001"}) == []
    assert refused(BOTH, {"actor": ADDRESS}) == []
    shared = {"method.roles.actor.engine": "vllm", "method.roles.extractor": {"weights": "actor"}}
    assert refused({**shared, "method.recipe.warm_start.extractor_episodes": 0}, {"actor": ADDRESS}) == []


@pytest.mark.parametrize(("gpus", "shares", "told"), [(1, (0.5, 0.5), 1), (1, (0.55, 0.4), 0), (0, (0.9, 0.9), 0)])
def test_servers_of_one_engine_share_the_memory_of_its_gpus(
    gpus: int, shares: tuple[float, float], told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crl.policies.machine.gpu_count", lambda: gpus)
    servers = {
        role: {"gpu_memory_utilization": share} for role, share in zip(("actor", "extractor"), shares, strict=True)
    }
    found = refusals(BOTH, servers)
    assert len(found) == told
    for error in found.values():
        assert "0.5 for actor and 0.5 for extractor" in error.found and "engines share" not in error.found
        assert error.where == "runtime.servers.extractor.gpu_memory_utilization"


def test_roles_that_share_weights_or_a_base_share_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crl.policies.machine.gpu_count", lambda: 1)
    shared = {"method.roles.actor.engine": "vllm", "method.roles.extractor": {"weights": "actor"}}
    shared["method.recipe.warm_start.extractor_episodes"] = 0
    half = {"actor": {"gpu_memory_utilization": 0.6}}
    based = {**BOTH, "method.roles.actor.lora": {}, "method.roles.extractor": {"base": "actor", "lora": {}}}
    for changes, servers in ((shared, half), (based, {**half, "extractor": half["actor"]})):
        assert not refusals(changes, servers)
        [error] = refusals(changes, servers, shards=2).values()
        assert "1.2 for actor and extractor of its memory: 2 engines share it" in error.found


SHARED = "0.6 for actor and 0.6 for extractor of its memory: 2 engines share it"


@pytest.mark.parametrize(
    ("gpus", "runtime", "told"),
    [
        (1, {"shards": 2}, SHARED),
        (2, {"shards": 2}, ""),
        (3, {"shards": 4}, SHARED),
        (
            1,
            {"shards": 2, "task_runner": "dask"},
            SHARED,
        ),
        (0, {"shards": 2}, ""),
    ],
)
def test_engines_that_share_a_gpu_share_its_memory(
    gpus: int, runtime: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines take the GPUs in turn, and begin again with the first."""
    monkeypatch.setattr("crl.policies.machine.gpu_count", lambda: gpus)
    found = refusals(BOTH, {role: {"gpu_memory_utilization": 0.3} for role in ("actor", "extractor")}, **runtime)
    assert [error.found.partition("would take ")[2] for error in found.values()] == [told] * bool(told)
    assert all("runtime.shards" in (error.next_step or "") for error in found.values())


def test_engines_of_a_dask_cluster_that_is_there_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crl.policies.machine.gpu_count", lambda: 1)
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://there:8786")
    servers = {role: {"gpu_memory_utilization": 0.3} for role in ("actor", "extractor")}
    assert not refusals(BOTH, servers, shards=2, task_runner="dask")


def test_a_server_on_two_gpus_leaves_half_as_many_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crl.policies.machine.gpu_count", lambda: 4)
    wide = {"actor": {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.5}}
    changes = {"method.roles.actor.engine": "vllm"}
    assert not refusals(changes, wide, shards=2)
    assert "3 engines" not in refusals(changes, wide, shards=3)["actor"].found
    assert "1 for actor" in refusals(changes, wide, shards=3)["actor"].found


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        # The actor plays in the first track and is evaluated in the second, where the extractor writes.
        ({}, "0.8 for actor and 0.4 for extractor"),
        ({"method.evaluation.every": 0}, ""),
        ({**ASKS, "method.evaluation.every": 0}, "0.4 for actor and 0.8 for extractor"),
    ],
)
def test_tracks_that_share_a_gpu_have_the_servers_that_their_stages_ask_for(
    changes: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crl.policies.machine.gpu_count", lambda: 1)
    found = [error.found for error in refusals({**OVERLAP, **changes}, {}).values()]
    assert len(found) == bool(told) and all(told in each for each in found)
    assert not refusals({**OVERLAP, **changes}, {}, overlap_engines=1)


def test_an_endpoint_may_have_many_models() -> None:
    endpoint = {"model": "endpoint:some/model", "engine": "openai"}
    changes = {
        "method.recipe.kind": "static_online",
        "method.recipe.warm_start.extractor_episodes": 0,
        "method.roles.extractor": endpoint,
        "method.roles.actor.engine": "vllm",
    }
    assert refused(changes, {"actor": ADDRESS, "extractor": ADDRESS}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        (TRIAL, ["actor"]),
        (ASKS, ["extractor"]),
        ({**ASKS, "method.evaluation.every": 0}, []),
        ({**ASKS, **TRIAL}, ["actor", "extractor"]),
        ({**ASKS, "method.recipe.kind": "static_online"}, []),
    ],
)
def test_tracks_that_overlap_with_weights_of_two_rounds_need_two_servers(
    changes: dict[str, Any], expected: list[str]
) -> None:
    addresses = {"actor": ADDRESS, "extractor": "http://gpu:8001"}
    assert refused({**OVERLAP, **changes}, addresses) == expected
    assert refused({**OVERLAP, **changes}, addresses, overlap_engines=1) == []
    assert refused({**OVERLAP, **changes}, {}) == [], "each engine starts a server of its own"
    assert refused({**BOTH, **changes}, addresses) == []


def test_it_is_said_before_a_run_starts() -> None:
    servers = {"actor": {"address": ADDRESS}, "extractor": {"address": ADDRESS}}
    made = load_experiment(tiny_run.ROOT / "conf/tiny.yaml", {**BOTH, "runtime.servers": servers})
    check = next(check for where, check in checks_here(made) if where == "runtime.servers.extractor")
    with pytest.raises(BadInput, match=f"the roles actor and extractor have .* the same server, {ADDRESS}"):
        check()
