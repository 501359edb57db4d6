"""Pieces of a study: what they keep, which comes next, and that their tables are those of the runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from crl.lab.study.config import load_study
from crl.lab.study.files import write_study
from crl.lab.study.metrics import RunMetrics
from crl.lab.study.plan import plan_runs
from crl.report.success import Rate
from research import pieces
from tests.study.studies import write


def metrics(won: int) -> RunMetrics:
    rates = {number: Rate(won + number, 16) for number in range(4)}
    return RunMetrics(
        with_bank=rates, without_bank=rates, episodes={number: 8 * number for number in range(4)}, outputs=4,
        malformed=1, returned=None, experiences_true=None, coverage=None, alarms=[],
    )  # fmt: skip


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A study of two arms and two seeds, of which every run says how many games it won."""
    study = load_study(write(tmp_path))
    runs = plan_runs(study, tmp_path / "runs")
    by_path = {run.path: metrics(place) for place, run in enumerate(runs)}
    monkeypatch.setattr(pieces, "read_run", lambda path, rounds: by_path[path])
    monkeypatch.setattr(type(runs[0]), "is_finished", lambda self: True)
    return study, runs, by_path


def test_a_piece_is_what_the_run_says_and_the_next_is_the_first_that_is_missing(planned, tmp_path: Path) -> None:
    study, runs, by_path = planned
    for place, run in enumerate(runs):
        assert pieces.missing(study, runs, tmp_path) == runs[place:]
        path = pieces.keep(study, run, tmp_path)
        assert path.name == f"{run.arm}-s{run.seed}.parquet" and path.stat().st_size < 20_000
    assert pieces.missing(study, runs, tmp_path) == []
    found = pieces.read(study, runs, tmp_path)
    assert {(run.arm, run.seed): found[run.arm][run.seed] for run in runs} == {
        (run.arm, run.seed): by_path[run.path] for run in runs
    }


def test_tables_of_pieces_are_those_of_the_runs(planned, tmp_path: Path) -> None:
    study, runs, by_path = planned
    for run in runs[:3]:
        pieces.keep(study, run, tmp_path)
    page = tmp_path / f"{study.name}.md"
    page.write_text(f"# A title\n\nWords.\n\n{pieces.MARK}\n\nold\n")
    told = pieces.tables(study, runs, tmp_path)
    known = {arm: {run.seed: by_path[run.path] for run in runs[:3] if run.arm == arm} for arm in study.arms}
    write_study(study, [], tmp_path / "whole", {arm: found for arm, found in known.items() if found})
    assert told == (tmp_path / "whole/study.md").read_text()
    assert pq.read_table(tmp_path / f"results/{study.name}.parquet").num_rows == 3 * 4 * 2
    text = page.read_text()
    assert text.startswith("# A title\n\nWords.\n") and "old" not in text and "## Held-out success" in text


def test_pieces_of_other_settings_are_not_mixed(planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, runs, _ = planned
    pieces.keep(study, runs[0], tmp_path)
    monkeypatch.setattr(type(runs[0].experiment.method), "digest", lambda self: "another")
    with pytest.raises(ValueError, match="other settings"):
        pieces.read(study, runs, tmp_path)


def test_a_run_that_is_not_finished_is_no_piece(planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, runs, _ = planned
    monkeypatch.setattr(type(runs[0]), "is_finished", lambda self: False)
    with pytest.raises(ValueError, match="of 3 rounds"):
        pieces.keep(study, runs[0], tmp_path)
