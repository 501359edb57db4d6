"""Runs that begin with adapters that are there (`warm_start.adapters`): which are taken, and which are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from crl.config import Method
from crl.config.load import load_experiment
from crl.config.models import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from crl.errors import BadInput
from crl.policies.sources import check_model, resolve_model
from crl.recipes.complementary.ready import check_adapters
from crl.records import Evaluation, Weights
from crl.run.directory import RunDirectory
from tests.learning.harness import rows, train

ROOT = Path(__file__).parents[3]
ROLES = ("actor", "extractor")
LORA: dict[str, Any] = {f"method.roles.{role}.lora": {"r": 4, "lora_alpha": 8} for role in ROLES}
START = {"actor_episodes": 8, "extractor_episodes": 8, "learning_rate": 3e-3}


def begun(adapters: str | Path, **changes: Any) -> Any:
    alone = {"adapters": str(adapters), "actor_episodes": 0, "extractor_episodes": 0}
    changed = {"name": "begun", **LORA, "method.recipe.warm_start": alone, **changes}
    return load_experiment(ROOT / "conf/tiny.yaml", changed)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    changes = {"name": "taught", **LORA, "method.recipe.warm_start": START}
    return train(load_experiment(ROOT / "conf/tiny.yaml", changes), tmp_path_factory.mktemp("taught"), 0)


@pytest.fixture(scope="module")
def folder(taught: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its adapters, rounded to bfloat16."""
    made = tmp_path_factory.mktemp("adapters")
    for role in ROLES:
        checkpoint = taught.stage_path(0, f"warm_start_{role}") / "checkpoint"
        (made / role).mkdir()
        tensors = {name: each.bfloat16() for name, each in load_file(checkpoint / ADAPTER_WEIGHTS).items()}
        save_file(tensors, made / role / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        shutil.copyfile(checkpoint / ADAPTER_CONFIG, made / role / ADAPTER_CONFIG)
    return made


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(begun(folder), tmp_path_factory.mktemp("begun"), 0)


def test_a_run_begins_with_the_adapters_of_a_folder(folder: Path, run: RunDirectory) -> None:
    for role in ROLES:
        first = load_file(run.stage_path(0, f"warm_start_{role}") / "checkpoint" / ADAPTER_WEIGHTS)
        given = load_file(folder / role / ADAPTER_WEIGHTS)
        assert first.keys() == given.keys() and any(each.abs().max() > 0 for key, each in first.items() if "B" in key)
        for name, each in given.items():
            assert first[name].dtype == torch.float32 and torch.equal(first[name], each.float())
        [row] = [row for row in rows(run, Weights, f"warm_start_{role}", [0]) if row.role == role]
        assert row.checkpoint == f"rounds/0000/warm_start_{role}/checkpoint" and row.updates == 0
    assert list(run.complete_stages(0)) == [
        "initialize",
        "evaluate_base",
        "warm_start_actor",
        "warm_start_extractor",
        "evaluate",
    ]


def test_a_run_is_a_source_and_an_exact_one(
    taught: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRL_RUNS", str(taught.path.parent))
    again = train(begun("run:taught@0"), tmp_path, 0)
    for role in ROLES:
        digests = {
            row.weights_digest
            for run in (taught, again)
            for row in rows(run, Weights, f"warm_start_{role}", [0])
            if row.role == role
        }
        assert len(digests) == 1
    assert [row.reward for row in rows(taught, Evaluation, "evaluate", [0])] == [
        row.reward for row in rows(again, Evaluation, "evaluate", [0])
    ]


def test_an_adapter_that_comes_with_the_project_is_a_model_too() -> None:
    """Of the quickstart: what `make train` begins with."""
    for role in ROLES:
        check_model(f"warm:quickstart/{role}")
    with pytest.raises(BadInput, match="has not been made"):
        resolve_model("warm:quickstart/judge")


def refusals(folder: Path, elsewhere: Path) -> Iterator[tuple[Method, str]]:
    yield begun(folder, **{"method.roles.actor.lora": {"r": 8, "lora_alpha": 8}}).method, r"has r 4.*lora\.r is 8"
    yield begun(folder, **{"method.roles.extractor.lora": {"r": 4, "lora_alpha": 4}}).method, "has lora_alpha 8"
    yield begun(elsewhere / "none").method, "is no adapter"
    yield begun("warm:none").method, "is no adapter"
    other = elsewhere / "other"
    shutil.copytree(folder, other)
    settings = json.loads((other / "actor" / ADAPTER_CONFIG).read_text())
    base = elsewhere / "base"
    shutil.copytree(resolve_model("tiny").path, base)
    (base / "generation_config.json").write_text("{}")
    (other / "actor" / ADAPTER_CONFIG).write_text(json.dumps(settings | {"base_model_name_or_path": str(base)}))
    yield begun(other).method, f"was trained from {base}, and the actor is tiny"


def test_what_does_not_fit_is_refused_before_work_starts(folder: Path, tmp_path: Path) -> None:
    for method, why in refusals(folder, tmp_path):
        with pytest.raises(BadInput, match=why):
            check_adapters(method)
    check_adapters(begun(folder).method)


def test_whole_weights_do_not_begin_with_an_adapter(folder: Path) -> None:
    with pytest.raises(BadInput, match="whole weights are trained"):
        begun(folder, **{"method.roles.actor.lora": None})


@pytest.mark.slow
def test_demonstrations_go_on_from_the_adapters(folder: Path, tmp_path: Path) -> None:
    start = {"adapters": str(folder), **START}
    run = train(begun(folder, **{"method.recipe.warm_start": start}), tmp_path, 0)
    for role in ROLES:
        given, after = (
            load_file(each / ADAPTER_WEIGHTS)
            for each in (folder / role, run.stage_path(0, f"warm_start_{role}") / "checkpoint")
        )
        moved = [(after[name] - each.float()).abs().max().item() for name, each in given.items()]
        assert 0 < max(moved) < 0.1, "a few steps from where the adapter stood"
        fresh = [each.float().abs().max().item() for name, each in given.items() if "lora_A" in name]
        assert max(moved) < max(fresh)
