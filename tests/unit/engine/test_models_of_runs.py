"""Weights of a run as a model are looked for beside the run that asks, then under $CRL_RUNS."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from crl.cli.doctor import experiment_findings
from crl.config import Experiment
from crl.engine.execute import Attempt, execute_stage
from crl.engine.services import EngineServices
from crl.errors import BadInput
from crl.policies import resolve_model
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.find import beside, find_run
from crl.run.lease import Lease
from tests.unit.engine.harness import make_experiment


def made(name: str, root: Path, model: str = "tiny") -> Experiment:
    plain = make_experiment(recipe={"kind": "complementary", "retrieval": {"embedder": "lexical"}})
    roles = {key: role.model_copy(update={"model": model}) for key, role in plain.method.roles.items()}
    return plain.model_copy(
        update={
            "name": name,
            "method": plain.method.model_copy(update={"roles": roles}),
            "runtime": plain.runtime.model_copy(update={"runs": root}),
        }
    )


def begun(experiment: Experiment, root: Path) -> RunDirectory:
    """A run whose first weights are there."""
    run = RunDirectory.create_or_open(experiment, root)
    services = EngineServices(run)
    try:
        with Lease.acquire(run.path, seconds=600) as lease:
            attempt = Attempt(token=lease.token)
            execute_stage(run, recipe_of(run.method), 0, "initialize", attempt=attempt, services=services)
    finally:
        services.close()
    return run


def test_a_run_is_looked_for_beside_the_one_that_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "usual"))
    for place in ("usual", "other"):
        (tmp_path / place / "first" / "rounds").mkdir(parents=True)
    with beside(tmp_path / "other" / "second"):
        assert find_run("first") == tmp_path / "other" / "first"
    assert find_run("first") == tmp_path / "usual" / "first"


@pytest.mark.slow
def test_weights_of_a_run_in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "usual"))
    monkeypatch.setattr("crl.preflight.probe.Comparison.checks", lambda self, **more: [])
    root, model = tmp_path / "other", "run:first@0/actor"
    begun(made("first", root), root)
    second = made("second", root, model)
    assert [each.name for each in experiment_findings(second, 1) if each.mark == "missing"] == []
    begun(second, root)
    with pytest.raises(BadInput, match="there is no run 'first'"):
        resolve_model(model)
