"""What docs/checks.md shows works as it stands there: its commands, its suite, and what it says becomes of a breach."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from crl.checks import suites
from crl.cli import main
from crl.config.load import load_experiment
from crl.engine.targets import last_runtime, remember_target
from crl.records import ROW_TYPES
from crl.run.directory import RunDirectory
from crl.run.journal import Journal
from crl.run.lease import Lease
from tests.recipe_runs import requires
from tests.unit.report.builder import build_run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
SUITE = next(block["body"] for block in BLOCK.finditer(PAGE) if block["kind"] == "json")
COMMANDS = [line for block in BLOCK.finditer(PAGE) if block["kind"] == "sh" for line in block["body"].splitlines()]


def crl(*words: str) -> None:
    """Run a command in this process; it has to end well."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code


def test_the_commands_that_list_and_show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(suites, "brought", {})  # whatever other tests loaded
    first, second, third = [shlex.split(line)[1:] for line in COMMANDS if "docs" not in line]
    crl(*first)
    listed = capsys.readouterr().out
    assert len(listed.splitlines()) == len(ROW_TYPES) and re.search(
        r"^episodes: \d+ expectations$", listed, re.MULTILINE
    )
    crl(*second)
    assert "tokens_sampled is at least turns" in capsys.readouterr().out.splitlines()
    crl(*third)
    suite = json.loads(capsys.readouterr().out)
    assert suite["name"] == "episodes" and {each["type"] for each in suite["expectations"]} > {
        "unexpected_rows_expectation", "expect_column_values_to_be_between",
    }  # fmt: skip


@requires("erl")
def test_the_command_that_lists_the_rules_of_a_recipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suites, "brought", {})
    (fourth,) = re.findall(r"`crl (checks list --experiment [^`]+)`", PAGE)
    monkeypatch.chdir(ROOT)
    crl(*fourth.split())
    assert re.search(r"^reflections: \d+ expectations$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
def test_the_suite_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "conf" / "expectations").mkdir()
    (tmp_path / "conf" / "expectations" / "episodes.json").write_text(SUITE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_experiment("conf/tiny.yaml").runtime.expectations == {"episodes": json.loads(SUITE)}
    crl("checks", "show", "episodes", "--experiment", "conf/tiny.yaml")
    assert "a success takes at least one valid action" in capsys.readouterr().out.splitlines()
    crl("checks", "list", "--experiment", "conf/tiny.yaml")
    assert "3 of them your own" in capsys.readouterr().out
    (tmp_path / "conf" / "expectations" / "episodes.json").write_text(SUITE.replace("stop_reason", "stop"))
    with pytest.raises(SystemExit) as ended:
        main(["checks", "list", "--experiment", "conf/tiny.yaml"])
    assert ended.value.code == 2 and "episodes has no column 'stop'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_data_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = load_experiment(ROOT / "conf" / "tiny.yaml")
    run = build_run(RunDirectory.create_or_open(experiment, tmp_path / "runs").path)
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "runs"))
    commands = [shlex.split(line)[1:] for line in COMMANDS if "docs" in line]
    assert len(commands) == 2
    for command in commands:
        crl(*command)
        assert "data_docs/index.html: open it in a browser" in capsys.readouterr().out
    text = (run / "cache" / "data_docs" / "index.html").read_text(encoding="utf-8")
    assert "<td>1</td>" in text and "<td>2</td>" in text and "<td>0</td><td>plan" not in text


def test_a_rule_of_ones_own_is_remembered(tmp_path: Path) -> None:
    """The runtime that a run was last asked with holds the suites: `crl resume` uses them again."""
    data = yaml.safe_load((ROOT / "conf" / "tiny.yaml").read_text(encoding="utf-8"))
    data["runtime"] = {**data.get("runtime", {}), "expectations": {"episodes": json.loads(SUITE)}}
    (tmp_path / "prompts").symlink_to(ROOT / "conf" / "prompts")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    experiment = load_experiment(tmp_path / "tiny.yaml")
    run = RunDirectory.create_or_open(experiment, tmp_path)
    with Lease.acquire(run.path, seconds=60) as lease:
        remember_target(Journal(run.path), 1, 1, purpose=None, token=lease.token, runtime=experiment.runtime)
    assert last_runtime(run.path).expectations == {"episodes": json.loads(SUITE)}
