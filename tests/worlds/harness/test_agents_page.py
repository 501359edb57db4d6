"""What docs/agents.md shows: ten lines about an agent, run as they stand."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from crl.cli import main
from crl.config.load import load_experiment
from crl.records import Episode, rows_of
from crl.run.directory import RunDirectory
from tests.tiny_run import ROOT

PAGE = (ROOT / "docs/agents.md").read_text(encoding="utf-8")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
FILES = {name: body for _, name, body in BLOCK.findall(PAGE) if name}
COMMANDS = next(body for kind, _, body in BLOCK.findall(PAGE) if kind == "sh").splitlines()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the page, and nothing on the path but the project."""
    for name, body in FILES.items():
        (tmp_path / name).write_text(body)
    rows = [{"task": f"What is {number} plus 4?", "answer": str(number + 4)} for number in range(60)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delitem(sys.modules, "earned", raising=False)
    return tmp_path


def here(words: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(words.removeprefix("crl ")))
    return ended.value.code


def test_its_ten_lines_make_an_experiment(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) + len(FILES["earned.py"].splitlines()) + len(FILES["agent.py"].splitlines()) <= 12
    assert len(PAGE.split()) <= 800
    assert here(COMMANDS[0]) == 0, capsys.readouterr().err
    assert "costs its own episode.\n" in (folder / "sums.yaml").read_text(), "no setting of steps"
    (family,) = load_experiment(folder / "sums.yaml").method.families
    assert family.environment.runs_programs and set(family.environment.data_files()) == {"tasks.jsonl", "agent.py"}
    named = set(re.findall(r"`(max_\w+|call_seconds|seconds|side|success_at|test_size)`", PAGE))
    assert len(named) == 7 and named <= set(type(family.environment).model_fields)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="openai is not installed")
def test_they_train(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in COMMANDS:
        smaller = " --no-prefect --set method.families.0.groups=2 --set method.families.0.evaluation_seeds.count=2"
        assert here(words + (smaller if words.startswith("crl train") else "")) in (0, None), capsys.readouterr().err
    run = RunDirectory.open(folder / "runs/sums")
    episodes = rows_of(Episode, run.read(2, "collect", Episode))
    assert len(episodes) == 8 and all(episode.error is None and episode.turns == 1 for episode in episodes)
    assert here("crl verify runs/sums") == 0
