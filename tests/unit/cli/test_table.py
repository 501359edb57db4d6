"""`crl table` on recorded runs: its forms, what it refuses, and what it names and leaves out."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from crl.report.success import wilson
from tests.unit.cli.conftest import Outcome
from tests.unit.lab.table.recorded import WITH, WITHOUT, Won, recorded

Crl = Callable[..., Outcome]
WON: Won = {
    ("lake", WITH): [1, 1, 0, 1], ("lake", WITHOUT): [1, 0, 0, 0], ("pond", WITH): [1, 1],
    ("pond", WITHOUT): [0, 1],
}  # fmt: skip
PLAIN: Won = {place: won for place, won in WON.items() if place[1] == WITHOUT}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one method, and another method, as runs."""
    root = tmp_path_factory.mktemp("runs")
    recorded(root, "both-s1", {1: PLAIN, 2: WON}, seed=1)
    recorded(root, "both-s2", {1: PLAIN, 2: WON}, seed=2)
    recorded(root, "plain", {2: PLAIN}, seed=1, method__recipe__kind="baseline")
    return root


@pytest.fixture
def table_of(made: Path, crl: Crl, monkeypatch: pytest.MonkeyPatch) -> Crl:
    """`crl table` on those runs."""
    monkeypatch.setenv("CRL_RUNS", str(made))
    return lambda *words: crl("table", *words)


def found(outcome: Outcome) -> str:
    assert outcome.code == 0, outcome.err
    return outcome.out


def test_a_table_for_people(table_of: Crl) -> None:
    lines = found(table_of("both-s1", "both-s2", "plain")).splitlines()
    heads = next(line for line in lines if line.startswith("method"))
    assert heads.split() == ["method", "bank", "runs", "round", "lake", "pond", "average"]
    rows = {tuple(line.split()[:2]): line for line in lines if line.startswith(("both", "plain"))}
    assert rows["both", "with"].split()[2:5] == ["2", "2", "0.75"] and "[0.75, 0.75]" in rows["both", "with"]
    low, high = wilson(1, 4)
    assert f"0.25 [{low:.2f}, {high:.2f}]" in rows["plain", "without"] and ("plain", "with") not in rows
    assert any("Student's t over seeds" in line for line in lines)
    assert any(line.startswith("plain: unfinished: round 0") for line in lines)


def test_the_same_in_markdown_and_latex(table_of: Crl) -> None:
    page = found(table_of("Our_way=both-s1", "--format", "markdown"))
    assert "| method | bank | runs | round | lake | pond | average |" in page
    assert "| Our\\_way | with | 1 | 2 | 0.75 [" in page and "\n- both-s1: unfinished" in page
    paper = found(table_of("Our_way & 50 %=both-s1", "[plain]=plain", "--format", "latex"))
    assert r"\begin{tabular}{llrrrrr}" in paper and paper.count("\\\\\n") == 4
    assert r"Our\_way \& 50 \% & with & 1 & 2 & 0.75 {[}" in paper and r"{[}plain{]} & without" in paper
    assert all(line.startswith("%") for line in paper.splitlines() if "unfinished" in line)


def test_data_have_every_metric(table_of: Crl) -> None:
    data = json.loads(found(table_of("both-s1", "plain", "--format", "json")))
    first = data["rows"][0]
    assert (first["method"], first["condition"], first["runs"], first["rounds"]) == ("both-s1", WITH, ["both-s1"], [2])
    assert first["cells"]["lake"]["actions"] == {"mean": 5.5, "low": None, "high": None}
    assert first["average"]["success"]["mean"] == 0.875 and data["tasks"] == ["lake", "pond"]
    lines = list(csv.DictReader(io.StringIO(found(table_of("both-s1", "plain", "--format", "csv")))))
    assert [line["task"] for line in lines] == 3 * ["lake", "pond", "macro average"]
    assert float(lines[0]["tokens"]) == (3 * 30 + 60) / 4 and lines[0]["actions_low"] == ""
    assert float(lines[2]["success_low"]) == data["rows"][0]["average"]["success"]["low"]


@pytest.mark.parametrize(
    ("metric", "cell"), [("score", "0.50"), ("actions", "5.5"), ("tokens", "37.5"), ("success", "0.75 [")]
)
def test_other_metrics(table_of: Crl, metric: str, cell: str) -> None:
    row = next(line for line in found(table_of("both-s1", "--metric", metric)).splitlines() if " with " in line)
    assert cell in row


def test_another_round(table_of: Crl) -> None:
    assert "with " not in found(table_of("both-s1", "--round", "1")).partition("Brackets")[0].replace("without ", "")
    refused = table_of("both-s1", "--round", "9")
    assert refused.code == 2 and "round 9 was not evaluated" in refused.err
    for word in ("first", "-1", "1.5", "9" * 40):
        refused = table_of("both-s1", f"--round={word}")
        assert refused.code == 2 and ("last, best" in refused.err or "was not evaluated" in refused.err)


def test_a_damaged_run_is_named_and_the_others_are_shown(
    table_of: Crl, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, tmp_path / "runs")
    (tmp_path / "runs/both-s1/rounds/0002/evaluate/evaluations.parquet").write_bytes(b"")
    (tmp_path / "runs/both-s2/experiment.yaml").write_text("method: 1\n", encoding="utf-8")
    (tmp_path / "runs/study").mkdir()
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "runs"))
    places = sorted(str(path) for path in (tmp_path / "runs").iterdir())
    said = found(table_of(*places))
    for place in places[:2]:
        assert f"not in the table: {place}: " in said
    assert f"not in the table: {tmp_path}/runs/study is not a run" in said
    assert [line.split()[:2] for line in said.splitlines()[2:3]] == [["plain", "without"]]
    refused = table_of(*places[:2])
    assert refused.code == 2 and refused.err.count("not in the table") == 2


def test_a_name_that_means_nothing_is_refused(table_of: Crl) -> None:
    for words, told in [
        (("both-s1", "both-s3"), "no run 'both-s3'"),
        (("=both-s1",), "lacks the name of its row, or the run"),
        (("Ours=",), "lacks the name of its row, or the run"),
        (("Ours=nobody",), "no run 'nobody'"),
    ]:
        refused = table_of(*words)
        assert refused.code == 2 and told in refused.err, refused.err
    assert "both-s1 is given twice" in found(table_of("both-s1", "both-s1"))


@pytest.mark.parametrize("format", ["rich", "markdown", "latex", "csv", "json"])
def test_no_name_reaches_the_terminal_as_a_command(table_of: Crl, format: str) -> None:
    said = found(table_of("\x1b[2Jours\u202e=both-s1", "--format", format))
    assert "\x1b" not in said and "\u202e" not in said and "ours" in said
