"""Threads and ranks that this machine does not have are refused by every command that would start them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.run import experiment_file
from tests.study.studies import write
from tests.unit.cli.conftest import ROOT, Outcome
from tests.unit.engine.harness import make_experiment
from tests.unit.report.builder import build_run

Crl = Callable[..., Outcome]
RANKS, THREADS = "method.roles.actor.deepspeed.ranks", "method.threads"


@pytest.fixture
def refuse(crl: Crl, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a command that has to be refused for 1024 of something; nothing may be written."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CRL_MODELS", str(tmp_path / "models"))

    def run(key: str, *words: str | Path) -> None:
        before = content(tmp_path), sorted(ROOT.iterdir())
        outcome = crl(*words)
        said = outcome.err + (outcome.out if words[0] == "doctor" else "")
        assert outcome.code == 2 and f"{key} is 1024, and this machine has" in said, outcome
        assert "Traceback" not in said and (content(tmp_path), sorted(ROOT.iterdir())) == before

    return run


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def moved(run: Path, key: str) -> Path:
    """A run that was made on a greater machine."""
    made = make_experiment(ranks=1024 if key == RANKS else 1, recipe={"kind": "complementary"})
    method = made.method.model_copy(update={"threads": 1024 if key == THREADS else 1})
    build_run(run)
    experiment_file.create(run, made.model_copy(update={"name": run.name, "method": method}))
    return run


@pytest.mark.parametrize("key", [RANKS, THREADS])
def test_more_than_this_machine_has(key: str, refuse: Callable[..., None], runs: Path, tmp_path: Path) -> None:
    refuse(key, "train", "conf/tiny.yaml", "--no-prefect", "--set", f"{key}=1024")
    study = write(tmp_path, arms={"one": {"set": {key: 1024}}}, compare_with=[])
    refuse(key, "compare", study)

    data: dict[str, Any] = yaml.safe_load((ROOT / "conf/tiny.yaml").read_text(encoding="utf-8"))
    data["method"]["prompts"] = yaml.safe_load((ROOT / "conf/prompts/tiny.yaml").read_text(encoding="utf-8"))
    if key == RANKS:
        data["method"]["roles"]["actor"]["deepspeed"] = {"ranks": 1024}
    else:
        data["method"]["threads"] = 1024
    experiment = tmp_path / "many.yaml"
    experiment.write_text(yaml.safe_dump(data), encoding="utf-8")
    refuse(key, "doctor", experiment)

    data = yaml.safe_load((ROOT / "conf/warm/realms.yaml").read_text(encoding="utf-8"))
    data |= {"deepspeed": {"ranks": 1024}, "threads": 1} if key == RANKS else {"threads": 1024}
    (tmp_path / "prompts").symlink_to(ROOT / "conf" / "prompts")
    warm = tmp_path / "warm.yaml"
    warm.write_text(yaml.safe_dump(data), encoding="utf-8")
    refuse("deepspeed.ranks" if key == RANKS else "threads", "warm-start", warm)
    # A study that would make that warm start first says so before minutes of work.
    warm.write_text((ROOT / "conf/warm/realms.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    refuse(
        key, "compare", write(tmp_path, warm_starts=["warm.yaml"], arms={"one": {"set": {key: 1024}}}, compare_with=[])
    )

    run = moved(runs / "moved", key)
    refuse(key, "resume", run)
    if key == THREADS:
        refuse(key, "evaluate", run)


def test_a_study_that_is_refused_leaves_no_directory(crl: Crl, runs: Path, tmp_path: Path) -> None:
    study = write(tmp_path, arms={"one": {"set": {"method.roles.actor.model": "nobody"}}}, compare_with=[])
    runs.mkdir()
    (runs / "another").write_text("kept")
    before = content(tmp_path)
    refused = crl("compare", study)
    assert refused.code == 2 and "nobody" in refused.err
    assert content(tmp_path) == before
