"""A data set whose answers a judge scores, in whole rounds: trained, killed, resumed, verified."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from crl.cli import main
from crl.config.load import load_experiment
from crl.records import Episode, Verdict, rows_of
from crl.run.directory import RunDirectory
from tests.tiny_run import ROOT
from tests.worlds.whole import Folder

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
    crl, run = Folder(folder).crl, folder / "runs" / "sums"
    crl(INIT)
    assert "failed" not in crl(CHECK)
    train = f"{TRAIN} --set method.families.0.reward.mode=group --set method.families.0.reward.twice=1.0"
    episodes = Folder(folder).trained(train, "sums")
    assert episodes and all(row.reward_names == ["judge"] and row.reward == row.reward_values[0] for row in episodes)
    verdicts = rows_of(Verdict, RunDirectory.open(run).read(2, "collect", Verdict))
    assert {row.mode for row in verdicts} == {"group"} and {row.reason_code for row in verdicts} == {"ok"}
    assert {row.reading for row in verdicts} == {0, 1} and all(row.tokens_read > 0 for row in verdicts)
    assert "episode_id" in crl(f"sql {run} {shlex.quote(QUERY)}")


@pytest.mark.slow
def test_a_judge_does_not_read_what_reward_functions_gave(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "lengths.py").write_text("def short(completions, **columns):\n    return [0.4375] * len(completions)\n")
    runs = f"--runs {shlex.quote(str(folder / 'runs'))}"
    for words in (
        f"{INIT} --reward lengths:short",
        f"train sums.yaml --rounds 1 --no-prefect {runs} --set runtime.validate_every=0",
    ):
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(words))
        assert ended.value.code == 0, capsys.readouterr().err
    run = RunDirectory.open(folder / "runs" / "sums")
    episodes = rows_of(Episode, run.read(1, "collect", Episode))
    assert all(
        "0.4375" in str(row.last_observation) and row.reward_names[-2:] == ["short", "judge"] for row in episodes
    )
    verdicts = rows_of(Verdict, run.read(1, "collect", Verdict))
    assert verdicts and not any("0.4375" in row.prompt or "Reward" in row.prompt for row in verdicts)
