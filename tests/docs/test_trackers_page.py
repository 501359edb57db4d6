"""What docs/trackers.md shows works as it stands there."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from crl.config import Runtime
from crl.config.load import load_experiment
from crl.config.trackers import BUILT_IN
from crl.engine.events import RoundDone
from crl.run.directory import RunDirectory
from crl.trackers.subscriber import Trackers
from tests.unit.report.builder import build_run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trackers.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def runtimes() -> list[Runtime]:
    return [Runtime.model_validate(yaml.safe_load(block)["runtime"]) for block in blocks("yaml")]


def test_the_first_block_is_the_default() -> None:
    assert runtimes()[0].trackers == Runtime().trackers


def test_every_kind_and_option_that_is_listed_exists() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))
    assert listed.keys() == BUILT_IN.keys()
    for kind, options in listed.items():
        (choice,) = Runtime.model_validate({"trackers": [kind]}).trackers
        assert re.findall(r"`(\w+)`", options) == list(inspect.signature(choice.load()).parameters)[1:]


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = ModuleType("my_package.trackers")
    (source,) = blocks("python")
    exec(compile(source, "docs/trackers.md", "exec"), example.__dict__)
    monkeypatch.setitem(sys.modules, "my_package", ModuleType("my_package"))
    monkeypatch.setitem(sys.modules, "my_package.trackers", example)
    chosen = [choice for choice in runtimes()[1].trackers if choice.kind.startswith("my_package")]
    run = RunDirectory(build_run(tmp_path / "tiny"), "tiny", load_experiment(ROOT / "conf" / "tiny.yaml").method)
    warnings: list[str] = []
    with Trackers(run, Runtime(trackers=tuple(chosen)), warnings.append) as tracking:
        tracking(RoundDone(2, 1.0))
    assert warnings == [] and "#training: tiny, round 2:" in capsys.readouterr().out
