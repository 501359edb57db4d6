"""Before a round is evaluated: its servers are those of the run, and none that the run itself samples from now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crl.config.load import load_experiment
from crl.engine.targets import begin_after, last_runtime
from crl.errors import BadInput
from crl.preflight import check_evaluation
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from tests import tiny_run
from tests.fake_vllm import FakeVllm, serving

ENDPOINT = {
    "method.recipe.kind": "static_online",
    "method.recipe.warm_start.extractor_episodes": 0,
    "method.roles.extractor": {"model": "endpoint:some/model", "engine": "openai"},
}
VLLM = {"method.roles.actor.engine": "vllm"}


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    with serving() as found:
        yield found


def made(place: Path, changes: dict[str, Any], servers: dict[str, Any]) -> RunDirectory:
    """A run that set out with these servers; nothing of it is complete."""
    experiment = load_experiment(tiny_run.ROOT / "conf/tiny.yaml", {**changes, "runtime.servers": servers})
    run = RunDirectory.create_or_open(experiment, place / "run")
    begin_after(run.path, 0, experiment.runtime)
    return run


def check(run: RunDirectory) -> None:
    """As the command and the flow do."""
    check_evaluation(run, last_runtime(run.path))


@pytest.mark.slow
def test_a_role_behind_an_endpoint_is_evaluated_with_the_address_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("httpx.get", lambda url, **more: None)  # somebody answers
    monkeypatch.setenv("A_KEY", "sk-1")
    run = made(tmp_path, ENDPOINT, {"extractor": {"address": "http://host/v1", "key_variable": "A_KEY"}})
    with Lease.acquire(run.path, seconds=60):  # an endpoint keeps its own weights
        check(run)
    monkeypatch.delenv("A_KEY")
    with pytest.raises(BadInput, match="the variable A_KEY is not set"):
        check(run)


def test_a_running_server_is_asked_and_not_one_that_would_have_to_be_installed(tmp_path: Path, fake: FakeVllm) -> None:
    run = made(tmp_path, VLLM, {"actor": {"address": fake.address, "python": "/no/such/python"}})
    check(run)
    assert fake.asked("/weight_info")
    fake.faults["/weight_info"] = lambda body: (404, {})
    with pytest.raises(BadInput, match="no vLLM server that takes weights"):
        check(run)


def test_one_engine_evaluates_however_many_the_run_had(tmp_path: Path, fake: FakeVllm) -> None:
    changes = {**VLLM, "method.overlap": True, "method.recipe.trial": {}, "runtime.overlap_engines": 1}
    check(made(tmp_path, changes, {"actor": {"address": fake.address}}))


def test_a_server_that_a_live_run_samples_from_is_given_no_other_weights(tmp_path: Path, fake: FakeVllm) -> None:
    run = made(tmp_path, VLLM, {"actor": {"address": fake.address}})
    with Lease.acquire(run.path, seconds=60):
        with pytest.raises(BadInput, match=re.escape(f"samples from the server {fake.address}")) as raised:
            check(run)
        assert not fake.requests, "it is left alone"
    assert raised.value.where == "runtime.servers.actor.address"
    assert "wait for the run to end" in str(raised.value.next_step)
    check(run)
