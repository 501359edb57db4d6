"""The README's section on a model of your own: its experiment runs with a model in a local directory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crl.cli.doctor import experiment_findings
from crl.config.load import load_experiment
from crl.policies import resolve_model
from crl.run.directory import RunDirectory
from tests.architectures import write_small
from tests.tiny_run import ROOT, crl_here

BLOCK = re.compile(r"<!-- run by a test with a local directory -->\n```yaml\n(.*?)```", re.DOTALL)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The experiment as it stands there, with a small model of Gemma 3's shape."""
    (text,) = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert text.count("\n") <= 10 and text.count("/models/mine") == 1
    write_small("gemma3_text", tmp_path / "model", resolve_model("tiny").path, 512)
    (tmp_path / "prompts").symlink_to(ROOT / "conf/prompts")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("/models/mine", str(tmp_path / "model")), encoding="utf-8")
    return path


def test_it_is_an_experiment_that_is_ready(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crl.preflight.probe.Comparison.checks", lambda self, **more: [])  # tested elsewhere
    monkeypatch.setattr("crl.preflight.probe.Comparison.__enter__", lambda self: self)
    findings = {each.name: each for each in experiment_findings(load_experiment(mine), 1)}
    assert [each.name for each in findings.values() if each.mark == "missing"] == []
    assert "model, actor" in findings and "template, extractor" in findings


@pytest.mark.slow
def test_it_trains(mine: Path, tmp_path: Path) -> None:
    smaller = ("rollout.group_size=2", "families.0.groups=2", "families.0.evaluation_seeds.count=2")
    settings = [word for each in smaller for word in ("--set", f"method.{each}")]
    done = crl_here(tmp_path / "runs", "train", str(mine), "--rounds", "1", "--no-prefect", *settings)
    assert done.returncode == 0, done.stderr[-3000:]
    run = RunDirectory.open(tmp_path / "runs/mine")  # games that all end alike teach nothing: there may be no weights
    assert run.is_complete(1, "update_actor") and run.is_complete(1, "evaluate")
