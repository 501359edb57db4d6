"""What playing came to and cost in SQL: intervals, conditions, times from the manifests, runs that did not count
tokens."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from crl.report.curves import play_charts
from crl.report.page import render
from crl.report.round_tables import round_tables
from crl.report.success import Rate, wilson
from crl.report.summary import Cost, summarize
from crl.report.views import connect, query
from crl.run.directory import RunDirectory
from docs.schema_page import PASS_COLUMNS, SEQUENCE_COLUMNS, SUCCESS_COLUMNS, TIMING_COLUMNS
from tests.unit.report.builder import build_run, episode, evaluation, write_stage
from tests.unit.report.test_page import Page


def test_the_interval_macros_are_the_one_function(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    for won, games in ((0, 1), (1, 1), (3, 8), (48, 64), (0, 1000)):
        _, [ends] = query(run, f"SELECT wilson_low({won}, {games}), wilson_high({won}, {games})")
        assert ends == pytest.approx(wilson(won, games), abs=1e-12)
    _, [(none,)] = query(run, "SELECT wilson_low(count_if(success), count(*)) FROM episodes WHERE false")
    assert none == 0.0 or none is None


@pytest.mark.parametrize(
    ("view", "columns"),
    [
        ("sequences", SEQUENCE_COLUMNS),
        ("success_by_condition", SUCCESS_COLUMNS),
        ("timings", TIMING_COLUMNS),
        ("pass_at_k", PASS_COLUMNS),
    ],
)
def test_the_views_have_the_columns_of_the_page(
    tmp_path: Path, view: str, columns: Sequence[tuple[str, str, str]]
) -> None:
    with connect(build_run(tmp_path / "run")) as connection:
        described = connection.execute(f"DESCRIBE {view}").fetchall()
    assert [(row[0], str(row[1])) for row in described] == [(name, kind) for name, kind, _ in columns]


def test_success_and_cost_of_every_condition(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    write_stage(run, 3, "evaluate", [[evaluation(3, "random", play, play < 3) for play in range(8)]])
    columns = "round, stage, condition, won, games, actions, tokens_read, tokens_sampled"
    _, rows = query(run, f"SELECT {columns} FROM success_by_condition")
    assert rows == [
        (0, "evaluate", "without_bank", 1, 2, 2.0, 20.0, 4.0),
        (0, "evaluate_base", "without_bank", 0, 2, 2.0, 20.0, 4.0),
        (1, "collect", "free", 1, 4, 3.0, 30.0, 7.5),
        (2, "collect", "free", 0, 2, 3.0, 30.0, 8.5),
        (2, "collect", "guided", 1, 2, 3.0, 40.0, 6.5),
        (2, "evaluate", "with_bank", 2, 2, 2.0, 20.0, 4.0),
        (2, "evaluate", "without_bank", 0, 2, 2.0, 20.0, 4.0),
        (3, "evaluate", "random", 3, 8, 2.0, 0.0, 0.0),
    ]
    costs = summarize(run)[3].costs
    assert costs["guided"] == Cost(2, 6, 80, 13) and costs["with_bank"] == Cost(2, 4, 40, 8)


@pytest.mark.slow
@pytest.mark.usefixtures("plain_charts")
def test_games_that_broke_are_lost_ones_and_are_counted_apart(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    broke = {"success": False, "stop_reason": "error"}
    held_out = [dataclasses.replace(evaluation(3, "with_bank", seed, True), **broke) for seed in (1, 2)]
    write_stage(run, 3, "evaluate", [[evaluation(3, "with_bank", 0, True), *held_out]])
    played = dataclasses.replace(episode(3, 0, guided=True, success=False), **broke, error="prompt_too_long")
    write_stage(run, 3, "collect", [[played, episode(3, 1, guided=False, success=True)]])
    _, rows = query(run, "SELECT condition, won, games, broken FROM success_by_condition WHERE round = 3")
    assert rows == [("free", 1, 1, 0), ("guided", 0, 1, 1), ("with_bank", 1, 3, 2)]
    summary = summarize(run)[-1]
    assert (summary.guided, summary.free, summary.with_bank) == (Rate(0, 1, 1), Rate(1, 1), Rate(1, 3, 2))
    assert summary.tasks["with_bank"]["room"] == summary.evaluations[0].won == Rate(1, 3, 2)
    page, out = Page(render(run)), Console(file=io.StringIO(), width=200)
    assert page.row("Rounds", "3")[1:3] == ["0/1, 1 broke", "1/1"]
    assert page.row("Held out", "room")[2] == "1/3, 2 broke"
    for table in round_tables([summary]):
        out.print(table)
    assert "1/3 33 % [6–79], 2 broke" in out.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_times_are_those_of_the_manifests(finished: Path) -> None:
    directory = RunDirectory.open(finished)
    _, rows = query(finished, "SELECT round, stage, work, items, batches, seconds, longest FROM timings")
    noted = {(number, stage): directory.manifest(number, stage).provenance.get("timings", {})
             for number in directory.rounds() for stage in directory.complete_stages(number)}  # fmt: skip
    assert {(number, stage, work) for number, stage, work, *_ in rows} == {
        (*place, work) for place, timings in noted.items() for work in timings
    }
    for number, stage, work, items, batches, seconds, longest in rows:
        found = noted[number, stage][work]
        assert (items, batches, seconds, longest) == tuple(
            found[name] for name in ("items", "batches", "seconds", "longest")
        )
        assert 0 <= longest <= seconds
    # What was timed is what was done, in stages of several parts too: their notes are joined.
    counts = "SELECT round, count(*) FROM {} WHERE stage = '{}' {} GROUP BY round"
    for work, stage, table, where in (
        ("play", "collect", "episodes", ""),
        ("retrieval", "plan", "tasks", "AND stream = 'guided' AND round > 1"),
        ("play with_bank", "evaluate", "evaluations", "AND condition = 'with_bank'"),
        ("play without_bank", "evaluate", "evaluations", "AND condition = 'without_bank'"),
    ):
        timed = {number: items for number, at, what, items, *_ in rows if (at, what) == (stage, work)}
        assert timed == dict(query(finished, counts.format(table, stage, where))[1]), work
    parts = next(batches for _, stage, work, _, batches, *_ in rows if (stage, work) == ("collect", "play"))
    assert parts > 1
    titles = {chart.title for chart in play_charts([each for each in summarize(finished) if each.label.isdigit()])}
    assert titles >= {"milliseconds per query of the bank", "seconds per game, held out", "actions per game, held out",
                      "thousand tokens per round"}  # fmt: skip
    assert "seconds per answer to a question" not in titles, "nobody asked any"
