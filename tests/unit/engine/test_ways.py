"""A run computes its models in the ways that were found when it began, in every process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from crl.config import Experiment
from crl.config.models import Ways
from crl.engine.execute import Attempt, execute_stage
from crl.engine.services import EngineServices
from crl.engine.ways import WAYS, inherit, ways_of
from crl.errors import RecordDamaged
from crl.policies import resolve_model
from crl.policies.verdicts import asked_of, keep
from crl.records import Weights, rows_of
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from tests.unit.engine.harness import make_experiment


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """An experiment whose models have verdicts of its own."""
    shutil.copytree(resolve_model("tiny").path, tmp_path / "models" / resolve_model("tiny").path.name)
    monkeypatch.setenv("CRL_MODELS", str(tmp_path / "models"))
    return make_experiment(recipe={"kind": "complementary", "retrieval": {"embedder": "lexical"}})


def decide(made: Experiment, sampling: str | None, update: str | None) -> None:
    for owner in made.method.owners():
        verdict = {"problem": None, "sampling": sampling, "update": update, "sure": True}
        keep(asked_of(made.method, owner, trains=True).key, verdict)


def test_the_verdicts_are_written_once(made: Experiment, tmp_path: Path) -> None:
    run = RunDirectory.create_or_open(made, tmp_path)
    assert ways_of(run) == {} and not (run.path / WAYS).exists(), "no verdict"
    decide(made, "padded", "rows")
    expected = {owner: Ways("padded", "rows") for owner in made.method.owners()}
    assert ways_of(run) == expected
    decide(made, "packed", "packed")
    assert ways_of(run) == expected, "as when it began"
    for damaged in ('{"sampling": ', "{}", '{"adapter":{}}', '{"update":"packed","other":1}'):
        (run.path / WAYS / "actor.json").write_text(damaged, encoding="utf-8")
        with pytest.raises(RecordDamaged, match=WAYS):
            ways_of(run)
    shutil.rmtree(run.path / WAYS)
    (run.path / WAYS).write_bytes(b"")
    with pytest.raises(RecordDamaged, match="it is no folder"):
        ways_of(run)


@pytest.mark.parametrize(("sampling", "update"), [("rows", None), (None, "padded")])
def test_weights_that_are_not_trained_or_that_a_server_samples_from_have_one_way(
    sampling: str | None, update: str | None, made: Experiment, tmp_path: Path
) -> None:
    run = RunDirectory.create_or_open(made, tmp_path)
    decide(made, sampling, update)
    for ways in ways_of(run).values():
        assert (ways.sampling, ways.update) == (sampling or "packed", update or "packed"), "also read again"


def test_each_set_of_weights_has_its_own(made: Experiment, tmp_path: Path) -> None:
    """Another context asks for another verdict, which is not there yet."""
    role = made.method.role("extractor").model_copy(update={"context": 700})
    method = made.method.model_copy(update={"roles": {**made.method.roles, "extractor": role}})
    run = RunDirectory.create_or_open(made.model_copy(update={"method": method}), tmp_path)
    decide(made, "rows", "rows")
    assert ways_of(run) == {"actor": Ways("rows", "rows")}


def test_a_fork_takes_the_ways_of_what_it_uses_alike(made: Experiment, tmp_path: Path) -> None:
    decide(made, "padded", "rows")
    run = RunDirectory.create_or_open(made, tmp_path)
    assert set(ways_of(run)) == {"actor", "extractor"}
    role = made.method.role("extractor").model_copy(update={"context": 700})
    method = made.method.model_copy(update={"roles": {**made.method.roles, "extractor": role}})
    inherit(tmp_path, run, method)
    assert {file.name for file in (tmp_path / WAYS).iterdir()} == {"actor.json"}
    decide(made, "packed", "packed")
    inherit(tmp_path, run, made.method)
    assert Ways(**json.loads((tmp_path / WAYS / "extractor.json").read_text())) == Ways("padded", "rows")


def test_what_samples_and_what_updates_follow_them_and_say_so(made: Experiment, tmp_path: Path) -> None:
    decide(made, "rows", "padded")
    run = RunDirectory.create_or_open(made, tmp_path)
    recipe, services = recipe_of(run.method), EngineServices(run)
    try:
        with Lease.acquire(run.path, seconds=600) as lease:
            execute_stage(run, recipe, 0, "initialize", attempt=Attempt(token=lease.token), services=services)
        weights = next(row for row in rows_of(Weights, run.read(0, "initialize", Weights)) if row.role == "actor")
        services.policy("actor", weights)
        assert services.ways()["actor"] == {"sampling": "rows"}
        services.trainer("actor", weights)
        assert services.ways()["actor"] == {"sampling": "rows", "update": "padded"}
        assert json.loads((run.path / WAYS / "actor.json").read_text(encoding="utf-8"))["update"] == "padded"
    finally:
        services.close()
