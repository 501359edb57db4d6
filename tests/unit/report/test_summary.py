"""The round table against numbers counted by hand."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from crl.records import Metric
from crl.report.curves import health_charts
from crl.report.markdown import rounds_markdown
from crl.report.page import render
from crl.report.summary import Rate, notes, round_tables, summarise
from tests.unit.report.builder import build_run, write_stage


def test_figures_of_each_round(tmp_path: Path) -> None:
    base, start, first, second = summarise(build_run(tmp_path / "run"))
    assert (base.label, base.without_bank, base.bank) == ("0 base", Rate(0, 2), None)
    assert (start.label, start.without_bank, start.bank, start.extractor_updates) == ("0", Rate(1, 2), 0, 0)
    assert (first.guided, first.free) == (Rate(0, 0), Rate(1, 4))
    assert (first.bank, dict(first.operations), first.outputs, first.malformed) == (1, {"add": 1}, 2, 1)
    assert (first.actor_updates, first.extractor_updates, first.buffer) == (1, 1, None)
    assert (second.guided, second.free) == (Rate(1, 2), Rate(0, 2))
    assert (second.with_bank, second.without_bank) == (Rate(2, 2), Rate(0, 2))
    assert second.buffer == 1, "only what waits: a selected output is trained"
    assert second.alarms == ("credit: share_malformed 0.5, more than 0.3 of the outputs",)
    assert sum(second.seconds.values()) == 10.5


def test_warm_start_episodes_do_not_count_as_a_round(tmp_path: Path) -> None:
    from tests.unit.report.builder import episode

    run = build_run(tmp_path / "run")
    write_stage(run, 0, "warm_start_actor", [[episode(0, 0, guided=False, success=True)]])
    assert all(each.free == Rate(0, 0) for each in summarise(run) if each.round == 0)


def test_the_tables_show_every_round(tmp_path: Path) -> None:
    summaries = summarise(build_run(tmp_path / "run"))
    out = Console(file=io.StringIO(), width=160)
    for table in round_tables(summaries):
        out.print(table)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "0.50 of 2" in text and "update 1" in text and "1 of 2" in text and "0 base" in text
    assert any("preparation" in line for line in notes(summaries))
    assert any("share_malformed" in line for line in notes(summaries))


def test_a_run_without_stages_has_no_table(tmp_path: Path) -> None:
    assert summarise(tmp_path) == []
    assert round_tables([]) == []


def test_a_collapse_is_told_wherever_alarms_are(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    told = "this run has collapsed: the extractor writes no notes, since round 1"
    figures = {"notes_true": 0.25, "share_add": 0.5, "families_with_note": 1.0}
    rows = [Metric(round=2, stage="health", name=name, value=value, alarm=None) for name, value in figures.items()]
    write_stage(run, 2, "health", [[*rows, Metric(round=2, stage="health", name="collapsed", value=1, alarm=told)]])
    summaries = summarise(run)
    assert dict(summaries[-1].health) == {**figures, "collapsed": 1.0} and not summaries[-2].health
    assert f"alarm in round 2, health: collapsed 1, {told}" in notes(summaries)
    assert told in rounds_markdown("run", summaries)
    page = render(run)
    assert told in page
    titles = [chart.title for chart in health_charts([each for each in summaries if each.label == str(each.round)])]
    assert {"notes that are right", "kinds of extractor outputs", "task families covered"} <= set(titles)
    assert "rewards of the extractor's batch" not in titles, "nothing was said about them"
    assert "notes that are right: new" not in page and "in the bank 25 %" in page
