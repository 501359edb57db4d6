"""Running the command line in this process, on runs made of rows and on the engine tests' recipe without models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from crl.cli import main
from crl.run import experiment_file
from tests.unit.engine.harness import RECIPE, make_experiment
from tests.unit.report.builder import build_run

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def crl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run `crl …`; paths in a config are those of the repository."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else 0 if code is None else 1, captured.out, captured.err)

    return run


Crl = Callable[..., Outcome]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty runs directory, $CRL_RUNS."""
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def room(runs: Path) -> Path:
    """A run of two rounds, made of rows, named `room`."""
    path = build_run(runs / "room")
    made = make_experiment(recipe={"kind": "complementary"}).model_copy(update={"name": "room"})
    experiment_file.create(path, made)
    return path


@pytest.fixture
def tiny(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """conf/tiny.yaml."""
    monkeypatch.chdir(ROOT)
    return Path("conf/tiny.yaml")


@pytest.fixture
def fake(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with the engine tests' own stages: no model runs."""
    monkeypatch.setenv("CRL_FAKE", "{}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    experiment = yaml.safe_load(tiny.read_text(encoding="utf-8"))
    experiment["method"]["recipe"] = {"kind": RECIPE}
    (tmp_path / "prompts").symlink_to(ROOT / "conf" / "prompts")
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(experiment), encoding="utf-8")
    return path
