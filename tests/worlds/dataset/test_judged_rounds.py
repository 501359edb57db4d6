"""A data set whose answers a judge scores, in whole rounds: trained, killed, resumed, verified."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from crl.cli import main
from crl.config.load import load_experiment
from crl.records import Episode, Verdict, rows_of
from crl.run.directory import RunDirectory
from tests.processes import reap, wait_until
from tests.tiny_run import ROOT, digests

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs" / "judge.md").read_text(encoding="utf-8"))
"""Of the page: the rubric, the commands, the lines of a family, the query."""
RUBRIC, COMMANDS, FAMILY, QUERY = (body for _, body in BLOCKS)
INIT, CHECK, TRAIN = (line.removeprefix("crl ") for line in COMMANDS.splitlines())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"prompt": f"What is {number} plus 4?", "answer": str(number + 4)} for number in range(60)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rubric.md").write_text(RUBRIC)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_lines_of_the_page_are_those_of_an_experiment(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(INIT))
    assert ended.value.code == 0, capsys.readouterr().err
    made = load_experiment(folder / "sums.yaml").method
    shown = yaml.safe_load(FAMILY)["method"]
    changes = {
        "method.families.0.reward": shown["families"][0]["reward"],
        "method.roles.judge": shown["roles"]["judge"],
    }
    changed = load_experiment(folder / "sums.yaml", changes).method
    assert made.judged == changed.judged and changed.uses()["judge"].trained is False
    assert made.families[0].reward is not None and made.families[0].reward.judge == RUBRIC.strip()


def test_without_a_judge_or_a_function_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("init sums --model tiny --dataset sums.jsonl", INIT.replace("rubric", "no_rubric")):
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(words))
        assert ended.value.code == 2 and not (folder / "sums.yaml").exists()
    said = capsys.readouterr().err
    assert "--dataset needs --reward or --judge" in said and "no_rubric.md cannot be read" in said


@pytest.mark.slow
def test_a_judged_data_set_trains_is_killed_resumes_and_verifies(folder: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(folder / "prefect")}

    def crl(words: str, runs: str = "runs") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "crl", *shlex.split(words)], cwd=folder, capture_output=True, text=True, check=False,
            env={**environ, "CRL_RUNS": str(folder / runs)},
        )  # fmt: skip
        assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout + done.stderr

    crl(INIT)
    assert "failed" not in crl(CHECK)
    train = f"{TRAIN} --no-prefect --set runtime.validate_every=0"
    train += " --set method.families.0.reward.mode=group --set method.families.0.reward.twice=1.0"
    crl(train, "undisturbed")
    process = subprocess.Popen(
        [sys.executable, "-m", "crl", *shlex.split(train)], cwd=folder, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**environ, "CRL_RUNS": str(folder / "runs")}, start_new_session=True,
    )  # fmt: skip
    run = folder / "runs" / "sums"
    try:
        wait_until(lambda: (run / "rounds" / "0001" / "plan").is_dir(), "round 1 is planned", 300)
        process.send_signal(signal.SIGKILL)
    finally:
        reap(process)
    crl(f"resume {run}")
    assert digests(run) == digests(folder / "undisturbed" / "sums")
    crl(f"verify {run}")
    directory = RunDirectory.open(run)
    episodes = rows_of(Episode, directory.read(2, "collect", Episode))
    assert episodes and all(row.reward_names == ["judge"] and row.reward == row.reward_values[0] for row in episodes)
    verdicts = rows_of(Verdict, directory.read(2, "collect", Verdict))
    assert {row.mode for row in verdicts} == {"group"} and {row.reason_code for row in verdicts} == {"ok"}
    assert {row.reading for row in verdicts} == {0, 1} and all(row.tokens_read > 0 for row in verdicts)
    assert "episode_id" in crl(f"sql {run} {shlex.quote(QUERY)}")
